"""A few records out of many, from both directions, to look at."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from repair_hf.pairs.cells import undecoded
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import read_cell
from repair_hf.records.columns import DIRECTIONS, MODALITIES, SOURCES
from repair_hf.records.images import record_at, restore_images
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.candidates import candidate_files
from repair_hf.synthesis.sources import open_picture

ROLE_NAMES = {"q": "query", "gt": "ground truth", "fp": "false positive", "edit": "edit"}
HEADLINES = {  # direction -> its name, what went wrong, what was done about it
    "t2i": ("text → image", "a wrong image ranked high for a caption", "and was redrawn to fit it"),
    "i2t": ("image → text", "a wrong caption ranked high for an image", "and was rewritten to fit it"),
}


@dataclass(frozen=True)
class RecordSample:
    """Rows that were drawn, one direction after the other.

    Dropped failures have a `reason`, mined ones a `margin`; neither has an edit, and dropped ones have no image.
    """

    rows: list[dict[str, Any]]
    available: dict[str, int]  # direction -> how many rows there were to draw from

    def of(self, direction: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["direction"] == direction]

    @property
    def lacks_images(self) -> bool:
        """Whether an image of a query, ground truth or false positive is missing, so that only its id can be shown."""
        return any(
            row.get(f"{role}_image") is None
            for row in self.rows
            for role in SOURCES
            if MODALITIES[row["direction"]][role] == "image"
        )

    @property
    def is_repaired(self) -> bool:
        return not {"reason", "margin"} & set(self.rows[0])

    @property
    def title(self) -> str:
        if "margin" in self.rows[0]:
            return "Mined failures"
        return "Retrieval failures and their repairs" if self.is_repaired else "Dropped failures"

    @property
    def provenance(self) -> str:
        """The models, without the folders that they were loaded from."""
        row = self.rows[0]
        made_by = {what: str(row[what]) for what in ("retriever", "llm", "editor") if what in row}
        names = {what: "/".join(name.rstrip("/").split("/")[-2:]) for what, name in made_by.items()}
        return " · ".join(f"{what} {name}" for what, name in names.items())

    @property
    def sections(self) -> list[tuple[str, str, str, list[dict[str, Any]]]]:
        """Name, meaning, count and rows of each direction that has rows."""
        found = []
        for direction, available in self.available.items():
            name, failure, repair = HEADLINES[direction]
            meaning = f"{failure}, {repair}" if self.is_repaired else failure
            if rows := self.of(direction):
                found.append((name, meaning, f"{len(rows)} of {available:,}", rows))
        return found


def sample_records(
    table: Dataset,
    *,
    n: int,
    direction: str | None = None,
    error_type: str | None = None,
    reason: str | None = None,
    pairs: Pairs | None = None,
    folders: Sequence[Path] = (),
    seed: int = 0,
) -> RecordSample:
    """Draw `n` records or dropped failures, the same number from each direction as far as possible.

    Rows can be limited to one direction, one type of error, or one reason; `pairs` fill in missing images. Rows get
    `candidate_images` if one of the `folders` of records holds them.

    Raises:
        UserError: If there is nothing to draw, or `pairs` lack an image that the table names.
    """
    if direction not in (None, *DIRECTIONS):
        raise UserError(f"`direction` must be one of {list(DIRECTIONS)}, got {direction!r}.")
    directions = np.array(table["direction"][:], dtype=object)
    is_wanted = np.ones(len(table), dtype=bool)
    if error_type is not None:
        is_wanted &= [error_type in (types or ()) for types in table["error_types"][:]]
    if reason is not None:
        is_wanted &= [each == reason for each in table["reason"][:]]
    wanted = DIRECTIONS if direction is None else (direction,)
    places = {name: np.flatnonzero(is_wanted & (directions == name)).tolist() for name in wanted}
    counts = {name: len(found) for name, found in places.items()}
    if n < 1 or not any(counts.values()):
        raise UserError(f"Nothing to draw: {_description(table, error_type, reason)}: {counts}, and `n` is {n}.")
    rng = random.Random(seed)
    drawn = {name: sorted(rng.sample(places[name], share)) for name, share in shares(counts, n).items()}
    chosen = table.select([place for found in drawn.values() for place in found])
    chosen = chosen if pairs is None else restore_images(chosen, pairs)
    rows = [record_at(chosen, place) for place in range(len(chosen))]
    if folders:
        cells = undecoded(chosen, "fp_image")["fp_image"]
        rows = [row | _candidate_images(row, cell, folders) for row, cell in zip(rows, cells, strict=True)]
    return RecordSample(rows, counts)


def shares(counts: dict[str, int], n: int) -> dict[str, int]:
    """Return how many rows of each direction to draw; a direction with too few leaves its share to the other."""
    scarce = min(counts, key=counts.__getitem__)
    take = {scarce: min(n // len(counts), counts[scarce])}
    return {name: take.get(name, min(n - take[scarce], count)) for name, count in counts.items()}


def _candidate_images(row: dict[str, Any], fp: dict[str, Any] | None, folders: Sequence[Path]) -> dict[str, list]:
    """Find the candidate images of a row in folders of records; empty without them, or if they are captions."""
    if fp is None or not row["candidate_similarities"]:
        return {}
    made_from = {"source": hashlib.sha256(read_cell(fp)).hexdigest(), "instruction": row["edit_instruction"]}
    made_from |= {"editor": row["editor"], "seed": row["seed"]}
    for folder in folders:
        files = candidate_files(folder / "candidates", len(row["candidate_similarities"]), made_from)
        if any(file.is_file() for file in files):
            return {"candidate_images": [open_picture(f.read_bytes()) if f.is_file() else None for f in files]}
    return {}


def _description(table: Dataset, error_type: str | None, reason: str | None) -> str:
    if reason is not None:
        found = Counter(table["reason"][:])
        return f"failures dropped as {reason!r} (the table has {dict(found.most_common()) or 'none'})"
    if error_type is not None:
        found = Counter(name for types in table["error_types"][:] for name in types or ())
        return f"records with an error of type {error_type!r} (the table has {dict(found.most_common()) or 'none'})"
    return "records"
