"""The rows of tables, and how a terminal and Markdown show them.

In tables of metrics, shares are percent with one decimal, MRR has three decimals.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from rich import box
from rich.table import Table

from repair_hf.runtime.redaction import printable

SIDES = {"i2t": "I2T", "t2i": "T2I"}
NONE = "–"
WIDTH = 80  # of a terminal

Rows: TypeAlias = tuple[list[str], list[list[str]]]  # heads and rows


def mean_rows(head: str, rows: Mapping[str, Sequence[Mapping[str, float]]], names: Sequence[str]) -> Rows:
    """Return heads and rows: a row per method, which has a dict of metrics per seed, and a column per name."""
    return [head, *map(label, names)], [[who, *(mean_cell(one, name) for name in names)] for who, one in rows.items()]


def mean_cell(seeds: Sequence[Mapping[str, float]], name: str) -> str:
    """Format the mean of a metric over seeds ± its standard deviation; a dash if a seed lacks it."""
    if not all(name in metrics for metrics in seeds):  # the base has no seconds and no steps
        return NONE
    scale, digits = (1, 3) if name.endswith("MRR") else (1, 0) if name in ("seconds", "steps") else (100, 1)
    values = [scale * metrics[name] for metrics in seeds]
    mean = f"{statistics.fmean(values):,.{digits}f}"
    is_constant = name == "steps" and len(set(values)) == 1
    return mean if len(values) == 1 or is_constant else f"{mean} ±{statistics.stdev(values):,.{digits}f}"


def mean_gain(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Gain of R@1 in points, averaged over both directions."""
    return sum(100 * (now[f"{side}_R@1"] - before[f"{side}_R@1"]) for side in SIDES) / len(SIDES)


def round_rows(rounds: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows of a table of rounds; the first is the base. Deltas are in points against the row above.

    Each round has `round`, `metrics`, and, but for the base, `plain` (metrics of training without records) and
    `records` (direction -> number of new records).
    """
    heads = ["round", *(f"{side} records" for side in SIDES.values())]
    heads += [f"{side} R@1{what}" for side in SIDES.values() for what in (" plain", "", " gain")] + ["mean gain"]
    base = [f"{100 * rounds[0]['metrics'][f'{side}_R@1']:.1f}" for side in SIDES]
    rows = [["base", *[NONE] * len(SIDES), *(cell for recall in base for cell in (NONE, recall, NONE)), NONE]]
    for before, own in itertools.pairwise(rounds):
        recalls = []
        for side in SIDES:
            plain, now, then = (
                100 * metrics[f"{side}_R@1"] for metrics in (own["plain"], own["metrics"], before["metrics"])
            )
            recalls += [f"{plain:.1f}", f"{now:.1f}", f"{now - then:+.1f}"]
        counts = [f"{own['records'][side]:,}" for side in SIDES]
        rows.append([str(own["round"]), *counts, *recalls, f"{mean_gain(before['metrics'], own['metrics']):+.1f}"])
    return heads, rows


def terminal_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, labels: int = 1) -> Table:
    """Build a table for a terminal; the first `labels` columns are left-aligned, the others right-aligned.

    If it is wider than a terminal, intervals and spreads go below their numbers; heads and long labels are broken.
    """
    lines, space = [list(map(printable, line)) for line in (heads, *rows)], 1
    if sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) >= WIDTH:
        lines = [[re.sub(r" (?=[\[±])|(?<=−) ", "\n", text) for text in line] for line in lines]
        lines[0], space = [head.replace(" ", "\n") for head in heads], 0
        rest = [max(len(part) for text in column for part in text.split("\n")) for column in zip(*lines, strict=True)]
        room = min(max(WIDTH - 2 - sum(width + 1 for width in rest[1:]), WIDTH // 6), WIDTH // 2)  # of a label
        lines = [[textwrap.fill(line[0], room) if rest[0] > room else line[0], *line[1:]] for line in lines]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, space, 0, 0), pad_edge=False)
    for place, head in enumerate(lines[0]):
        table.add_column(
            head,
            justify="left" if place < labels else "right",
            overflow="fold",
            no_wrap=not place,
        )
    for line in lines[1:]:
        table.add_row(*line)
    return table


def markdown(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, labels: int = 1) -> str:
    """Write a table in Markdown, with words in the first `labels` columns. Put untrusted text through `code` first."""
    rule = ["---" if place < labels else "---:" for place in range(len(heads))]
    lines = [heads, rule, *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(map(_in_one_cell, line))} |" for line in lines)


def _in_one_cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")  # a bar ends a cell even inside a code span


def cell(value: object) -> str:
    """Format a value of a table."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return NONE
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) > 1 else f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(part: float, whole: float = 1) -> str:
    """Format a share, in percent; a dash for NaN and for a share of nothing."""
    return NONE if math.isnan(part) or not whole else f"{part / whole:.1%}"


