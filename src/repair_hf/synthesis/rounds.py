"""Rounds of repair: what a later round leaves alone, and when another is not worth its price.

In:  the folders of records of earlier rounds, failures mined anew, metrics of each round, ceilings on what all rounds may cost.
Out: the failures that no earlier round holds, the number of the next round, what is left of the ceilings, and a table of rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from datasets import Dataset

from repair_hf.llm.journal import bills, read_entries, total
from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.runtime.options import UserError

NAMES = ("direction", "q_id", "fp_id")  # what makes two failures one; who answered right does not matter
SIDES = {"i2t": "I2T", "t2i": "T2I"}


class EarlierRounds:
    """What rounds before this one have taken up, whether it became a record or was dropped: both were paid for.

    Args:
        folders: Folders or Hub ids of records; none before the first round.

    Attributes:
        failures: (direction, q_id, fp_id) of each.
        next: The round that comes after the newest of them.

    Raises:
        UserError: If one of them holds no records.
    """

    def __init__(self, folders: Sequence[str | Path] = ()) -> None:
        self.failures: set[tuple[str, str, str]] = set()
        newest = 0
        for folder in folders:
            for table in (load_kept(folder), load_dropped(folder)):
                self.failures |= set(_names(table))
                newest = max([newest, *(number or 0 for number in table["round"][:])])
        self.next = max(newest, len(folders)) + 1  # a round in which nothing was new has no row to tell its number

    def leave_out(self, failures: Dataset) -> Dataset:
        """The failures that no earlier round holds, in their order."""
        if not self.failures:
            return failures
        if missing := set(NAMES) - set(failures.column_names):
            raise UserError(
                f"Failures lack {sorted(missing)}, so that they cannot be compared with those of earlier rounds. Make them with `repair-hf mine`."
            )
        return failures.select([row for row, name in enumerate(_names(failures)) if name not in self.failures])


def paid_by(rounds: Iterable[Path]) -> tuple[float, int]:
    """Dollars and LLM answers of the folders of records of some rounds, as ceilings count them."""
    return total(read_entries(path for folder in rounds for path in bills(folder)))


def ceilings_left(max_usd: float | None, max_calls: int | None, others: Sequence[Path]) -> dict[str, float | int]:
    """Of ceilings on all rounds together, what the other rounds leave to one; what its own folder has paid, that round counts itself.

    Args:
        max_usd: Dollars at most; None for no ceiling.
        max_calls: LLM answers at most; None for no ceiling.
        others: Folders of records of the other rounds.
    """
    ceilings = {"max_usd": max_usd, "max_calls": max_calls}
    paid = dict(zip(ceilings, paid_by(others), strict=True))
    return {name: max(most - paid[name], 0) for name, most in ceilings.items() if most is not None}


def mean_gain(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """How much R@1 rose, in points, on average over both directions."""
    return sum(100 * (now[f"{side}_R@1"] - before[f"{side}_R@1"]) for side in SIDES) / len(SIDES)


def round_rows(rounds: Sequence[Mapping]) -> tuple[list[str], list[list[str]]]:
    """Set rounds side by side; the first is the base, before any repair.

    Args:
        rounds: Each with `round`, `metrics`, and but for the base `records`: direction -> how many are new.

    Returns:
        Heads of columns, and rows of cells. A delta is against the row above, in points.
    """
    heads = ["round"]
    heads += [f"{side} {what}" for side in SIDES.values() for what in ("new", "in all")]
    heads += [f"{side} R@1{what}" for side in SIDES.values() for what in ("", " +")] + ["mean +"]
    rows, total, before = [], dict.fromkeys(SIDES, 0), None
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
