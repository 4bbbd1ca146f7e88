from __future__ import annotations

import statistics

import pytest
from rich.console import Console

from repair_hf.analysis.tables import metrics_table
from repair_hf.runtime.options import UserError


def metrics(recall: float, **others) -> dict[str, float]:
    found = {f"{side}_R@{k}": recall + k / 100 for side in ("i2t", "t2i") for k in (1, 5, 10)}
    return found | {"i2t_MRR": recall, "t2i_MRR": recall / 2, "n_images": 2000, "n_texts": 10000} | others


ROWS = {
    "base": [metrics(0.4)],
    "vanilla_same_compute": [
        metrics(0.5, seconds=59.6, steps=98, seed=0),
        metrics(0.53, seconds=61.6, steps=98, seed=1),
    ],
}


def printed(rows, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(metrics_table(rows)[0])
    return console.export_text()


def test_markdown_tells_percent_mrr_and_spread():
    head, rule, base, trained, _, footer = metrics_table(ROWS)[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, base, trained)]
    told = dict(zip(cells[0], zip(cells[1], cells[2], strict=True), strict=True))
    assert list(told) == (
        ["method"]
        + [f"{side} {kind}" for side in ("I2T", "T2I") for kind in ("R@1", "R@5", "R@10", "MRR")]
        + ["seconds", "steps"]
    )
    assert told["method"] == ("base", "vanilla_same_compute")
    assert told["I2T R@1"] == ("41.0", f"52.5 ±{100 * statistics.stdev([0.51, 0.54]):.1f}")
    assert told["I2T MRR"] == ("0.400", "0.515 ±0.021")
    assert told["T2I MRR"] == ("0.200", "0.258 ±0.011")
    assert told["seconds"] == ("–", "61 ±1")
    assert told["steps"] == ("–", "98")  # the same for every seed
    assert len(head) == len(rule) == len(base) == len(trained)
    assert footer.startswith("2,000 images, 10,000 texts. R@K in %: some annotated positive stands in the top K.")
    assert "A tie counts against us. ±: standard deviation over 2 seeds." in footer


def test_nothing_is_cut_off_on_eighty_columns():
    text = printed(ROWS)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for expected in ("vanilla_same_compute 52.5", "0.515", "±0.021", "61    98", "standard deviation"):
        assert expected in text


def test_one_seed_has_no_spread():
    markdown = metrics_table({"base": ROWS["base"]})[1]
    assert "±" not in markdown
    assert "± " not in printed({"base": ROWS["base"]})


def test_other_depths_are_shown_in_order():
    row = {f"{side}_R@{k}": 0.1 for side in ("i2t", "t2i") for k in (20, 3)} | {
        "i2t_MRR": 0,
        "t2i_MRR": 0,
        "n_images": 1,
        "n_texts": 1,
    }
    assert metrics_table({"base": [row]})[1].startswith(
        "| method | I2T R@3 | I2T R@20 | I2T MRR | T2I R@3 | T2I R@20 |"
    )


def test_methods_measured_on_different_data_are_not_set_side_by_side():
    with pytest.raises(UserError, match=r"different data.*base \[\(2000, 10000\)\]; .*mine \[\(1000, 5000\)\]"):
        metrics_table(ROWS | {"mine": [metrics(0.9, n_images=1000, n_texts=5000)]})


@pytest.mark.parametrize("rows, message", [({}, "any method"), ({"base": []}, r"\['base'\]")])
def test_no_metrics_are_no_table(rows, message):
    with pytest.raises(UserError, match=message):
        metrics_table(rows)
