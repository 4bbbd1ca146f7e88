"""The printed tables: every number is where it belongs, in the unit that its name says."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from repair_hf.analysis.measurements import changes_table, differences_table, interval_cells, intervals_table, label

MEASURED = {
    "base": {"i2t_R@1": 0.1234, "t2i_MRR": 0.2, "i2t_median_rank": 4.5, "world_macro": 0.5, "n_images": 3}
    | {"intervals": {"i2t_R@1": (0.1, 0.15), "t2i_MRR": (0.19, 0.2105), "i2t_median_rank": (3, 6), "world_macro": (0, 1)}},
    "mine": {"i2t_R@1": 1.0, "t2i_MRR": 1.0, "i2t_median_rank": 1.0}
    | {"intervals": {"i2t_R@1": (1, 1), "t2i_MRR": (1, 1), "i2t_median_rank": (1, 1)}},
}  # fmt: skip


def lines(table: Table) -> list[str]:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return [" ".join(line.split()) for line in console.export_text().splitlines() if line.strip()]


def test_shares_in_percent_mrr_and_ranks_as_they_are():
    cells = interval_cells(MEASURED)
    assert cells["i2t_R@1"] == ["12.3 [10.0, 15.0]", "100.0 [100.0, 100.0]"]
    assert cells["t2i_MRR"] == ["0.200 [0.190, 0.210]", "1.000 [1.000, 1.000]"]
    assert cells["i2t_median_rank"] == ["4.5 [3, 6]", "1 [1, 1]"]
    assert cells["world_macro"][0] == "50.0 [0.0, 100.0]" and "n_images" not in cells


def test_a_metric_that_a_model_lacks_is_a_dash():
    (row,) = (line for line in lines(intervals_table(MEASURED)) if line.startswith("world macro"))
    assert row.split()[-1] == interval_cells(MEASURED)["world_macro"][1] and len(row.split()[-1]) == 1


def test_a_star_where_the_interval_leaves_out_nothing():
    def gain(value: float, low: float, high: float) -> dict[str, float]:
        return {"difference": value, "low": low, "high": high}

    found = {
        "mine": {
            "i2t_R@1": gain(0.1, 0.05, 0.15),
            "i2t_R@5": gain(-0.1, -0.2, 0.0),
            "t2i_MRR": gain(-0.01, -0.02, -0.005),
        }
    }
    head, _, *rows = lines(differences_table(found, "base"))
    assert head == "less base mine"
    assert rows == [
        "I2T R@1 +10.0 [+5.0, +15.0] *",
        "I2T R@5 -10.0 [-20.0, +0.0]",
        "T2I MRR -0.010 [-0.020, -0.005] *",
    ]


def test_counts_by_model_and_direction():
    counts = {"mine": {"i2t": {"repaired": 1200, "broken": 3}, "t2i": {"repaired": 0, "broken": 7}}}
    head, _, *rows = lines(changes_table(counts))
    assert (head, rows) == ("queries repaired broken", ["mine I2T 1,200 3", "mine T2I 0 7"])


def test_a_name_for_a_reader():
    assert label("i2t_R@1") == "I2T R@1" and label("vg_relation_macro_excl157") == "vg relation macro excl157"
