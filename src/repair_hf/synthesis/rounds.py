"""Rounds of repair: what later rounds skip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.runtime.options import UserError

NAMES = ("direction", "q_id", "fp_id")  # identify a failure; its ground truth does not matter


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


def _names(table: Dataset) -> list[tuple[str, str, str]]:
    columns = table.select_columns(list(NAMES)).with_format("arrow")[:]
    return list(zip(*(columns[name].to_pylist() for name in NAMES), strict=True))
