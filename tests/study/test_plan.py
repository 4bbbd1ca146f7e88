"""Which cells a study needs, what is chosen on the validation split, and what budgets leave."""

import pytest

from repair_hf.records.dataset import NoRecords
from repair_hf.runtime.options import UserError
from repair_hf.study.options import StudyOptions, parse_budget
from repair_hf.study.plan import score
from repair_hf.study.products import Product, share_of
from repair_hf.study.results import BASE, Cell
from tests.study.made_rows import Found, plan, settings

SPACE = {"learning_rates": [1e-4, 3e-4], "epochs": [1.0, 2.0], "grid_weights": [1.0, 0.5]}
LENGTHS = [(1e-4, 1.0), (1e-4, 2.0), (3e-4, 1.0), (3e-4, 2.0)]


def nearer(cell: Cell) -> float:
    """Better the nearer to 3e-4, two epochs and weight 0.5."""
    return 0.2 + 1000 * cell.learning_rate + 0.1 * cell.epochs - 0.1 * cell.grid_weight


def tried(found: Found, method: str) -> list[tuple]:
    """The settings of a method on the validation split, in order."""
    return list(dict.fromkeys(settings(c) for c in found.rows if (c.method, c.split) == (method, "validation")))


def test_a_study_begins_with_the_base_and_each_methods_seeds():
    one = plan(["laclip"], Found(), seeds=2)
    assert one.arms() == []
    expected = [Cell("tiny", BASE, "test")]
    for method, loss in (("vanilla", ""), ("laclip", "batch")):
        expected += [Cell("tiny", method, "test", seed, 1e-4, 0.2, "", loss) for seed in range(2)]
    assert list(one.missing) == expected


def test_plain_training_of_equal_compute_is_as_many_times_longer_as_a_step_is_larger():
    one = plan(["laclip", "repair"], Found(lambda cell: 0.5, {"repair": 2.6, "laclip": 1.01}), seeds=2)
    arms = {arm.cell.method: arm for arm in one.arms()}
    assert not one.missing and {name: arm.ratio for name, arm in arms.items()} == pytest.approx(
        {"vanilla": 1, "laclip": 1, "repair": 3}
    )
    long = [row.cell for row in arms["repair"].same_compute]
    assert long == [Cell("tiny", "vanilla", "test", seed, 1e-4, pytest.approx(0.6)) for seed in range(2)]
    assert [row.cell.seed for row in arms["repair"].same_steps] == [0, 1]


def test_each_rate_is_tried_with_each_length_then_the_weights_and_nothing_twice():
    found = Found(nearer)
    one = plan(["laclip", "repair-paper"], found, tune=True, **SPACE)
    arms = {arm.cell.method: settings(arm.cell) for arm in one.arms()}
    assert tried(found, "laclip") == [(*point, "", "batch", 0.0) for point in LENGTHS]
    first = [(*point, "paper", "grid", 1.0) for point in LENGTHS]
    assert tried(found, "repair-paper") == [*first, (3e-4, 2.0, "paper", "grid", 0.5)]
    assert arms["laclip"] == (3e-4, 2.0, "", "batch", 0.0)
    assert arms["repair-paper"] == (3e-4, 2.0, "paper", "grid", 0.5)
    assert {cell.seed for cell in one.tried} == {0, 1} == {c.seed for c in found.rows if c.split == "validation"}
    assert sum(cell.method == "repair-paper" for cell in one.tried) == 10


def test_ablations_take_the_settings_of_what_they_change():
    found = Found(nearer)
    names = ["wo-qc", "wo-repair", "full-matrix", "repair-batch", "hard-neg-only"]
    arms = {arm.cell.method: settings(arm.cell)[2:] for arm in plan(names, found, tune=True, **SPACE).arms()}
    assert {cell.method for cell in found.rows if cell.split == "validation"} == {"vanilla", "repair", "repair-paper"}
    assert arms == {
        "vanilla": ("", "", 0.0),
        "wo-qc": ("edits", "both", 0.5),
        "wo-repair": ("paper", "both", 0.5),
        "full-matrix": ("paper", "batch", 0.0),
        "repair-batch": ("edits", "batch", 0.0),
        "hard-neg-only": ("paper", "grid", 0.5),
    }


