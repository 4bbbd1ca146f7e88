"""The tables of a study, from rows alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from repair_hf.runtime.options import UserError
from repair_hf.study.columns import PRICES
from repair_hf.study.methods import PAPER, PLAIN
from repair_hf.study.paper import aro_table, both_ways, results_of_setting
from repair_hf.study.results import BASE, BLENDS, Cell, Results, load_rows, save_rows
from repair_hf.study.statistics import MEASURES
from repair_hf.study.tables import TOY, tables_of, write_page
from tests.study.made_rows import plan, row, rows

METHODS = ["laclip", "repair-batch", "repair-paper", "wo-qc"]


def found(**options):
    one = plan(methods=METHODS, seeds=2, **options)
    return list(rows(one, lambda cell: {"R@1": 0.6 if cell.method == "repair-batch" else 0.5}).values())


def tables(made, **options) -> dict[str, pd.DataFrame]:
    return {
        each.name: each.table for each in tables_of(made, options.get("published", {}), options.get("left_out", {}))
    }


def test_the_summary_compares_all_methods_with_plain_training():
    table = tables(found()[::-1])["summary"].set_index("method")
    assert list(table.index) == ["random", BASE, "plain", *METHODS]  # in the order of the methods, not of the rows
    assert table.loc["random", [*MEASURES, "score, gain"]].tolist() == ["2.5/2.5", "50.0/50.0", "3.3/3.3", "–"]
    assert table.loc["plain", "R@1"] == "50.0/50.0" and table.loc["plain", "score, gain"] == "–"
    assert table.loc["repair-batch", "R@1, gain"].startswith("+10.0 [") and table.loc[BASE, "R@1, gain"] == "–"


def test_methods_are_compared_with_each_other_and_with_the_papers_own():
    made = {each.name: each for each in tables_of(found(), {}, {})}
    pairs = made["pairs"].data.set_index(["method", "other", "measure"])
    assert len(pairs) == 3 * 10 * 4
    assert pairs.loc[("laclip", "repair-batch", "R@1"), "difference"] == pytest.approx(-0.1)
    assert "minus `repair-batch`" in made["pairs"].note
    table = made["methods"].table.set_index("method")
    assert table.loc["repair-batch", "R@1, from the paper's method"].startswith("+10.0")
    assert table.loc["repair-paper", "R@1, from the paper's method"] == "–"


def test_the_papers_measures_are_those_of_the_ranks_beside_its_figures():
    made = found()
    table = tables(made, published=results_of_setting("coco30k", [], 1))["retrieval"].set_index("method")
    assert (
        table.loc["repair-paper", "paper: R@1"] == "62.64/46.11" and table.loc["wo-qc", "paper: R@1"] == "61.98/44.87"
    )
    assert table.loc["laclip", "paper: MRR"] == "0.7267/0.5778" and table.loc["repair-batch", "paper: R@1"] == "–"
    ranks = [np.array([one[f"{way}_ranks"] for one in made if one.cell.method == "laclip"]) for way in ("i2t", "t2i")]
    for k, column in ((5, "R@5"), (10, "R@10")):
        assert table.loc["laclip", column] == "/".join(f"{100 * (each <= k).mean():.1f}" for each in ranks)
    assert table.loc["laclip", "MRR"] == "/".join(f"{(1 / each).mean():.4f}" for each in ranks)


@pytest.mark.parametrize(
    ("dataset", "models", "rounds", "expected"),
    [
        ("coco30k", ["openai/clip-vit-base-patch32", "other/llm"], 1, {PAPER: "62.64/46.11", "laclip": "60.96/44.99"}),
        ("coco30k", ["timbrooks/instruct-pix2pix"], 0, {PAPER: "61.07/43.86", PLAIN: "60.54/44.15", "laclip": "–"}),
        ("coco30k", ["openai/clip-vit-large-patch14"], 1, {PAPER: "73.48/55.94", PLAIN: "72.00/55.19"}),
        ("coco30k", [], 3, {PAPER: "63.11/46.40"}),
        ("coco30k", ["openai/gpt-4o", "timbrooks/instruct-pix2pix"], 1, {PAPER: "–", PLAIN: "–"}),  # not in the paper
        ("coco", [], 1, {PAPER: "–/+0.93", PLAIN: "–"}),
    ],
)
def test_the_papers_rows_of_another_model_and_of_rounds_are_those_of_the_setting(dataset, models, rounds, expected):
    figures = results_of_setting(dataset, models, rounds)
    assert {method: both_ways(figures, method, "R@1") for method in expected} == expected


def test_aro_is_averaged_over_seeds_beside_the_papers_figures(tmp_path):
    values = {"pairs--repair-paper--lr1e-05--epochs5--all--seed0": 0.5, "clip-vit-base-patch32": 0.25}
    values["pairs--repair-paper--lr1e-05--epochs5--all--seed1"] = 0.6
    metrics = {name: {"vg_relation_macro_excl157": value, "other": 0.1} for name, value in values.items()}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    table = aro_table([str(tmp_path)], results_of_setting("coco30k", [], 1)).table.set_index("method")
    assert table.loc["repair-paper", ["vg relation", "paper: vg relation", "coco order"]].tolist() == [
        "55.0",
        "53.0",
        "–",
    ]
    assert table.loc["clip-vit-base-patch32", ["vg relation", "paper: vg relation"]].tolist() == ["25.0", "–"]


def test_budgets_and_blends_have_tables_of_their_own():
    made = tables(found(budgets={"calls=30": ["laclip"]}))
    assert made["budgets"]["method"].tolist() == ["random", BASE, "plain", "laclip, calls=30"]
    blends = made["blends"]["method"].tolist()
    assert {"plain, blend 0.8", "repair-batch, blend 0.6", "laclip, blend 0.8"} <= set(blends)
    assert not any("calls=30" in name for name in blends)
    assert "budgets" not in tables(found())


def test_a_gain_is_over_plain_training_of_the_same_weight_and_a_best_weight_is_chosen_on_validation():
    """Plain training keeps most at 0.6 on validation, `repair-batch` at 0.8; the test split would choose otherwise."""

    def good(cell: Cell) -> dict[str, float]:
        is_repair = cell.method == "repair-batch"
        best = {"validation": 0.8 if is_repair else 0.6, "test": 1.0}[cell.split]
        return {"R@1": 0.5 + 0.1 * is_repair * (cell.blend < 1), "kept": 0.9 if cell.blend == best else 0.5}

    made = rows(plan(methods=METHODS, seeds=2, learning_rates=[1e-4, 2e-4]), good).values()
    found = {each.name: each for each in tables_of(list(made), {}, {})}
    blends = found["blends"].table.set_index("method")["R@1, gain"]
    assert blends["repair-batch, blend 0.8"].startswith("+10.0") and blends["repair-batch"].startswith("+0.0")
    assert blends["plain, blend 0.8"] == "–"
    best = found["best_blends"].table.set_index("method")
    assert list(best.index[:3]) == ["random", BASE, "plain"] and best.loc["plain", "R@1, gain"] == "–"
    assert (best.loc["plain", "weight"], best.loc["repair-batch", "weight"]) == ("0.6", "0.8")
    assert best.loc["repair-batch", "R@1, gain"].startswith("+10.0") and best.loc["laclip", "weight"] == "0.6"
    figure = found["blends"].plot.panels[0]
    assert [line.points[-1].label for line in figure.lines] == [f"1 {method}" for method in (PLAIN, *METHODS)]
    assert "repair-batch, blend 0.8: 60.0 and on the base's own domain 50.0" in found["blends"].plot.description


def test_what_was_tried_shows_every_setting_and_whether_the_best_is_inside():
    """`laclip` is best inside, `repair-batch` at both edges, plain training at the lowest rate of three."""
    best = {"laclip": (2e-4, 2.0), "repair-batch": (4e-4, 4.0), "plain": (1e-4, 2.0)}

    def good(cell: Cell) -> dict[str, float]:
        return {"R@1": 0.8 if best.get(cell.method) == (cell.learning_rate, cell.epochs) else 0.5}

    options = {"seeds": 2, "learning_rates": [2e-4, 1e-4, 4e-4], "epochs": [2, 1, 4]}
    made = list(rows(plan(methods=["laclip", "repair-batch"], **options), good).values())
    table = tables(made)["tried"].set_index("setting")
    beside, settings = table.index[:2], table.index[2:6]
    assert [*beside] == ["random", "base"] and table.loc["base", "R@1"] == "50.0/50.0"
    assert [*settings] == ["plain, 0.0001, 0.5", "plain, 0.0001, 1", "plain, 0.0001, 2", "plain, 0.0001, 4"]
    assert len(table) == 2 + 3 * (4 + 3 + 3) and table.loc["laclip, 0.0002, 2", "R@1"] == "80.0/80.0"
    assert table.loc["laclip, 0.0001, 1", ["R@1", "kept"]].tolist() == ["50.0/50.0", "50.0/50.0"]
    assert table["reported"][table["reported"] != ""].to_dict() == {
        "plain, 0.0001, 2": "yes, with the lowest rate",
        "laclip, 0.0002, 2": "yes",
        "repair-batch, 0.0004, 4": "yes, with the highest rate and the most epochs",
    }
    one = [each for each in made if each.cell.method != "laclip" or each.cell.learning_rate == 2e-4]
    one = [each for each in one if each.cell.method != "laclip" or each.cell.epochs == 2]
    assert not tables(one)["tried"]["setting"].str.contains("laclip").any()  # it tried one setting
    assert "tried" not in tables(found())


def test_what_money_buys_and_which_failures_come_first():
    budgets = {"share=0.5": ["images-one-candidate"], "worst=0.5": ["images-one-candidate"]}
    shares = {"all": 0.7, "share=0.5": 0.6, "worst=0.5": 0.55}
    made = rows(
        plan(methods=["repair-batch", "images-one-candidate"], seeds=2, budgets=budgets),
        lambda cell: {"R@1": 0.5 if cell.method in (BASE, "plain") else shares[cell.budget]},
    )
    found = tables(list(made.values()))
    money = found["money"].set_index("method")
    dollars = 40 * PRICES[0] + 4 * PRICES[1]
    assert money.loc["repair-batch", "dollars"] == f"{dollars:.2f}" and money.loc["plain", "dollars a point"] == "–"
    assert "images-one-candidate, share=0.5" in money.index and not any("worst" in name for name in money.index)
    orders = found["orders"].set_index("method")["R@1, from the drawn"]
    assert orders["images-one-candidate, worst=0.5"].startswith("-5.0 [")
    assert orders["images-one-candidate, share=0.5"] == "–"


def test_two_worlds_have_tables_each():
    worlds = []
    for name in ("small", "large"):
        made = rows(plan(methods=METHODS, seeds=2, learning_rates=[1e-4, 2e-4]), lambda cell: {})
        worlds += [row(replace(cell, data=name), {}) for cell in made]
    made = tables(worlds)
    assert {"summary_small", "summary_large", "pairs_small", "pairs_large"} <= set(made)
    assert list(made["summary_small"]["method"]) == ["random", BASE, "plain", *METHODS]


def test_rows_of_two_versions_of_the_code_stand_in_one_table_if_the_anchors_are_equal(tmp_path):
    def save(name: str, code: str, method: str, **values) -> Path:
        made = rows(plan(methods=["repair-batch", method], seeds=1), lambda cell: {})
        for one in made.values():
            one.values |= {"code": code, "commit": f"of {code}"} | (
                values if one.cell.method == "repair-batch" else {}
            )
        save_rows(made.values(), tmp_path / name)
        return tmp_path / name

    first, second = save("a.parquet", "x", "laclip"), save("b.parquet", "y", "alia")
    both = load_rows([first, second])
    assert len({one.cell for one in both}) == len(both) == 3 * 4 + 3  # each blend of the base and of four methods
    made = {each.name: each for each in tables_of(both, {}, {})}
    assert "Rows of the commits of y, of x: with seed 0, base, plain, repair-batch are equal" in made["summary"].note
    assert {"laclip", "alia"} < set(made["summary"].table["method"])
    other = save("c.parquet", "z", "alia", t2i_ranks=[2] * 80)
    with pytest.raises(UserError, match="x and z cannot stand in one table: `repair-batch` with seed 0 differs"):
        load_rows([first, other])
    save_rows([row(Cell("tiny", "alia", "test"), {}, code="w")], tmp_path / "d.parquet")
    with pytest.raises(UserError, match="`base` with seed 0 differs, or one of them lacks it"):
        load_rows([first, tmp_path / "d.parquet"])
    (tmp_path / "e.parquet").write_bytes(b"-")
    with pytest.raises(UserError, match="cannot be read"):
        load_rows([tmp_path / "e.parquet"])


def test_a_row_file_is_written_once_for_all_blends_and_seen_by_another_process(tmp_path):
    one, other = Results(tmp_path / "rows"), Results(tmp_path / "rows")
    cell = Cell("tiny", "laclip", "test", 1, 1e-4, 2.0)
    one.add([row(replace(cell, blend=blend), {}) for blend in (1.0, 0.8)])
    other.read()
    assert set(other.rows) == set(one.rows) == {cell, replace(cell, blend=0.8)}
    assert [path.name for path in Path(tmp_path / "rows").iterdir()] == [f"{cell.name}.parquet"]


def test_the_page_warns_of_the_toy_world_and_says_what_is_left_out(tmp_path):
    sections = tables_of(found(), {}, {"wo-failure": "no failure was repaired"})
    write_page(sections, tmp_path, is_toy=True)
    page = (tmp_path / "study.md").read_text()
    assert TOY in page and "`wo-failure`: no failure was repaired." in page and "too few for a conclusion" in page
    assert len(pd.read_csv(tmp_path / "pairs.csv")) == 120
    assert "![Blended with the base: R@1 against what is kept](blends.svg)" in page
    drawn = (tmp_path / "blends.svg").read_text()
    assert drawn.startswith("<svg") and "panel" not in drawn


def test_every_method_has_a_curve_and_a_panel_four_of_them(tmp_path):
    names = ["laclip", "alia", "coco-cf", "tripletclip", "simclr", "repair-batch"]
    write_page(
        tables_of(list(rows(plan(methods=names, seeds=1), lambda cell: {}).values()), {}, {}), tmp_path, is_toy=True
    )
    drawn = (tmp_path / "blends.svg").read_text()
    for method in (PLAIN, *names):
        assert all(f"{method}, blend {blend:g}: " in drawn for blend in BLENDS)
    assert "own domain, panel 1 (" in drawn and "own domain, panel 2 (" in drawn and "panel 3" not in drawn
