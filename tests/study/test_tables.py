"""Differences against a slow reference; what the tables say of made-up results."""

import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from repair_hf.evaluation.intervals import Draws
from repair_hf.evaluation.ranks import COLUMNS, load_ranks, ranks_by_direction, save_ranks
from repair_hf.evaluation.retrieval import retrieval_metrics
from repair_hf.pairs.dataset import load_pairs
from repair_hf.study.cells import Cell, Measured
from repair_hf.study.cost_tables import overhead, published_results, training, tuning
from repair_hf.study.plots import draw_gains, draw_sweep
from repair_hf.study.running import MethodResult, Results
from repair_hf.study.setting import Knobs
from repair_hf.study.spending import Cost, total_cost
from repair_hf.study.tables import Differences, gains, regime, scores, summary, value
from repair_hf.study.tuning import Tuned

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")  # 12 images, 24 captions


@pytest.fixture
def differences(pairs):
    return Differences(
        SimpleNamespace(held_out=lambda split: pairs, split="test", resamples=300, benchmarks=lambda split: [])
    )


@pytest.fixture
def make_cell(tmp_path):
    """A cell whose queries find their answer first with some probability."""

    def make(name: str, seed: int, right: float, epochs: float = 1.5, **measured: float) -> Measured:
        draw = np.random.default_rng([seed, len(name), round(100 * right)])
        ranks = {side: np.where(draw.random(n) < right, 1, 7) for side, n in (("t2i", 24), ("i2t", 12))}
        cell = Cell(name, "test", seed, Knobs(1e-4, epochs))
        folder = tmp_path / cell.name / f"{right}"
        folder.mkdir(parents=True, exist_ok=True)
        directions = ["t2i"] * 24 + ["i2t"] * 12
        known = {"direction": directions, "gt_rank": np.concatenate(list(ranks.values()))}
        save_ranks(pa.table(dict.fromkeys(COLUMNS, [None] * 36) | known), folder)
        metrics = retrieval_metrics({"i2t": ranks["i2t"], "t2i": ranks["t2i"]}) | {"n_images": 12, "n_texts": 24}
        took = {"steps": 10, "seconds": 2.0, "images_per_step": 8.0, "texts_per_step": 8.0} | measured
        return Measured(cell, folder, metrics, took)

    return make


@pytest.fixture
def results(make_cell):
    """Plain training, and a method that is better; plain training of three times the steps gains little, or much."""

    def make(longer: float = 0.5, short: float = 0.4) -> Results:
        base = make_cell("base", 0, 0.5)
        plain, better = (
            tuple(make_cell(name, seed, right) for seed in SEEDS)
            for name, right in (("vanilla", short), ("repair", 0.95))
        )
        made = {"records": Cost(3, 20, 9, 5.0, 3.0, None)}
        better = tuple(replace(cell, made=made) for cell in better)
        as_long = tuple(make_cell("vanilla", seed, longer, epochs=3.0) for seed in SEEDS)
        rows = {
            "vanilla": MethodResult(plain, plain, plain, 1.0),
            "repair": MethodResult(better, plain, as_long, 2.0),
        }
        sweep = {"repair": {0.5: plain, 1.0: better}}
        choice, of_length = Tuned(Knobs(1e-4, 1.5), plain[:1]), Tuned(Knobs(1e-4, 1.5), plain)
        return Results(
            base,
            rows,
            sweep,
            {"vanilla": choice, "repair": Tuned(Knobs(1e-4, 1.5))},
            {},
            {("vanilla", 3.0): of_length},
        )

    return make


