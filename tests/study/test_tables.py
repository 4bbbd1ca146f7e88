"""The tables of a study, from rows alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from repair_hf.runtime.options import UserError
from repair_hf.study.methods import PAPER, PLAIN
from repair_hf.study.paper import aro_table, both_ways, results_of_setting
from repair_hf.study.results import BASE, Cell, Results, load_rows, save_rows
from repair_hf.study.tables import TOY, tables_of, write_page
from tests.study.made_rows import plan, row, rows

METHODS = ["repair-batch", "repair-paper", "laclip", "wo-qc"]


def found(**options):
    one = plan(methods=METHODS, seeds=2, **options)
    return list(rows(one, lambda cell: {"R@1": 0.6 if cell.method == "repair-batch" else 0.5}).values())


def tables(made, **options) -> dict[str, pd.DataFrame]:
    return {
        each.name: each.table for each in tables_of(made, options.get("published", {}), options.get("left_out", {}))
    }


def test_the_summary_compares_all_methods_with_plain_training():
    table = tables(found())["summary"].set_index("method")
    assert list(table.index) == [BASE, "plain", *METHODS]
    assert table.loc["plain", "R@1"] == "50.0/50.0" and table.loc["plain", "score, gain"] == "–"
    assert table.loc["repair-batch", "R@1, gain"].startswith("+10.0 [") and table.loc[BASE, "R@1, gain"] == "–"


def test_methods_are_compared_with_each_other_and_with_the_papers_own():
    made = {each.name: each for each in tables_of(found(), {}, {})}
    pairs = made["pairs"].data.set_index(["method", "other", "measure"])
    assert len(pairs) == 10 * 4 and pairs.loc[("repair-batch", "laclip", "R@1"), "difference"] == pytest.approx(0.1)
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
    assert made["budgets"]["method"].tolist() == ["plain", "laclip, calls=30"]
    blends = made["blends"]["method"].tolist()
    assert {"plain, blend 0.8", "repair-batch, blend 0.6", "laclip, blend 0.8"} <= set(blends)
    assert "budgets" not in tables(found())


def test_two_worlds_have_tables_each_and_the_rule():
    worlds = []
    for name in ("small", "large"):
        made = rows(plan(methods=METHODS, seeds=2, learning_rates=[1e-4, 2e-4]), lambda cell: {})
        worlds += [row(replace(cell, data=name), {}) for cell in made]
    made = tables(worlds)
    assert list(made)[0] == "default" and {"summary_small", "summary_large", "pairs_large"} <= set(made)
    assert set(made["default"]["candidate"]) == {"repair-batch", "repair-paper"}


def test_a_table_refuses_rows_of_other_code(tmp_path):
    one, other = (row(Cell("tiny", name, "test"), {}, code=code) for name, code in (("a", "x"), ("b", "y")))
    alike = row(Cell("tiny", "c", "test"), {}, code="x", commit="of a page")
    save_rows([one, alike], tmp_path / "a.parquet")
    save_rows([one, other], tmp_path / "b.parquet")
    assert load_rows([tmp_path / "a.parquet"])[0].values == one.values
    with pytest.raises(UserError, match=r"rows of one code only, got x \(commit z\), y \(commit z\)"):
        load_rows([tmp_path / "b.parquet"])
    (tmp_path / "c.parquet").write_bytes(b"-")
    with pytest.raises(UserError, match="cannot be read"):
        load_rows([tmp_path / "c.parquet"])


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
    assert len(pd.read_csv(tmp_path / "pairs.csv")) == 40
