"""The result tables of a study.

R@K in percent, MRR as a fraction, mean ± standard deviation over seeds. A difference is the mean over seeds of the
method minus plain training of the same seed. Its 95% interval resamples the images, the same way for all seeds, and
the seeds: it says how far other images of the same kind and other seeds might move the number.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE, label
from repair_hf.evaluation.intervals import Draws, interval
from repair_hf.evaluation.judging import load_cases, resample_compositional
from repair_hf.evaluation.ranks import load_ranks, ranks_by_direction
from repair_hf.evaluation.retrieval import DIRECTIONS, KS, resample_retrieval
from repair_hf.study.cells import Measured
from repair_hf.study.cost_tables import R1, frame, published_results
from repair_hf.study.running import OTHER_PLAIN, PLAIN, Cells, Results
from repair_hf.study.setting import Setting

RETRIEVAL = tuple(f"{side}_{kind}" for side in DIRECTIONS for kind in (*(f"R@{k}" for k in KS), "MRR"))
SATURATED = 1.0  # points of R@1
BASE_HEADS = tuple(f"{label(name)} change from base" for name in R1)
# Dollars per LLM request: the paper's 1,000 cases of COCO30K at Gemini 2.5 Flash's list price, 3.32 requests each
PAPER_PRICE = 1.53 / 3320


class Differences:
    """Paired differences of cells, with confidence intervals."""

    def __init__(self, setting: Setting) -> None:
        self.setting, pairs = setting, setting.held_out(setting.split)
        self.draws, self.caption_image = Draws(len(pairs.images), setting.resamples), pairs.caption_image
        self._samples: dict[str, dict[str, np.ndarray]] = {}

    def between(self, cells: Sequence[Measured], plain: Sequence[Measured]) -> dict[str, dict[str, float]]:
        """Return metric -> `difference`, `low`, `high`, and `sd` over several seeds.

        Both sides are one cell of each seed, or one for all seeds.
        """
        count = max(len(cells), len(plain))
        sides = (list(side) * count if len(side) == 1 else side for side in (cells, plain))
        pairs = list(zip(*sides, strict=True))
        samples = [(self._of(one), self._of(other)) for one, other in pairs]
        found = {}
        for name in samples[0][0]:
            gains = [one.metrics[name] - other.metrics[name] for one, other in pairs]
            resampled = np.stack([one[name] - other[name] for one, other in samples], 1)  # (R, seeds)
            low, high = interval(np.take_along_axis(resampled, self._seeds(resampled.shape), 1).mean(1))
            found[name] = {"difference": statistics.fmean(gains), "low": low, "high": high}
            found[name]["sd"] = statistics.stdev(gains) if count > 1 else float("nan")
        return found

    def _seeds(self, shape: tuple[int, int]) -> np.ndarray:
        """Draw the seeds of each resample with replacement, (R, seeds); the same for every comparison."""
        return np.random.default_rng(1).integers(0, shape[1], shape)

    def _of(self, cell: Measured) -> dict[str, np.ndarray]:
        """Return metric -> its values in the resamples, (R,)."""
        if cell.cell.name not in self._samples:
            found = resample_retrieval(ranks_by_direction(load_ranks(cell.folder)), self.caption_image, self.draws)
            if benchmarks := self.setting.benchmarks(cell.cell.split):
                found |= resample_compositional(load_cases(cell.folder), benchmarks, self.setting.resamples)
            self._samples[cell.cell.name] = {name: found[name] for name in found if not name.endswith("median_rank")}
        return self._samples[cell.cell.name]


def regime(results: Results, differences: Differences) -> Finding:
    """Tabulate plain training of each length, and say whether longer training has something left to gain."""
    plain = results.rows[PLAIN].cells
    runs = {cells[0].knobs.epochs: cells for cells in (plain, *_plain_runs(results))}
    found = {epochs: differences.between(cells, [results.base]) for epochs, cells in sorted(runs.items())}
    rows = {"base": [_cell([results.base], name) for name in R1] + [NONE] * 2}
    for epochs, gain in found.items():
        name = f"{PLAIN}, {epochs:g} epochs" + (" (chosen)" if runs[epochs] == plain else "")
        rows[name] = [_cell(runs[epochs], metric) for metric in R1] + [_gain(gain[metric]) for metric in R1]
    chosen = plain[0].knobs.epochs
    more = [differences.between(cells, plain) for epochs, cells in runs.items() if epochs > chosen]
    best = {name: max((100 * gain[name]["difference"] for gain in more), default=0.0) for name in R1}
    short, long = (
        " and ".join(f"{gain:+.1f} ({metric[:3].upper()})" for metric, gain in each.items())
        for each in ({name: 100 * found[chosen][name]["difference"] for name in R1}, best)
    )
    note = (
        f"Plain training gains {short} points of R@1 over the base in {chosen:g} epochs. Longer plain training "
        f"adds at most {long}. "
    )
    note += (
        "It has little left to gain, so a comparison at equal compute is fair."
        if max(best.values()) < SATURATED
        else "It has something left to gain: look at the columns of equal compute."
    )
    data = _long({f"{PLAIN}, {epochs:g} epochs": gain for epochs, gain in found.items()})
    return Finding("regime", "The regime", note, frame(["", *map(label, R1), *BASE_HEADS], rows), data=data)


def _plain_runs(results: Results) -> list[Cells]:
    """Return the cells of plain training of every length."""
    found = [cells for row in results.rows.values() for cells in (row.same_steps, row.same_compute)]
    return [cells for cells in found if cells[0].cell.method == PLAIN]


def scores(results: Results, paper: str | None = None) -> Finding:
    """Tabulate R@1, R@5, R@10 and MRR of all methods."""
    published = published_results(paper) if paper else {}
    heads = ["method", *map(label, RETRIEVAL), *(f"paper: {label(name)}" for name in R1 if paper)]
    rows = _rows(results, RETRIEVAL)
    for name, cells in rows.items():
        figures = published.get(name, {})
        cells += [f"{float(figures[metric]):.2f}" if figures.get(metric) else NONE for metric in R1 if paper]
    metrics, seeds = results.base.metrics, len(results.rows[PLAIN].cells)
    note = f"{metrics['n_images']:,} images, {metrics['n_texts']:,} texts, {seeds} seed{'s' if seeds > 1 else ''}. "
    note += DEFINITIONS
    if paper:
        note += f" The columns `paper` hold the figures of RePair's paper for {paper}; they were not measured here."
    return Finding("scores", "Retrieval", note, frame(heads, rows), data=_by_seed(results))


def gains(results: Results, differences: Differences) -> Finding:
    """Tabulate each method's gain over the base and over plain training, compared in three ways."""
    heads = ["method", *BASE_HEADS, *(f"{label(name)}, equal steps" for name in R1), "steps for equal compute"]
    heads += [f"{label(name)}, {against}" for against in AGAINST[1:] for name in R1]
    rows: dict[str, list[str]] = {}
    data: dict[tuple[str, str], Any] = {}
    for name, row in results.rows.items():
        if row.cells == row.same_steps:  # plain training itself
            continue
        plain_name = row.same_steps[0].cell.method
        best = results.rows[plain_name].cells
        steps, *others = (differences.between(row.cells, other) for other in (row.same_steps, row.same_compute, best))
        data |= {(name, against): found for against, found in zip(AGAINST, (steps, *others), strict=True)}
        if plain_name == OTHER_PLAIN:
            over_base = [NONE] * len(R1)  # the base is not the retriever that was trained
        else:
            over_base = _gains([differences.between(row.cells, [results.base])])
        rows[name] = [*over_base, *_gains([steps]), f"{row.ratio:g}x", *_gains(others)]
    note = (
        "Gain in points of R@1, with the 95% interval over images and seeds (*: excludes 0). Equal steps: as many "
        "steps of plain training. Equal compute: as many steps as encode the method's images or captions, whichever "
        "is more. Best against best: plain training with the length and rate that are best for it. These are "
        f"{len(rows) * len(AGAINST) * len(R1)} comparisons with plain training; one in twenty excludes 0 by chance."
    )
    return Finding(
        "gains", "Against plain training", note, frame(heads, rows), data=_long(data, ["method", "against"])
    )