def test_differences_equal_a_slow_reference(make_cell, differences, pairs):
    """The mean of paired differences, in resamples of the images, each with its captions, and of the seeds."""
    one, other = ([make_cell(name, seed, right) for seed in SEEDS] for name, right in (("a", 0.9), ("b", 0.4)))
    found = differences.between(one, other)["t2i_R@1"]
    ranks = [[ranks_by_direction(load_ranks(cell.folder))["t2i"] for cell in cells] for cells in (one, other)]
    times = Draws(12, 300)._times
    means = []
    drawn_seeds = np.random.default_rng(1).integers(0, 2, (300, 2))
    for drawn, some in zip(times, drawn_seeds, strict=True):
        rows = [caption for image in np.repeat(np.arange(12), drawn) for caption in pairs.captions_of(int(image))]
        means.append(np.mean([np.mean(ranks[0][s][rows] == 1) - np.mean(ranks[1][s][rows] == 1) for s in some]))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    gaps = [a.metrics["t2i_R@1"] - b.metrics["t2i_R@1"] for a, b in zip(one, other, strict=True)]
    assert found["difference"] == pytest.approx(statistics.mean(gaps))
    assert found["sd"] == pytest.approx(statistics.stdev(gaps))


def test_one_cell_stands_for_all_seeds(make_cell, differences):
    base, cells = make_cell("base", 0, 0.5), [make_cell("a", seed, 0.9) for seed in SEEDS]
    assert differences.between(cells, [base]) == differences.between(cells, [base, base])
    for found in differences.between([base], [base]).values():
        assert found["difference"] == found["low"] == found["high"] == 0


@pytest.mark.parametrize("longer, is_fair", [(0.0, True), (1.0, False)])
def test_regime_says_whether_plain_training_is_saturated(longer, is_fair, results, differences):
    found = regime(results(longer), differences)
    assert ("is fair" in found.note, "look at the columns of equal compute" in found.note) == (is_fair, not is_fair)
    assert list(found.table[""]) == ["base", "vanilla, 1.5 epochs (chosen)", "vanilla, 3 epochs"]


def test_csv_of_the_scores_and_of_the_choices_hold_every_training(results):
    found = results()
    names = set(scores(found).data["method"])
    assert names >= {"base", "repair", "repair, plain at equal steps", "repair, plain at equal compute"}
    assert "repair, 50% of the samples" in names
    tried = tuning(found)
    assert list(tried.data["method"]) == ["vanilla"] + ["vanilla, 3 epochs"] * len(SEEDS)
    assert tried.note.startswith(f"{1 + len(SEEDS)} trainings")


def test_gains_have_both_comparisons_and_leave_plain_training_out(results, differences):
    found = gains(results(), differences)
    assert list(found.table["method"]) == ["repair"] and found.table["steps for equal compute"][0] == "2x"
    assert set(found.data["against"]) == {"equal steps", "equal compute", "best against best"}
    assert "6 comparisons" in found.note and len(found.table.columns) == 10
    row = found.data[(found.data["metric"] == "t2i_R@1") & (found.data["against"] == "equal steps")].iloc[0]
    shown = found.table["T2I R@1, equal steps"][0]
    assert shown.startswith(f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}") and shown.endswith("*")
    assert draw_gains(found).figure is not None


def test_the_papers_figures_stand_in_columns_of_their_own(results):
    found = scores(results(), "coco30k")
    assert [name for name in found.table.columns if name.startswith("paper")] == ["paper: I2T R@1", "paper: T2I R@1"]
    row = found.table.set_index("method").loc["repair"]
    assert (row["paper: I2T R@1"], row["paper: T2I R@1"]) == ("62.64", "46.11")
    assert found.table.set_index("method").loc["base", "paper: I2T R@1"] == "–"
    assert not any("paper" in name for name in scores(results()).table.columns)
    assert not any("paper" in name for name in found.data.columns)


def test_costs_add_parts_up_and_divide_by_repair(results):
    both = total_cost([Cost(10, 12, 5, 1.0, 0.5, 1.0), Cost(30, 90, 15, 3.0, 0.5, 1.0)])
    assert (both["samples"], both["llm_calls"], both["image_calls"], both["dollars"]) == (40, 102, 20, 2.0)
    assert both["llm_per_sample"] == 2.5 and both["images_per_sample"] == 0.5
    found = overhead(results()).table.set_index("method")
    assert found.loc["repair", "LLM x repair"] == "1.00" and found.loc["vanilla", "LLM x repair"] == "0.00"
    assert found.loc["repair", "dollars"] == "–"  # no list price is known
    unknown = total_cost([Cost(10, 12, 5, 1.0, 0.5, 1.0), Cost(3, None, None, 5.0, 3.0, None)])
    assert [unknown[name] for name in ("samples", "llm_calls", "image_calls", "dollars")] == [13, None, None, None]
    found = training(results()).data.set_index("method")
    assert found.loc["vanilla", "encodes"] == 10 * (8 + 8)


