"""The columns of a study's tables: measures, gains with their intervals, what was paid, and values of a row."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from repair_hf.analysis.tables import NONE
from repair_hf.evaluation.retrieval import DIRECTIONS, query_values, random_metrics
from repair_hf.study.methods import PAPER, PLAIN
from repair_hf.study.results import BASE, CONTRAST, Cell, Row
from repair_hf.study.statistics import MEASURES, Line, Lines, name_of

GAINED = tuple(f"{measure}, gain" for measure in (*MEASURES, "score"))
FORMS = {"edits_trained": ".0%", "learning_rate": "g", "epochs": "g", "items_per_step": ",.0f", "seconds": ",.0f"}
RANDOM = "random"  # the line of a retriever that ranks at random
PRICES = (10.29 / 27_100, 0.039)  # US dollars of an answer and of an image: docs/synthesis.md says of which models


def _ranking_measures(ranks: np.ndarray) -> dict[str, float]:
    """Return the measures of the ranks of the best answers that stand beside R@1."""
    values = query_values(ranks, (5, 10))
    return {name: float(each.mean()) for name, each in values.items()}


RANKING = tuple(_ranking_measures(np.ones(1)))


def cell_of(column: str, line: Line, lines: Lines) -> str:
    """Format a cell: both means of a measure, such as `61.9/55.1`, a gain of a measure, or a value of the row."""
    measure, _, reference = column.partition(", ")
    if reference:
        other = lines.get(_reference(line.cell, reference))
        if other is None or other is line or line.cell.method == BASE:
            return NONE
        return str(line.gains(other).get(measure, NONE))
    if measure in RANKING:
        by_seed = [[_ranking_measures(np.array(row[f"{way}_ranks"])) for row in line.rows] for way in DIRECTIONS]
        return _formatted(measure, [statistics.fmean(seed[measure] for seed in seeds) for seeds in by_seed])
    if measure in MEASURES:
        parts = [part for part in MEASURES[measure] if part in line.row.right]
        return _formatted(measure, [statistics.fmean(row.right[part].mean() for row in line.rows) for part in parts])
    if measure in ("dollars", "dollars a point"):
        return _dollars(line, lines, measure)
    value = None if line.cell.method == BASE else line.row[measure]
    return NONE if value is None else f"{value:{FORMS.get(measure, ',')}}"


def _formatted(measure: str, means: Sequence[float]) -> str:
    """Format the means of both directions, or of both kinds of cases."""
    return "/".join(f"{mean:.4f}" if measure == "MRR" else f"{100 * mean:.1f}" for mean in means) or NONE


def _reference(cell: Cell, reference: str) -> str:
    """Return the name of the line that a gain is over: one of the same blend."""
    if reference == "from the drawn":
        return name_of(replace(cell, budget=f"share={cell.budget.partition('=')[2]}"))
    method = {"gain": PLAIN, "from the paper's method": PAPER}[reference]
    return name_of(replace(cell, method=method, budget="all"))


def dollars_of(row: Row) -> float | None:
    """Return what a row's data cost at `PRICES`; None if they cost nothing, or it is not known what was asked."""
    counts = [row["llm_calls"], row["images"]]
    if None in counts or not any(counts):
        return None
    return sum(count * price for count, price in zip(counts, PRICES, strict=True))


def _dollars(line: Line, lines: Lines, measure: str) -> str:
    """Format what the data cost, in all or for each point of R@1 over plain training of the same weight."""
    dollars = dollars_of(line.row)
    if dollars is None or measure == "dollars":
        return NONE if dollars is None else f"{dollars:,.2f}"
    gain = 100 * line.gains(lines[_reference(line.cell, "gain")])["R@1"].mean
    return f"{dollars / gain:,.2f}" if gain > 0 else NONE


def random_cell(column: str, base: Row) -> str:
    """Format what a retriever that ranks at random is expected to score."""
    if column == "contrast":
        return _formatted(column, [0.5 for name in CONTRAST if base[name] is not None])
    kind = "kept_" if column == "kept" else ""
    if column not in ("R@1", "kept", *RANKING) or base[f"{kind}caption_image"] is None:
        return NONE
    metrics = random_metrics(np.array(base[f"{kind}caption_image"]), len(base[f"{kind}i2t_ranks"]))
    name = "R@1" if column == "kept" else column
    return _formatted(column, [metrics[f"{way}_{name}"] for way in DIRECTIONS])
