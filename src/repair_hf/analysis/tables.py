"""Tables for a terminal and in Markdown: of any rows, of metrics by method, and of models with confidence intervals.

In tables of metrics, shares are percent with one decimal, MRR has three decimals.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from repair_hf.runtime.options import UserError

SIDES = {"i2t": "I2T", "t2i": "T2I"}
NONE = "–"
WIDTH = 78  # of a line; in a wider table of intervals the brackets go below the numbers


def metrics_table(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> tuple[Table, str]:
    """Compare methods: mean ± standard deviation over seeds.

    Args:
        rows: Method -> one dict of metrics per seed, in the order of the table; with `seconds` and `steps` if trained.

    Returns:
        A table for `rich.console.Console.print`, and Markdown.

    Raises:
        UserError: If there is nothing to show, or the methods were measured on different data.
    """
    if not rows or not all(rows.values()):
        raise UserError(
            f"There are no metrics of {[name for name in rows if not rows[name]] or 'any method'} to show."
        )
    metrics = _metric_names(rows)
    footer = _footer(rows)
    heads = ["method", *(label(name) for name in metrics), "seconds", "steps"]
    body = [
        [method, *(_cell(seeds, name) for name in [*metrics, "seconds", "steps"])] for method, seeds in rows.items()
    ]
    # Narrow enough for 80 columns: one space between columns, the spread below its mean, nothing cut off.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, caption=footer, caption_justify="left")
    for column, head in enumerate(heads):
        name = "sec" if head == "seconds" else head.replace(" ", "\n")
        table.add_column(name, justify="right" if column else "left", overflow="fold", no_wrap=not column)
    for cells in body:
        table.add_row(*(text.replace(" ±", "\n±") for text in cells))
    return table, markdown(heads, body, footer=footer)


def _metric_names(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """Names of the metrics that all methods have: R@K by K, then MRR, for each direction."""
    shared = set.intersection(*(set(metrics) for seeds in rows.values() for metrics in seeds))
    depths = sorted(int(found[1]) for name in shared if (found := re.fullmatch(r"i2t_R@(\d+)", name)))
    return [f"{side}_{kind}" for side in SIDES for kind in (*(f"R@{depth}" for depth in depths), "MRR")]


def _footer(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    sizes = {method: {(m["n_images"], m["n_texts"]) for m in seeds} for method, seeds in rows.items()}
    if len(set.union(*sizes.values())) > 1:
        listed = "; ".join(f"{method} {sorted(size)}" for method, size in sizes.items())
        raise UserError(
            f"The methods were measured on different data (images, texts): {listed}. Evaluate all on one split."
        )
    images, texts = next(iter(sizes.values())).pop()
    seeds = sorted({len(seeds) for seeds in rows.values()} - {1})
    spread = f" ±: standard deviation over {' or '.join(map(str, seeds))} seeds." if seeds else ""
    return (
        f"{images:,} images, {texts:,} texts. R@K in %: an annotated positive is in the top K. "
        f"MRR: mean of 1 / rank of the best positive. Ties are ranked pessimistically.{spread}"
    )


def _cell(seeds: Sequence[Mapping[str, float]], name: str) -> str:
    if not all(name in metrics for metrics in seeds):  # the base has no seconds and no steps
        return NONE
    scale, digits = (100, 1) if "R@" in name else (1, 3 if name.endswith("MRR") else 0)
    values = [scale * metrics[name] for metrics in seeds]
    mean = f"{statistics.fmean(values):,.{digits}f}"
    is_constant = name == "steps" and len(set(values)) == 1
    return mean if len(values) == 1 or is_constant else f"{mean} ±{statistics.stdev(values):,.{digits}f}"


def terminal_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, labels: int = 1) -> Table:
    """Build a table for a terminal; the first `labels` columns are left-aligned, the others right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < labels else "right", overflow="fold", no_wrap=place < labels)
    for cells in rows:
        table.add_row(*cells)
    return table


def markdown(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, labels: int = 1, footer: str = "") -> str:
    """Write a table in Markdown, with words in the first `labels` columns. Put untrusted text through `code` first."""
    rule = ["---" if place < labels else "---:" for place in range(len(heads))]
    lines = [heads, rule, *([cell(value) for value in row] for row in rows)]
    body = [f"| {' | '.join(map(_in_one_cell, line))} |" for line in lines]
    return "\n".join([*body, "", footer]).rstrip()


def _in_one_cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")  # a bar ends a cell even inside a code span


def cell(value: object) -> str:
    """Format a value of a table."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return NONE
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) > 1 else f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def intervals_table(measured: Mapping[str, Mapping[str, Any]]) -> Table:
    """Build the table of `repair-hf evaluate`: a row per metric with an interval, a column per model."""
    return _intervals(["", *measured], {label(name): cells for name, cells in interval_cells(measured).items()})


def interval_cells(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Format each metric with its interval for each model, `78.0 [76.2, 79.8]`; a dash if the model lacks it."""
    names = list(dict.fromkeys(name for metrics in measured.values() for name in metrics["intervals"]))
    return {
        name: [
            _interval(name, metrics[name], *metrics["intervals"][name], sign="")
            if name in metrics["intervals"]
            else NONE
            for metrics in measured.values()
        ]
        for name in names
    }


def differences_table(found: Mapping[str, Mapping[str, Mapping[str, float]]], head: str) -> Table:
    """Build a table of paired differences: comparison -> metric -> `difference`, `low`, `high`, below a heading."""
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    rows = {label(name): [difference_cell(name, one.get(name)) for one in found.values()] for name in names}
    return _intervals([head, *found], rows)


def changes_table(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Table:
    """Build the table of repaired and broken queries and cases: model -> direction or metric -> change -> count."""
    kinds = list(next(iter(next(iter(counts.values())).values())))
    rows = {
        f"{model} {SIDES.get(name) or label(name)}": [f"{found[kind]:,}" if kind in found else NONE for kind in kinds]
        for model, names in counts.items()
        for name, found in names.items()
    }
    return _intervals(["queries", *kinds], rows)


def label(name: str) -> str:
    """Format the name of a metric: `i2t_R@1` becomes `I2T R@1`, and `near_misses_i2t_truth` becomes `I2T truth`."""
    side, _, kind = name.removeprefix("near_misses_").partition("_")
    return f"{SIDES[side]} {kind.replace('_', ' ')}" if side in SIDES else name.replace("_", " ")


def difference_cell(name: str, bounds: Mapping[str, float] | None) -> str:
    """Format a difference with its interval; a star marks an interval without 0."""
    if bounds is None:
        return NONE
    star = "  " if bounds["low"] <= 0 <= bounds["high"] else " *"
    return _interval(name, bounds["difference"], bounds["low"], bounds["high"], sign="+") + star


def _interval(name: str, value: float, low: float, high: float, *, sign: str) -> str:
    shown, *bounds = (_number(name, each, sign) for each in (value, low, high))
    return f"{shown} [{', '.join(bounds)}]"


def _number(name: str, value: float, sign: str) -> str:
    if name.endswith("median_rank"):
        return f"{value:{sign},.10g}"
    return f"{value:{sign}.3f}" if name.endswith("MRR") else f"{100 * value:{sign}.1f}"


def _intervals(heads: list[str], rows: Mapping[str, list[str]]) -> Table:
    widths = [
        max(map(len, column)) + 1 for column in zip(*([name, *cells] for name, cells in rows.items()), strict=True)
    ]
    is_wide = sum(widths) > WIDTH
    return terminal_table(
        heads,
        ([name, *(text.replace(" [", "\n[") if is_wide else text for text in cells)] for name, cells in rows.items()),
    )