def test_value_divides_the_gain_by_what_the_data_took(results, differences):
    found = value(results(), differences)
    gap = gains(results(), differences).data
    gap = gap[(gap["against"] == "equal steps") & gap["metric"].isin(["i2t_R@1", "t2i_R@1"])]["difference"].mean()
    row = found.data.set_index("method").loc["repair"]
    assert list(found.table["method"]) == ["repair"] and row["gain"] == pytest.approx(100 * gap)
    assert list(row[["made", "llm_calls"]]) == pytest.approx([row["gain"] * 1000 / 3, row["gain"] * 50])
    assert found.table["per dollar"][0] == "–"


def test_what_nobody_counted_stands_as_a_dash(results, differences):
    """Records from the Hub do not say what they cost."""
    made = results()
    cells = tuple(
        replace(cell, made={"records": Cost(3, None, None, 5.0, 3.0, None)}) for cell in made.rows["repair"].cells
    )
    made = replace(made, rows=made.rows | {"repair": replace(made.rows["repair"], cells=cells)})
    row = overhead(made).table.set_index("method").loc["repair"]
    assert {row[name] for name in ("LLM calls", "images", "LLM x repair", "dollars")} == {"–"}
    row = value(made, differences).table.set_index("method").loc["repair"]
    assert {row[name] for name in row.index if "calls" in name or "dollar" in name} == {"–"}


def test_sweep_has_every_share_and_every_number_of_samples_that_there_is(results):
    made = results()
    sweep = {"repair": made.sweep["repair"] | {2: made.rows["vanilla"].cells}, "simclr": made.sweep["repair"]}
    found = draw_sweep(replace(made, rows=made.rows | {"simclr": made.rows["repair"]}, sweep=sweep))
    heads = ["method", "50% of the samples", "2 samples", "all samples"]
    assert list(found.table.columns) == heads and found.table.set_index("method").loc["simclr", "2 samples"] == "–"
    assert found.data[found.data["method"] == "repair"]["samples"].tolist() == [2, 2, 3, 3, 2, 2]


def test_papers_figures_are_those_that_it_repeats_itself():
    """Its table of overhead counts per sample what its text says; samples add up."""
    for dataset in ("flickr30k", "coco30k"):
        rows = published_results(dataset)
        kinds = ("samples", "llm_calls", "image_calls")
        names = ("repair-i2t", "repair-t2i", "repair")
        each = {name: [int(rows[name][kind] or 0) for kind in kinds] for name in names}
        assert each["repair-i2t"] == [47, 5 * 47, 0] and each["repair-t2i"] == [60, 2 * 60, 3 * 60]
        assert each["repair"] == [a + b for a, b in zip(each["repair-i2t"], each["repair-t2i"], strict=True)]
        for side in ("i2t", "t2i"):
            best = max(rows, key=lambda name, rows=rows, side=side: float(rows[name][f"{side}_R@1"]))
            assert best in {"repair", "other-backbone", "repair-2-rounds"}


def test_summary_holds_the_cells_of_the_other_tables(results, differences):
    retrieval, gained, took = scores(results()), gains(results(), differences), overhead(results())
    table = summary(retrieval, gained, took).table.set_index("method")
    assert list(table.index) == ["base", "vanilla", "repair"]
    assert table.loc["repair", "T2I R@1"] == retrieval.table.set_index("method").loc["repair", "T2I R@1"]
    gain = gained.table.set_index("method").loc["repair", "I2T R@1, equal compute"]
    assert table.loc["repair", "I2T R@1, equal compute"] == gain
    assert table.loc["repair", "samples"] == "3"
    assert table.loc["vanilla", "samples"] == "0" and set(table.loc["base"].iloc[2:]) == {"–"}
