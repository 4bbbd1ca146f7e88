"""Rounds of repair: what later rounds skip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from datasets import Dataset

from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.runtime.options import UserError

Name: TypeAlias = tuple[str, str, str]
NAMES = ("direction", "q_id", "fp_id")  # identify a failure; its ground truth does not matter


def earlier_rounds(folders: Sequence[str | Path]) -> tuple[set[Name], int]:
    """Return (direction, q_id, fp_id) of the failures that earlier rounds repaired or dropped, and the next round.

    They are read from folders or Hub ids of records.

    Raises:
        UserError: If a folder holds no records.
    """
    failures: set[Name] = set()
    newest = len(folders)  # a round without new failures has no row that gives its number
    for folder in folders:
        for table in (load_kept(folder), load_dropped(folder)):
            failures |= set(_names(table))
            newest = max([newest, *(number or 0 for number in table["round"][:])])
    return failures, newest + 1


def leave_out(failures: Dataset, earlier: set[Name]) -> Dataset:
    """The failures that no earlier round holds, in their order."""
    if not earlier:
        return failures
    if missing := set(NAMES) - set(failures.column_names):
        raise UserError(
            f"Failures lack {sorted(missing)}, so they cannot be compared with those of earlier rounds. "
            "Make them with `repair-hf mine`."
        )
    return failures.select([row for row, name in enumerate(_names(failures)) if name not in earlier])


def names_in(folder: Path) -> set[Name]:
    """(direction, q_id, fp_id) of the failures that a folder repaired or dropped."""
    return {name for table in (load_kept(folder), load_dropped(folder)) for name in _names(table)}


def records_of_rounds(run: Path) -> list[Path]:
    """Return the folders `round-N/records` of a run's folder, by N."""
    numbered = [(path.parent.name.removeprefix("round-"), path) for path in run.glob("round-*/records")]
    return [path for _, path in sorted((int(number), path) for number, path in numbered if number.isdecimal())]


def _names(table: Dataset) -> list[Name]:
    columns = table.select_columns(list(NAMES)).with_format("arrow")[:]
    return list(zip(*(columns[name].to_pylist() for name in NAMES), strict=True))
