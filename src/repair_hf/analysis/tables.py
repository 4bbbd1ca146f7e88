"""Metrics of several methods as one table, for a terminal and for a Markdown file.

In:  per method a list of metrics, one dict per seed, as `evaluate_retrieval` returns them, with `seconds` and `steps` where there was
     training.
Out: a rich Table and the same in Markdown: percent with one decimal, MRR with three, mean ± standard deviation over seeds. `terminal_table` and
     `markdown` set any other cells.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table

from repair_hf.runtime.options import UserError

SIDES = {"i2t": "I2T", "t2i": "T2I"}
NONE = "–"


def metrics_table(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> tuple[Table, str]:
    """Set methods side by side.

    Args:
        rows: Method -> one dict of metrics per seed, in the order of the table.

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
    heads = ["method", *(_head(name) for name in metrics), "seconds", "steps"]
    body = [
        [method, *(_cell(seeds, name) for name in [*metrics, "seconds", "steps"])] for method, seeds in rows.items()
    ]
    # Narrow enough for 80 columns: one space between columns, the spread below its mean, nothing cut off.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, caption=footer, caption_justify="left")
    for column, head in enumerate(heads):
        name = "sec" if head == "seconds" else head.replace(" ", "\n")
        table.add_column(name, justify="right" if column else "left", overflow="fold", no_wrap=not column)
    for cells in body:
        table.add_row(*(cell.replace(" ±", "\n±") for cell in cells))
    return table, markdown(heads, body, footer)


def _metric_names(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """Every R@K that all methods have, by K, then MRR: of images to texts, then of texts to images."""
    shared = set.intersection(*(set(metrics) for seeds in rows.values() for metrics in seeds))
    depths = sorted(int(found[1]) for name in shared if (found := re.fullmatch(r"i2t_R@(\d+)", name)))
    return [f"{side}_{kind}" for side in SIDES for kind in (*(f"R@{depth}" for depth in depths), "MRR")]


def _footer(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    sizes = {method: {(m["n_images"], m["n_texts"]) for m in seeds} for method, seeds in rows.items()}
    if len(set.union(*sizes.values())) > 1:
        told = "; ".join(f"{method} {sorted(size)}" for method, size in sizes.items())
        raise UserError(
            f"The methods were measured on different data (images, texts): {told}. Evaluate all on one split."
        )
    images, texts = next(iter(sizes.values())).pop()
    seeds = sorted({len(seeds) for seeds in rows.values()} - {1})
    spread = f" ±: standard deviation over {' or '.join(map(str, seeds))} seeds." if seeds else ""
    return (
        f"{images:,} images, {texts:,} texts. R@K in %: some annotated positive stands in the top K. "
        f"MRR: mean of 1 / rank of the best one. A tie counts against us.{spread}"
    )


def _head(name: str) -> str:
    side, kind = name.split("_")
    return f"{SIDES[side]} {kind}"


def _cell(seeds: Sequence[Mapping[str, float]], name: str) -> str:
    if not all(name in metrics for metrics in seeds):  # a base that was not trained has no seconds and no steps
        return NONE
    scale, digits = (100, 1) if "R@" in name else (1, 3 if name.endswith("MRR") else 0)
    values = [scale * metrics[name] for metrics in seeds]
    mean = f"{statistics.fmean(values):,.{digits}f}"
    is_constant = name == "steps" and len(set(values)) == 1
    return mean if len(values) == 1 or is_constant else f"{mean} ±{statistics.stdev(values):,.{digits}f}"


def terminal_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, labels: int = 1) -> Table:
    """A table for a terminal: labels at the left, numbers behind them.

    Args:
        heads: Of the columns.
        rows: Cells.
        labels: How many columns are labels.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < labels else "right", overflow="fold", no_wrap=place < labels)
    for cells in rows:
        table.add_row(*cells)
    return table


def markdown(heads: list[str], body: list[list[str]], footer: str = "") -> str:
    """A table in Markdown, columns aligned, and a line below it."""
    widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
    aligned = [[cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])] for cells in (heads, *body)]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    lines = [f"| {' | '.join(cells)} |" for cells in (aligned[0], rule, *aligned[1:])]
    return "\n".join([*lines, "", footer]).rstrip()
