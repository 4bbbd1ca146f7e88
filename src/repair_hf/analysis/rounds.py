"""How much each round of repair has gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SIDES = {"i2t": "I2T", "t2i": "T2I"}


def mean_gain(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Gain of R@1 in points, averaged over both directions."""
    return sum(100 * (now[f"{side}_R@1"] - before[f"{side}_R@1"]) for side in SIDES) / len(SIDES)


def round_rows(rounds: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows of a table of rounds; the first is the base. Deltas are in points against the row above.

    Each round has `round`, `metrics` and `records` (direction -> number of new records; ignored for the base).
    """
    heads = ["round"]
    heads += [f"{side} {what}" for side in SIDES.values() for what in ("new", "in all")]
    heads += [f"{side} R@1{what}" for side in SIDES.values() for what in ("", " +")] + ["mean +"]
    rows: list[list[str]] = []
    total, before = dict.fromkeys(SIDES, 0), None
    for each in rounds:
        cells = ["base" if before is None else str(each["round"])]
        for side in SIDES:
            new = each["records"][side]
            total[side] += new
            cells += ["–", "–"] if before is None else [f"{new:,}", f"{total[side]:,}"]
        for side in SIDES:
            now = 100 * each["metrics"][f"{side}_R@1"]
            delta = "–" if before is None else f"{now - 100 * before[f'{side}_R@1']:+.1f}"
            cells += [f"{now:.1f}", delta]
        cells.append("–" if before is None else f"{mean_gain(before, each['metrics']):+.1f}")
        rows.append(cells)
        before = each["metrics"]
    return heads, rows
