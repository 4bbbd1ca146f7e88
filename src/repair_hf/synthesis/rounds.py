"""Rounds of repair: what later rounds skip and how much each has gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.runtime.options import UserError

NAMES = ("direction", "q_id", "fp_id")  # identify a failure; its ground truth does not matter
SIDES = {"i2t": "I2T", "t2i": "T2I"}


class EarlierRounds:
    """The failures of earlier rounds, repaired or dropped, read from folders or Hub ids of records.

    Attributes:
        failures: (direction, q_id, fp_id) of each.
        next: Number of the next round.

    Raises:
        UserError: If a folder holds no records.
    """

    def __init__(self, folders: Sequence[str | Path] = ()) -> None:
        self.failures: set[tuple[str, str, str]] = set()
        newest = 0
        for folder in folders:
            for table in (load_kept(folder, decode=False), load_dropped(folder)):
                self.failures |= set(_names(table))
                newest = max([newest, *(number or 0 for number in table["round"][:])])
        self.next = max(newest, len(folders)) + 1  # a round without new failures has no row that gives its number

    def leave_out(self, failures: Dataset) -> Dataset:
        """The failures that no earlier round holds, in their order."""
        if not self.failures:
            return failures
        if missing := set(NAMES) - set(failures.column_names):
            raise UserError(
                f"Failures lack {sorted(missing)}, so they cannot be compared with those of earlier rounds. "
                "Make them with `repair-hf mine`."
            )
        return failures.select([row for row, name in enumerate(_names(failures)) if name not in self.failures])


def records_of_rounds(run: Path) -> list[Path]:
    """Return the folders `round-N/records` of a run's folder, by N."""
    found = [(path.parent.name.removeprefix("round-"), path) for path in run.glob("round-*/records")]
    return [path for _, path in sorted((int(name), path) for name, path in found if name.isdecimal())]


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
            delta = "–" if before is None else f"{now - 100 * before[f'{side}_R@1']:+.2f}"
            cells += [f"{now:.2f}", delta]
        cells.append("–" if before is None else f"{mean_gain(before, each['metrics']):+.2f}")
        rows.append(cells)
        before = each["metrics"]
    return heads, rows


def _names(table: Dataset) -> list[tuple[str, str, str]]:
    columns = table.select_columns(list(NAMES)).with_format("arrow")[:]
    return list(zip(*(columns[name].to_pylist() for name in NAMES), strict=True))