def test_plain_training_of_each_length_has_a_rate_of_its_own():
    """Here a long training wants the lower rate."""
    found = Found(lambda cell: 0.5 + (1000 * cell.learning_rate) * (1 if cell.epochs < 1.5 else -1), {"laclip": 2})
    arms = {arm.cell.method: arm for arm in plan(["laclip"], found, tune=True, **SPACE).arms()}
    assert arms["laclip"].same_compute[0].cell.learning_rate == 1e-4
    assert arms["laclip"].same_steps[0].cell.learning_rate == 3e-4


def test_both_measures_choose():
    one = Found(lambda cell: 0.5)(Cell("tiny", "vanilla", "validation"))
    one.values |= {"near_i2t": [1] * 8, "near_t2i": [3] * 8}
    r1 = one.metrics["i2t_R@1"] + one.metrics["t2i_R@1"]
    assert score(one) == pytest.approx((r1 + 2) / 4)
    one.values |= {"near_i2t": None, "near_t2i": None}
    del one.__dict__["queries"], one.__dict__["metrics"]
    assert score(one) == pytest.approx(r1 / 2)


def test_without_tuning_each_value_that_is_named_is_a_row():
    losses = {"losses": ["batch", "both"], "fills": ["edits", "paper"], "grid_weights": [0.5, 2.0]}
    one = plan(["repair", "laclip", "simclr", "repair-i2t"], Found(lambda cell: 0.5), **losses)
    each_loss = ("batch", 0.0), ("both", 0.5), ("both", 2.0)
    found = [(arm.cell.method, *settings(arm.cell)[2:]) for arm in one.arms() if arm.cell.method != "vanilla"]
    assert found == [
        *(("repair", fill, *each) for fill in ("edits", "paper") for each in each_loss),
        *(("laclip", "", *each) for each in each_loss),
        ("simclr", "", "", 0.0),
        *(("repair-i2t", "edits", *each) for each in each_loss),
    ]  # fmt: skip


def test_a_budget_is_a_share_of_what_the_method_has_paid():
    parts = [Product(None, 600, 4000, 0, 1.0), Product(None, 400, 1000, 3000, 3.0)]
    shares = {
        "all": 1.0, "samples=500": 0.5, "samples=2000": 1.0, "calls=2000": 0.25,
        "usd=14@0.001+0.04": 14 / (5 + 120), "usd=1@0+0.0001": 1.0,
    }  # fmt: skip
    for budget, share in shares.items():
        assert share_of(budget, parts) == pytest.approx(share), budget
    assert share_of("calls=5", [Product(None, 10, 0, 0, 0.0)]) == 1.0  # nothing was paid
    unknown = [Product(None, 10, None, None, None)]
    assert share_of("samples=5", unknown) == 0.5
    with pytest.raises(NoRecords, match="which is unknown"):
        share_of("calls=5", unknown)
    assert parse_budget("usd=5@0.0005+0.04") == (5.0, (0, 0.0005, 0.04))
    with pytest.raises(UserError, match="`budgets` has 'half'"):
        StudyOptions(budgets=["half"])


def test_a_method_without_data_takes_those_with_it_that_are_tuned_as_it():
    for tune, left in ((True, {"repair", "wo-qc"}), (False, {"repair"})):
        one = plan(["repair", "wo-qc", "laclip"], Found(lambda cell: 0.5), tune=tune)
        one.left_out["repair"] = "no failure was repaired"
        assert {"vanilla", "repair", "wo-qc", "laclip"} - {arm.cell.method for arm in one.arms()} == left
        assert set(one.left_out) == left and not one.missing