def summary(retrieval: Finding, gained: Finding, took: Finding) -> Finding:
    """Tabulate R@1, gains and the cost of the data of all methods, from the findings of those sections."""
    assert retrieval.table is not None and gained.table is not None and took.table is not None
    table = retrieval.table[["method", *map(label, R1)]]
    shown = [f"{label(name)}, {against}" for against in AGAINST for name in R1]
    table = table.merge(gained.table[["method", *shown]], how="left", on="method")
    table = table.merge(took.table[["method", "samples", "LLM calls", "images"]], how="left", on="method")
    note = (
        "R@1 in %, ± standard deviation over seeds; gain over plain training in points of R@1, with the 95% interval "
        "over images and seeds (*: excludes 0); cost of the data. The sections below have the details."
    )
    return Finding("summary", "In one table", note, table.fillna(NONE))


def value(results: Results, differences: Differences) -> Finding | None:
    """Tabulate each method's gain per thousand samples, per thousand calls and per dollar."""
    units = {"made": 1000, "llm_calls": 1000, "image_calls": 1000, "dollars": 1, "paper_dollars": 1}
    rows, data = {}, []
    for name, row in results.rows.items():
        if not row.cells[0].made:
            continue
        found, took = differences.between(row.cells, row.same_steps), row.cost
        gain = 100 * statistics.fmean(found[metric]["difference"] for metric in R1)
        took |= {"paper_dollars": took["llm_calls"] and took["llm_calls"] * PAPER_PRICE}
        each = {unit: gain * many / took[unit] if took[unit] else None for unit, many in units.items()}
        data.append({"method": name, "gain": gain, **each})
        rows[name] = [
            f"{took['made']:,}",
            f"{gain:+.2f}",
            *(NONE if number is None else f"{number:+.3f}" for number in each.values()),
        ]
    if not rows:
        return None
    heads = ["method", "paid for", "points", "per 1,000 paid for", "per 1,000 LLM calls", "per 1,000 images"]
    heads += ["per dollar", "per dollar at the paper's price"]
    note = (
        "Gain in points of R@1 (mean of both directions) over plain training at equal steps, divided by the cost of "
        "the data with rejects. Models on this machine cost no dollars; the paper's price is $0.00046 per LLM "
        "request, and nothing for images of a local editor."
    )
    return Finding("value", "What a sample buys", note, frame(heads, rows), data=pd.DataFrame(data))


