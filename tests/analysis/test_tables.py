import statistics

import pytest
from rich.console import Console
from rich.table import Table

from repair_hf.analysis.tables import (
    NONE,
    cell,
    changes_table,
    differences_table,
    interval_cells,
    intervals_table,
    metrics_table,
)
from repair_hf.runtime.options import UserError


def metrics(recall: float, **others) -> dict[str, float]:
    found = {f"{side}_R@{k}": recall + k / 100 for side in ("i2t", "t2i") for k in (1, 5, 10)}
    return found | {"i2t_MRR": recall, "t2i_MRR": recall / 2, "n_images": 2000, "n_texts": 10000} | others


TRAINED = [metrics(0.5, seconds=59.6, steps=98, seed=0), metrics(0.53, seconds=61.6, steps=98, seed=1)]
ROWS = {"base": [metrics(0.4)], "vanilla_same_compute": TRAINED}


def test_a_bar_in_a_name_does_not_end_its_cell():
    _, text = metrics_table({"a|b": [metrics(0.5)]})
    head, _, row, *_ = text.splitlines()
    assert r"a\|b" in row and row.replace(r"\|", "").count("|") == head.count("|")


def test_cells():
    values = (0.12345, 12.0, 1.0, 12345, float("nan"), None, "", "a", True)
    assert [cell(value) for value in values] == ["0.123", "12", "1.000", "12,345", "–", "–", "–", "a", "True"]


def printed(table: Table, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_markdown_shows_percent_mrr_and_spread():
    head, rule, base, trained, _, footer = metrics_table(ROWS)[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, base, trained)]
    found = dict(zip(cells[0], zip(cells[1], cells[2], strict=True), strict=True))
    names = [f"{side} {kind}" for side in ("I2T", "T2I") for kind in ("R@1", "R@5", "R@10", "MRR")]
    assert list(found) == ["method", *names, "seconds", "steps"]
    assert found["method"] == ("base", "vanilla_same_compute")
    assert found["I2T R@1"] == ("41.0", f"52.5 ±{100 * statistics.stdev([0.51, 0.54]):.1f}")
    assert found["I2T MRR"] == ("0.400", "0.515 ±0.021")
    assert found["T2I MRR"] == ("0.200", "0.258 ±0.011")
    assert found["seconds"] == ("–", "61 ±1")
    assert found["steps"] == ("–", "98")  # the same for every seed
    assert head.count("|") == rule.count("|") == base.count("|") == trained.count("|")
    assert footer.startswith("2,000 images, 10,000 texts. R@K in %: an annotated positive is in the top K.")
    assert "Ties are ranked pessimistically. ±: standard deviation over 2 seeds." in footer


def test_nothing_is_cut_off_on_eighty_columns():
    text = printed(metrics_table(ROWS)[0])
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for expected in ("vanilla_same_compute 52.5", "0.515", "±0.021", "61    98", "standard deviation"):
        assert expected in text


def test_other_depths_are_shown_in_order_and_one_seed_has_no_spread():
    row = {f"{side}_R@{k}": 0.1 for side in ("i2t", "t2i") for k in (20, 3)}
    row |= dict.fromkeys(("i2t_MRR", "t2i_MRR", "n_images", "n_texts"), 1)
    markdown = metrics_table({"base": [row]})[1]
    assert markdown.startswith("| method | I2T R@3 | I2T R@20 | I2T MRR | T2I R@3 | T2I R@20 |")
    assert "±" not in markdown


@pytest.mark.parametrize(
    "rows, message",
    [
        ({}, "any method"),
        ({"base": []}, r"\['base'\]"),
        (
            ROWS | {"mine": [metrics(0.9, n_images=1000, n_texts=5000)]},
            r"different data.*base \[\(2000, 10000\)\]; .*mine \[\(1000, 5000\)\]",
        ),
    ],
)
def test_nothing_to_compare(rows, message):
    with pytest.raises(UserError, match=message):
        metrics_table(rows)


MEASURED = {
    "base": {"i2t_R@1": 0.1234, "t2i_MRR": 0.2, "i2t_median_rank": 4.5, "world_macro": 0.5, "n_images": 3},
    "mine": {"i2t_R@1": 1.0, "t2i_MRR": 1.0, "i2t_median_rank": 1.0},
}
MEASURED["base"]["intervals"] = {"i2t_R@1": (0.1, 0.15), "t2i_MRR": (0.19, 0.2105), "i2t_median_rank": (3, 6)}
MEASURED["base"]["intervals"]["world_macro"] = (0, 1)
MEASURED["mine"]["intervals"] = dict.fromkeys(("i2t_R@1", "t2i_MRR", "i2t_median_rank"), (1, 1))


def lines(table: Table) -> list[str]:
    return [" ".join(line.split()) for line in printed(table, 100).splitlines() if line.strip()]


def test_shares_in_percent_mrr_and_ranks_as_they_are():
    cells = interval_cells(MEASURED)
    assert cells["i2t_R@1"] == ["12.3 [10.0, 15.0]", "100.0 [100.0, 100.0]"]
    assert cells["t2i_MRR"] == ["0.200 [0.190, 0.210]", "1.000 [1.000, 1.000]"]
    assert cells["i2t_median_rank"] == ["4.5 [3, 6]", "1 [1, 1]"]
    assert cells["world_macro"] == ["50.0 [0.0, 100.0]", NONE] and "n_images" not in cells
    assert f"world macro 50.0 [0.0, 100.0] {NONE}" in lines(intervals_table(MEASURED))


def test_a_star_where_the_interval_leaves_out_nothing():
    bounds = {"i2t_R@1": (0.1, 0.05, 0.15), "i2t_R@5": (-0.1, -0.2, 0.0), "t2i_MRR": (-0.01, -0.02, -0.005)}
    found = {name: dict(zip(("difference", "low", "high"), each, strict=True)) for name, each in bounds.items()}
    head, _, *rows = lines(differences_table({"mine": found}, "change from base"))
    assert head == "change from base mine"
    assert rows == [
        "I2T R@1 +10.0 [+5.0, +15.0] *",
        "I2T R@5 -10.0 [-20.0, +0.0]",
        "T2I MRR -0.010 [-0.020, -0.005] *",
    ]


def test_counts_by_model_and_direction():
    counts = {"mine": {"i2t": {"repaired": 1200, "broken": 3}, "t2i": {"repaired": 0, "broken": 7}}}
    head, _, *rows = lines(changes_table(counts))
    assert (head, rows) == ("queries repaired broken", ["mine I2T 1,200 3", "mine T2I 0 7"])
