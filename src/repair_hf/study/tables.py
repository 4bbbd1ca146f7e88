"""The result tables of a study.

R@K in percent, MRR as a fraction, mean ± standard deviation over seeds. A difference is the mean over seeds of the
method minus plain training of the same seed. Its 95% interval resamples the images, the same way for all seeds: it
says how far other images of the same kind might move the number. The standard deviation says so for other seeds.
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
from repair_hf.study.running import LONGER, PLAIN, Results
from repair_hf.study.setting import Setting

RETRIEVAL = tuple(f"{side}_{kind}" for side in DIRECTIONS for kind in (*(f"R@{k}" for k in KS), "MRR"))
SATURATED = 1.0  # points of R@1


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
            low, high = interval(np.mean([one[name] - other[name] for one, other in samples], axis=0))
            found[name] = {"difference": statistics.fmean(gains), "low": low, "high": high}
            found[name]["sd"] = statistics.stdev(gains) if count > 1 else float("nan")
        return found

    def _of(self, cell: Measured) -> dict[str, np.ndarray]:
        """Return metric -> its values in the resamples, (R,)."""
        if cell.cell.name not in self._samples:
            found = resample_retrieval(ranks_by_direction(load_ranks(cell.folder)), self.caption_image, self.draws)
            if benchmarks := self.setting.benchmarks(cell.cell.split):
                found |= resample_compositional(load_cases(cell.folder), benchmarks, self.setting.resamples)
            self._samples[cell.cell.name] = {name: found[name] for name in found if not name.endswith("median_rank")}
        return self._samples[cell.cell.name]


def regime(results: Results, differences: Differences) -> Finding:
    """Check that plain training has little left to gain; otherwise the other tables say little."""
    plain = results.rows[PLAIN].cells
    runs = {PLAIN: plain, f"{PLAIN}, {LONGER} times the steps": results.longer}
    rows = {"base": [_cell([results.base], name) for name in R1] + [NONE] * 2}
    found = {name: differences.between(cells, [results.base]) for name, cells in runs.items()}
    for name, cells in runs.items():
        rows[name] = [_cell(cells, metric) for metric in R1] + [_gain(found[name][metric]) for metric in R1]
    gains = {name: [100 * of[metric]["difference"] for metric in R1] for name, of in found.items()}
    short, long = (
        " and ".join(f"{gain:+.1f} ({metric[:3].upper()})" for gain, metric in zip(each, R1, strict=True))
        for each in gains.values()
    )
    holds = max(map(max, gains.values())) < SATURATED
    verdict = (
        f"Both directions gain less than {SATURATED:g} point: plain training is saturated, and a comparison says "
        "something."
        if holds
        else f"A direction gains {SATURATED:g} point or more: THE CONDITION DOES NOT HOLD. Longer plain training "
        "reaches part of a method's gains below; look at the columns of equal compute."
    )
    heads = ["", *map(label, R1), *(f"{label(name)} less base" for name in R1)]
    return Finding(
        "regime",
        "The regime",
        f"Plain training gains {short} points of R@1 over the base; with {LONGER} times the steps, {long}. {verdict}",
        frame(heads, rows),
        data=_long({name: found[name] for name in runs}),
    )


def scores(results: Results, paper: str | None = None) -> Finding:
    """Tabulate R@1, R@5, R@10 and MRR of all methods."""
    published = published_results(paper) if paper else {}
    heads = ["method", *map(label, RETRIEVAL), *(f"paper: {label(name)}" for name in R1 if paper)]
    rows = _rows(results, RETRIEVAL)
    for name, cells in rows.items():
        figures = published.get(name, {})
        cells += [f"{float(figures[metric]):.2f}" if figures.get(metric) else NONE for metric in R1 if paper]
    metrics, seeds = results.base.metrics, len(results.longer)
    note = f"{metrics['n_images']:,} images, {metrics['n_texts']:,} texts, {seeds} seed{'s' if seeds > 1 else ''}. "
    note += DEFINITIONS
    if paper:
        note += f" The columns `paper` hold the figures of RePair's paper for {paper}; they were not measured here."
    return Finding("scores", "Retrieval", note, frame(heads, rows), data=_by_seed(results))


def gains(results: Results, differences: Differences) -> Finding:
    """Tabulate each method's gain over plain training at equal steps and at equal compute."""
    heads = ["method", *(f"{label(name)}, equal steps" for name in R1), "steps for equal compute"]
    heads += [f"{label(name)}, equal compute" for name in R1]
    rows: dict[str, list[str]] = {}
    data: dict[tuple[str, str], Any] = {}
    for name, row in results.rows.items():
        if row.cells == row.same_steps:  # plain training itself
            continue
        steps, compute = (differences.between(row.cells, other) for other in (row.same_steps, row.same_compute))
        data |= {(name, "equal steps"): steps, (name, "equal compute"): compute}
        rows[name] = [_gain(steps[m]) for m in R1] + [f"{row.ratio:g}x"] + [_gain(compute[m]) for m in R1]
    note = (
        "Gain in points of R@1 over plain training, with the 95% interval over images (*: excludes 0, as one in "
        "twenty does by chance). The interval does not include the variation over seeds (`sd` in the CSV). Equal "
        "steps: as many steps of plain training. Equal compute: as many steps as encode the method's images or "
        "captions, whichever is more."
    )
    return Finding(
        "gains", "Against plain training", note, frame(heads, rows), data=_long(data, ["method", "against"])
    )


