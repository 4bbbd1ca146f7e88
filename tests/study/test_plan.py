"""The table of methods, which cells a study needs, what is chosen on validation, and what budgets leave."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from datasets import Dataset

from repair_hf.records.dataset import NoRecords
from repair_hf.runtime.options import UserError
from repair_hf.study.cells import config_of
from repair_hf.study.losses import OBJECTIVES
from repair_hf.study.methods import ABLATIONS, CANDIDATES, METHODS, PAPER, REPAIR, Method, Records
from repair_hf.study.options import ORDERS, StudyOptions, parse_budget
from repair_hf.study.orders import PLACES
from repair_hf.study.paper import published_results
from repair_hf.study.products import Product, share_of
from repair_hf.study.results import BASE, Cell
from repair_hf.synthesis.options import SynthesizeOptions
from repair_hf.training.options import Fill, Loss
from tests.study.made_rows import plan, row, rows, setting

SPACE = {"learning_rates": [1e-4, 3e-4], "epochs": [2.0, 4.0]}


def test_a_study_with_one_setting_needs_the_test_split_alone():
    one = plan(methods=["laclip"], seeds=2)
    trained = [Cell("tiny", name, "test", seed, 1e-4, 0.2) for name in ("plain", "laclip") for seed in range(2)]
    assert one.splits == ("test",)
    assert list(one.cells({})) == [Cell("tiny", BASE, "test"), *trained] and one.trainings({}) == trained


def test_each_rate_is_tried_with_each_length_and_plain_training_is_also_tried_for_half_of_the_least():
    one = plan(methods=["laclip"], seeds=2, **SPACE)
    tried = [cell for cell in one.cells({}) if cell.method != BASE]
    assert {(cell.split, cell.seed) for cell in tried} == {("validation", 0)}
    each = {name: [(c.learning_rate, c.epochs) for c in tried if c.method == name] for name in ("plain", "laclip")}
    assert each["laclip"] == [(1e-4, 2.0), (1e-4, 4.0), (3e-4, 2.0), (3e-4, 4.0)]
    assert set(each["plain"]) == {*each["laclip"], (1e-4, 1.0), (3e-4, 1.0)}


def test_recall_on_validation_with_seed_0_chooses_and_the_other_seeds_run_there_alone():
    """The contrast set and what is kept prefer other settings, and so does the test split."""

    def good(cell: Cell) -> dict[str, float]:
        is_best = (cell.learning_rate, cell.epochs) == (3e-4, 2.0)
        return {"R@1": 0.5 + 0.2 * (is_best == (cell.split == "validation")), "contrast": 0.9 - 0.3 * is_best}

    one = plan(methods=["laclip", "repair-batch"], seeds=2, **SPACE)
    found = rows(one, good)
    others = [cell for cell in found if cell.method != BASE and (cell.split == "test" or cell.seed)]
    assert {(cell.learning_rate, cell.epochs) for cell in others} == {(3e-4, 2.0)}
    assert {cell.seed for cell in others if cell.split == "test"} == {0, 1}
    validated = {cell.method for cell in others if cell.split == "validation"}
    assert validated == {"plain", "laclip", "repair-batch"}  # each chooses its blend there


def test_of_equals_the_first_setting_wins():
    found = rows(plan(methods=["laclip"], seeds=1, **SPACE), lambda cell: {})
    (tested,) = {(c.learning_rate, c.epochs) for c in found if c.split == "test" and c.method == "laclip"}
    assert tested == (1e-4, 2.0)


def test_budgets_run_at_the_setting_of_all_data_even_if_that_is_no_line():
    one = plan(methods=["laclip"], budgets={"samples=5": ["laclip", "coco-cf"]}, seeds=2)
    lines = {(cell.method, cell.budget) for cell in rows(one, lambda cell: {})} - {(BASE, "all")}
    assert lines == {("plain", "all"), ("laclip", "all"), ("laclip", "samples=5"), ("coco-cf", "samples=5")}


def test_trainings_to_come_are_counted_once_each_and_take_the_longest():
    one = plan(methods=["laclip"], budgets={"samples=5": ["laclip"]}, seeds=3, **SPACE)
    before = one.trainings({})
    assert len(before) == 6 + 4 + 2 + 2 + 3  # tried; two more seeds of each method; three of the budget
    assert {cell.epochs for cell in before[10:]} == {4.0}
    assert one.trainings(rows(one, lambda cell: {})) == []


def test_a_budget_is_a_share_of_what_the_method_has_asked():
    parts = [Product(None, 600, 4000, 0), Product(None, 400, 1000, 3000)]
    shares = {"all": 1.0, "samples=500": 0.5, "samples=2000": 1.0, "calls=2000": 0.25}
    for budget, share in shares.items():
        assert share_of(budget, parts) == pytest.approx(share), budget
    assert share_of("calls=5", [Product(None, 10, 0, 0)]) == 1.0  # nothing was asked
    unknown = [Product(None, 10, None, None)]
    assert share_of("samples=5", unknown) == 0.5
    with pytest.raises(NoRecords, match="which is unknown"):
        share_of("calls=5", unknown)
    assert share_of("share=0.25", parts) == share_of("worst=0.25", parts) == 0.25
    assert parse_budget("calls=20000") == ("calls", 20_000)
    for wrong in ({"half": []}, {"samples=5": "laclip"}, {"share=2": []}, {"samples=0.5": []}, {"best=0.5": []}):
        with pytest.raises(UserError, match="`budgets`"):
            StudyOptions(budgets=wrong)


def test_an_order_takes_the_records_that_come_first_and_a_larger_share_holds_a_smaller_one():
    rng = np.random.default_rng(0)
    scores = {name: rng.random(40).astype(np.float32) for name in ("fp_score", "gt_score")}
    columns = {"direction": ["t2i"] * 40, "gt_id": [f"i{row % 8}" for row in range(40)], "q_id": ["c"] * 40}
    records = Dataset.from_dict({"row": range(40), **scores, **columns, "candidate_similarities": [[1.0]] * 40})
    margin = scores["fp_score"] - scores["gt_score"]
    product = Product(records, 40, 80, 40)
    rows = {order: [product.part(share, order).data["row"][:] for share in (0.2, 0.5)] for order in (None, *PLACES)}
    assert all(set(few) < set(many) and len(few) == 8 for few, many in rows.values())
    for order, key in {"worst": -margin, "near-ties": np.abs(margin), "least": margin}.items():
        assert set(rows[order][0]) == set(np.argsort(key)[:8]), order
    assert {row % 8 for row in rows["one-an-image"][0]} == set(range(8)) != {row % 8 for row in rows[None][0]}
    assert {2, 3} == set(np.bincount(np.array(rows["one-an-image"][1]) % 8))  # no third of an image before a second
    failed, right = (set(product.part(0.99, order).data["row"][:]) for order in ("failed", "right"))
    assert failed == set(np.flatnonzero(margin > 0)) and right == set(np.flatnonzero(margin <= 0))
    part = product.part(0.99, "failed")
    assert (part.samples, part.llm_calls) == (len(failed), 2 * len(failed)) and set(PLACES) == set(ORDERS)


def test_a_finished_row_is_not_a_cell_that_is_missing():
    one = plan(methods=["laclip"], seeds=1)
    done = Cell("tiny", "laclip", "test", 0, 1e-4, 0.2)
    assert [cell.method for cell in one.trainings({done: row(done, {})})] == ["plain"]
    assert replace(done, blend=0.8).name == done.name  # one file, a row of each blend


# The table of methods


FIELDS = ("data", "loss", "fill", "edits", "grid_weight", "grid_mean")


def test_every_method_of_the_papers_tables_is_there_besides_other_models_backbones_and_rounds():
    other = {"klein-4b", "gemini-image", "instruct-pix2pix", "gpt-4o", "repair-2-rounds", "repair-3-rounds"}
    reported = {*published_results("flickr30k"), *published_results("coco30k")}
    left = {name for name in reported - set(METHODS) if not name.startswith("other-backbone")}
    assert left == other and set(METHODS) >= reported - other - {"other-backbone", "other-backbone-vanilla"}


@pytest.mark.parametrize("method", ABLATIONS, ids=lambda method: method.name)
def test_an_ablation_differs_from_the_papers_method_in_one_field(method):
    parent = METHODS[PAPER]
    assert method.parent == PAPER and parent.parent == ""
    assert len([name for name in FIELDS if getattr(method, name) != getattr(parent, name)]) == 1


def test_the_papers_method_is_as_it_is_written():
    assert METHODS[PAPER] == Method("repair-paper", REPAIR, loss="grid", fill="paper", grid_weight=0.5)


def test_the_candidates_for_the_default():
    found = [(one.name, one.fill, one.loss, one.grid_weight, one.grid_mean) for one in CANDIDATES]
    assert found == [
        ("repair-batch", "edits", "batch", 0.0, "grids"),
        ("repair-grid", "edits", "grid", 1.0, "grids"),
        ("repair-both", "edits", "both", 1.0, "grids"),
        ("repair-both-0.25", "edits", "both", 0.25, "grids"),
        ("repair-both-anchors", "edits", "both", 1.0, "anchors"),
        ("repair-paper", "paper", "grid", 0.5, "grids"),
        ("paper-both", "paper", "both", 0.5, "grids"),
    ]
    assert all(one.data is REPAIR for one in CANDIDATES)


def test_choices_exist_and_records_share_a_name_only_if_they_are_the_same():
    records: dict[str, Records] = {}
    for name, method in METHODS.items():
        assert name == method.name and method.loss in (*get_args(Loss), *OBJECTIVES)
        for source in method.sources.values():
            if isinstance(source, Records):
                assert method.fill in get_args(Fill)
                assert set(source.synthesize) <= set(SynthesizeOptions.__dataclass_fields__)
                assert records.setdefault(source.name, source) == source


def test_every_method_has_a_configuration_of_training():
    """A study's test trains one method of each kind."""
    one = setting()
    for name, method in METHODS.items():
        config = config_of(method, one, Path("x"), Cell("tiny", name, "test", 0, 1e-4, 0.2))
        wanted = "grid" if method.loss in OBJECTIVES else method.loss, method.fill or "edits"
        assert (config.loss, config.fill) == wanted, name