def interval_rows(measured: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Return heads and rows of `repair-hf evaluate`: a row per metric with an interval, a column per model.

    A cell is `78.0 [76.2, 79.8]`; a number alone without an interval; a dash if the model lacks the metric.
    """
    rows = [
        [
            label(name),
            *(
                interval_cell(name, one[name], *one["intervals"][name])
                if name in one["intervals"]
                else mean_cell([one], name)
                for one in measured.values()
            ),
        ]
        for name in dict.fromkeys(name for one in measured.values() for name in one["intervals"])
    ]
    return ["", *measured], rows


def gain_rows(gains: Mapping[str, Mapping[str, Mapping[str, float]]], head: str) -> Rows:
    """Return heads and rows of paired differences in R@1, a row per model: metric -> `difference`, `low`, `high`."""
    names = [f"{side}_R@1" for side in SIDES]
    rows = [[model, *(difference_cell(name, own.get(name)) for name in names)] for model, own in gains.items()]
    return [head, *map(label, names)], rows


def blend_gain_rows(compared: Sequence[Mapping[str, Any]]) -> Rows:
    """Return heads and rows of differences between blends, see `compare_blends`: of averages."""
    names = list(dict.fromkeys(name for row in compared for name in row["summary"]))
    rows = []
    for row in compared:
        title = f"{row['model']} − {row['reference']}"
        if row["chosen_on"] is not None:
            title += f", best on {row['chosen_on']}"
        cells = [difference_cell(name, row["summary"].get(name)) for name in names]
        rows.append([title, *cells])
    return ["difference", *map(label, names)], rows


def gain_lines(head: str, gains: Mapping[str, Mapping[str, float]]) -> str:
    """Return paired differences by metric after a head, in lines of a terminal, none of which breaks an interval."""
    parts = [
        f"{label(name)} {difference_cell(name, gain).strip()}".replace(" ", "\xa0") for name, gain in gains.items()
    ]
    return textwrap.fill(f"{head} {', '.join(parts)}.", WIDTH, subsequent_indent="  ").replace("\xa0", " ")


def label(name: str) -> str:
    """Format the name of a metric: `i2t_R@1` becomes `I2T R@1`, and `other_t2i_R@1` becomes `other T2I R@1`."""
    words = name.replace("_", " ")
    return re.sub(r"(^| )(i2t|t2i) (?=R@|MRR|median)", lambda match: f"{match[1]}{SIDES[match[2]]} ", words)


def spelled(head: str) -> str:
    """Spell the direction in the head of a column for people: `i2t, of mined` becomes `I2T, of mined`."""
    return re.sub(r"\b(i2t|t2i)\b", lambda match: SIDES[match[1]], head)


def difference_cell(name: str, bounds: Mapping[str, float] | None) -> str:
    """Format a difference with its interval; a star marks an interval without 0."""
    if bounds is None:
        return NONE
    star = "  " if bounds["low"] <= 0 <= bounds["high"] else " *"
    return interval_cell(name, bounds["difference"], bounds["low"], bounds["high"], sign="+") + star


def interval_cell(name: str, value: float, low: float, high: float, *, sign: str = "") -> str:
    """Format a number with its interval, `78.0 [76.2, 79.8]`: shares in percent, MRR and kappa with three decimals."""
    if math.isnan(value):
        return NONE
    number, *bounds = (_number(name, bound, sign) for bound in (value, low, high))
    return f"{number} [{', '.join(bounds)}]"


def _number(name: str, value: float, sign: str) -> str:
    if name.endswith("median_rank"):
        return f"{value:{sign},.10g}"
    return f"{value:{sign}.3f}" if name.endswith(("MRR", "kappa")) else f"{100 * value:{sign}.1f}"