def summary(retrieval: Finding, gained: Finding, took: Finding) -> Finding:
    """Tabulate R@1, gains and the cost of the data of all methods, from the findings of those sections."""
    assert retrieval.table is not None and gained.table is not None and took.table is not None
    table = retrieval.table[["method", *map(label, R1)]]
    table = table.merge(gained.table.drop(columns="steps for equal compute"), how="left", on="method")
    table = table.merge(took.table[["method", "samples", "LLM calls", "images"]], how="left", on="method")
    note = (
        "R@1 in %, ± standard deviation over seeds; gain over plain training in points of R@1, with the 95% interval "
        "over images (*: excludes 0); cost of the data. The sections below have the details."
    )
    return Finding("summary", "In one table", note, table.fillna(NONE))


def value(results: Results, differences: Differences) -> Finding | None:
    """Tabulate each method's gain per thousand samples, per thousand calls and per dollar."""
    units = {"samples": 1000, "llm_calls": 1000, "image_calls": 1000, "dollars": 1}
    rows, data = {}, []
    for name, row in results.rows.items():
        if not row.made:
            continue
        found, took = differences.between(row.cells, row.same_steps), row.cost
        gain = 100 * statistics.fmean(found[metric]["difference"] for metric in R1)
        each = {unit: gain * many / took[unit] if took[unit] else None for unit, many in units.items()}
        data.append({"method": name, "gain": gain, **each})
        rows[name] = [f"{gain:+.2f}", *(NONE if number is None else f"{number:+.3f}" for number in each.values())]
    if not rows:
        return None
    heads = ["method", "points", "per 1,000 samples", "per 1,000 LLM calls", "per 1,000 images", "per dollar"]
    note = (
        "Gain in points of R@1 (mean of both directions) over plain training at equal steps, divided by the cost of "
        "the data with rejects. Models on this machine cost no dollars."
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


def truth(results: Results) -> Finding | None:
    """Tabulate how many of the first answers are true, annotated or not, if that is known."""
    names = [name for name in results.base.metrics if "_true@" in name]
    if not names:
        return None
    rows = _rows(results, names)
    note = (
        "Percentage of the first K answers that are true by what the scenes show. R@K counts a true answer that is "
        "annotated for another query as wrong."
    )
    table, data = frame(["method", *map(label, names)], rows), _by_seed(results)[["method", "seed", *names]]
    return Finding("truth", "By the scenes", note, table, data=data)


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
    named = {"base": (results.base,), f"{PLAIN}-{LONGER}x": results.longer}
    for name, row in results.rows.items():
        named |= {name: row.cells, f"{name}, plain at equal steps": row.same_steps}
        named |= {f"{name}, plain at equal compute": row.same_compute} if row.ratio > 1 else {}
        shares = results.sweep.get(name, {})
        named |= {f"{name}, {share:.0%} of the samples": cells for share, cells in shares.items() if share < 1}
    rows = []
    for name, cells in named.items():
        for cell in cells:
            took = {
                kind: cell.training.get(kind) for kind in ("steps", "seconds", "images_per_step", "texts_per_step")
            }
            rows.append({"method": name, "seed": cell.cell.seed, **cell.metrics, **took})
    return pd.DataFrame(rows)
