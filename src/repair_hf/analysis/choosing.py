"""Which records to look at: a few of many, in both directions.

In:  records, or dropped failures.
Out: `Choice`: rows with their captions and pictures, and how many there were to choose from.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset

from repair_hf.records.columns import DIRECTIONS, MODALITIES, SOURCES
from repair_hf.runtime.options import UserError

if TYPE_CHECKING:
    from repair_hf.pairs.dataset import Pairs


@dataclass(frozen=True)
class Choice:
    """Rows that were chosen.

    Args:
        rows: Columns -> cells, one direction after the other. A dropped failure has no edit and no picture, but a `reason`.
        available: Direction -> how many there were to choose from.
    """

    rows: list[dict[str, Any]]
    available: dict[str, int]

    def of(self, direction: str) -> list[dict[str, Any]]:
        """The rows of a direction."""
        return [row for row in self.rows if row["direction"] == direction]

    @property
    def lacks_pictures(self) -> bool:
        """Whether a query, ground truth or false positive that is a picture is told by its id alone."""
        return any(_lacking(row) for row in self.rows)


def choose(
    table: Dataset,
    *,
    n: int,
    direction: str | None = None,
    error_type: str | None = None,
    reason: str | None = None,
    pairs: Pairs | None = None,
    seed: int = 0,
) -> Choice:
    """Draw rows: of both directions the same share, as far as there are so many.

    Args:
        table: As `load_records` or `load_dropped` give it.
        n: How many at most.
        direction: `t2i` or `i2t` draws that one alone.
        error_type: Only rows whose instruction names this kind of error.
        reason: Only failures that were dropped for this reason.
        pairs: What the table was made from; pictures that it lacks are taken from there.
        seed: Another seed draws others.

    Raises:
        UserError: If there is nothing to draw, or `pairs` lack an image that the table names.
    """
    if direction not in (None, *DIRECTIONS):
        raise UserError(f"`direction` is one of {list(DIRECTIONS)}, got {direction!r}.")
    directions = np.array(table["direction"][:], dtype=object)
    is_wanted = np.ones(len(table), dtype=bool)
    if error_type is not None:
        is_wanted &= [error_type in (types or ()) for types in table["error_types"][:]]
    if reason is not None:
        is_wanted &= [each == reason for each in table["reason"][:]]
    asked = DIRECTIONS if direction is None else (direction,)
    have = {name: np.flatnonzero(is_wanted & (directions == name)).tolist() for name in asked}
    counts = {name: len(places) for name, places in have.items()}
    if n < 1 or not any(counts.values()):
        raise UserError(f"There is nothing to draw: {_told(table, error_type, reason)} hold {counts}, and n is {n}.")
    rng = random.Random(seed)
    drawn = {name: sorted(rng.sample(have[name], share)) for name, share in _shares(counts, n).items()}
    rows = [table[place] for places in drawn.values() for place in places]
    return Choice(rows if pairs is None else _with_pictures(rows, pairs), counts)


def _shares(counts: dict[str, int], n: int) -> dict[str, int]:
    """How many of each direction: what one lacks, the other gives."""
    scarce = min(counts, key=counts.__getitem__)
    take = {scarce: min(n // len(counts), counts[scarce])}
    return {name: take.get(name, min(n - take[scarce], count)) for name, count in counts.items()}


def _told(table: Dataset, error_type: str | None, reason: str | None) -> str:
    if reason is not None:
        found = Counter(table["reason"][:])
        return f"the failures dropped as {reason!r} (there are {dict(found.most_common()) or 'none at all'})"
    if error_type is not None:
        found = Counter(name for types in table["error_types"][:] for name in types or ())
        return f"the records with an error of type {error_type!r} (there are {dict(found.most_common()) or 'none with a type'})"
    return "the records"


def _with_pictures(rows: list[dict[str, Any]], pairs: Pairs) -> list[dict[str, Any]]:
    places = {name: place for place, name in enumerate(pairs.images["image_id"][:])}
    whole = []
    for row in rows:
        lacking = _lacking(row)
        if unknown := [row[f"{role}_id"] for role in lacking if row[f"{role}_id"] not in places]:
            raise UserError(
                f"`pairs` have no image {unknown[0]!r}; give the pairs and the split that the records were made from."
            )
        found = {f"{role}_image": pairs.images[places[row[f"{role}_id"]]]["image"] for role in lacking}
        whole.append(row | found)
    return whole


def _lacking(row: dict[str, Any]) -> list[str]:
    kinds = MODALITIES[row["direction"]]
    return [role for role in SOURCES if kinds[role] == "image" and row.get(f"{role}_image") is None]