def compositional(results: Results, differences: Differences) -> Finding | None:
    """Tabulate the compositional benchmarks, if there are any."""
    names = [name for name in differences.between([results.base], [results.base]) if name not in RETRIEVAL]
    if not names:
        return None
    rows = _rows(results, names)
    gains = {name: differences.between(row.cells, row.same_steps) for name, row in results.rows.items()}
    data = {name: {metric: found[metric] for metric in names} for name, found in gains.items()}
    note = "Accuracy in percent. The CSV has the paired differences from plain training at equal steps."
    return Finding(
        "compositional", "Almost right captions", note, frame(["method", *map(label, names)], rows), data=_long(data)
    )


def name_of_point(point: float) -> str:
    """Name a share of the samples, or a number of them above 1."""
    return "all samples" if point == 1 else f"{point:,.0f} samples" if point > 1 else f"{point:.0%} of the samples"


AGAINST = ("equal steps", "equal compute", "best against best")
DEFINITIONS = (
    "R@K in %: an annotated positive is among the top K. MRR: mean of 1 / rank of the best one. Ties are ranked "
    "pessimistically. ±: standard deviation over seeds."
)


def _rows(results: Results, metrics: Sequence[str]) -> dict[str, list[str]]:
    """Return the metrics of the base and of each method as text."""
    cells = {"base": (results.base,)} | {name: row.cells for name, row in results.rows.items()}
    return {name: [_cell(each, metric) for metric in metrics] for name, each in cells.items()}


def _cell(cells: Sequence[Measured], name: str) -> str:
    scale, digits = (1, 3) if name.endswith("MRR") else (100, 1)
    values = [scale * cell.metrics[name] for cell in cells]
    spread = f" ±{statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def _gains(found: Sequence[Mapping[str, Mapping[str, float]]]) -> list[str]:
    return [_gain(each[metric]) for each in found for metric in R1]


def _gain(bounds: Mapping[str, float]) -> str:
    star = "" if bounds["low"] <= 0 <= bounds["high"] else " *"
    return f"{100 * bounds['difference']:+.1f} [{100 * bounds['low']:+.1f}, {100 * bounds['high']:+.1f}]{star}"


def _long(found: Mapping[Any, Mapping[str, Mapping[str, float]]], heads: Sequence[str] = ("method",)) -> pd.DataFrame:
    """Build a table with one row for each name and metric."""
    return pd.DataFrame(
        [
            dict(zip(heads, name if isinstance(name, tuple) else (name,), strict=True)) | {"metric": metric, **bounds}
            for name, metrics in found.items()
            for metric, bounds in metrics.items()
        ]
    )


def _by_seed(results: Results) -> pd.DataFrame:
    """Build a table of all metrics of all cells of the reported split."""
    named: dict[str, Cells] = {"base": (results.base,)}
    for name, row in results.rows.items():
        named |= {name: row.cells, f"{name}, plain at equal steps": row.same_steps}
        named |= {f"{name}, plain at equal compute": row.same_compute} if row.ratio > 1 else {}
        points = results.sweep.get(name, {})
        named |= {f"{name}, {name_of_point(point)}": cells for point, cells in points.items() if point != 1}
    rows = []
    for name, cells in named.items():
        for cell in cells:
            took = {
                kind: cell.training.get(kind) for kind in ("steps", "seconds", "images_per_step", "texts_per_step")
            }
            rows.append({"method": name, "seed": cell.cell.seed, **cell.metrics, **took})
    return pd.DataFrame(rows)
