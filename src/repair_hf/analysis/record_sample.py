"""A few records out of many, from both directions, to look at."""

from __future__ import annotations

import difflib
import random
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from datasets import Dataset

from repair_hf.analysis.tables import Rows
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.columns import DIRECTIONS, MODALITIES
from repair_hf.records.images import lacks_images, record_at, restore_images
from repair_hf.runtime.options import UserError

ROLE_NAMES = {"q": "query", "gt": "ground truth", "fp": "false positive", "edit": "edit"}
HEADLINES = {  # direction -> its name, what went wrong, what was done about it
    "t2i": ("text → image", "a wrong image ranked high for a caption", "and was redrawn to fit it"),
    "i2t": ("image → text", "a wrong caption ranked high for an image", "and was rewritten to fit it"),
}


TITLES = {
    "repaired": "Retrieval failures and their repairs",
    "dropped": "Dropped failures",
    "mined": "Mined failures",
}


@dataclass(frozen=True)
class RecordSample:
    """Rows that were drawn, one direction after the other. Dropped failures have no image, mined ones no edit."""

    rows: list[dict[str, Any]]
    available: dict[str, int]  # direction -> how many rows there were to draw from
    kind: Literal["repaired", "dropped", "mined"] = "repaired"
    tables: Sequence[tuple[str, Rows, str]] = ()  # above the cards: title, heads and rows, note
    n_mined: int = 0  # false positives that were mined, of which those that outrank the ground truth are available
    lacks_images: bool = False  # of queries, ground truths or false positives, which are shown by their ids

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def provenance(self) -> str:
        """The models, without the folders that they were loaded from."""
        models = {what: str(self.rows[0][what]) for what in ("retriever", "llm", "editor") if what in self.rows[0]}
        return " · ".join(f"{what} {'/'.join(name.rstrip('/').split('/')[-2:])}" for what, name in models.items())

    @property
    def sections(self) -> list[tuple[str, str, str, list[dict[str, Any]]]]:
        """Name, meaning, count and rows of each direction that has rows."""
        sections = []
        for direction, available in self.available.items():
            rows = [row for row in self.rows if row["direction"] == direction]
            name, failure, repair = HEADLINES[direction]
            meaning = f"{failure}, {repair}" if self.kind == "repaired" else failure
            if rows:
                sections.append((name, meaning, f"{len(rows)} of {available:,}", rows))
        return sections


def sample_records(
    table: Dataset,
    *,
    n: int,
    direction: str | None = None,
    error_type: str | None = None,
    reason: str | None = None,
    pairs: Pairs | None = None,
    seed: int = 0,
) -> RecordSample:
    """Draw `n` records or dropped failures, the same number from each direction as far as possible.

    Rows can be limited to one direction, one type of error, or one reason; `pairs` fill in missing images.

    Raises:
        UserError: If there is nothing to draw, or `pairs` lack an image that the table names.
    """
    is_wanted = np.ones(len(table), dtype=bool)
    if error_type is not None:
        is_wanted &= [error_type in (types or ()) for types in table["error_types"][:]]
    if reason is not None:
        is_wanted &= [own == reason for own in table["reason"][:]]
    drawn, counts = draw_places(table["direction"][:], is_wanted, n=n, direction=direction, seed=seed)
    if not drawn:
        raise UserError(f"Nothing to draw: {_description(table, error_type, reason)}: {counts}, and `n` is {n}.")
    chosen = table.select(drawn)
    chosen = chosen if pairs is None else restore_images(chosen, pairs)
    rows = [record_at(chosen, place) for place in range(len(chosen))]
    kind: Any = "dropped" if "reason" in table.column_names else "repaired"
    return RecordSample(rows, counts, kind, lacks_images=lacks_images(chosen))


def draw_places(
    directions: Sequence[str], is_wanted: np.ndarray, *, n: int, direction: str | None, seed: int
) -> tuple[list[int], dict[str, int]]:
    """Draw places of wanted rows, one direction after the other, and count the wanted rows of each.

    A direction with too few rows leaves its share to the other.
    """
    if direction not in (None, *DIRECTIONS):
        raise UserError(f"`direction` must be one of {list(DIRECTIONS)}, got {direction!r}.")
    names = np.array(directions, dtype=object)
    wanted = DIRECTIONS if direction is None else (direction,)
    places = {name: np.flatnonzero(is_wanted & (names == name)).tolist() for name in wanted}
    counts = {name: len(own) for name, own in places.items()}
    scarce, rng = min(counts, key=counts.__getitem__), random.Random(seed)
    few = min(n // len(counts), counts[scarce])
    drawn: list[int] = []
    for name, own in places.items():
        drawn += sorted(rng.sample(own, few if name == scarce else min(n - few, counts[name])))
    return drawn, counts


def _description(table: Dataset, error_type: str | None, reason: str | None) -> str:
    if reason is None and error_type is None:
        return "records"
    names = table["reason"][:] if reason else [name for types in table["error_types"][:] for name in types or ()]
    what = f"failures dropped as {reason!r}" if reason else f"records with an error of type {error_type!r}"
    return f"{what} (the table has {dict(Counter(names).most_common()) or 'none'})"


Run = tuple[Literal["same", "out", "in"], str]


def compare(before: str, after: str) -> tuple[list[Run], list[Run]]:
    """Align two texts: `before` as kept and removed words, `after` as kept and added words.

    Words that differ only in case or punctuation count as the same.
    """
    old, new = before.split(), after.split()
    matcher = difflib.SequenceMatcher(None, [_bare(w) for w in old], [_bare(w) for w in new], autojunk=False)
    left: list[Run] = []
    right: list[Run] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        is_same = kind == "equal"
        left.append(("same" if is_same else "out", " ".join(old[i:j])))
        right.append(("same" if is_same else "in", " ".join(new[k:m])))
    return [run for run in left if run[1]], [run for run in right if run[1]]


def marked_texts(row: dict[str, Any]) -> dict[str, list[Run]]:
    """Return the captions of a record or failure by role, with the words that its edit changed, if it has one."""
    roles = [role for role, kind in MODALITIES[row["direction"]].items() if kind == "text"]
    texts: dict[str, list[Run]] = {role: [("same", row.get(f"{role}_text") or "")] for role in roles}
    if row.get("edit_text"):
        texts["fp"], texts["edit"] = compare(row["fp_text"], row["edit_text"])
    return texts


def _bare(word: str) -> str:
    return word.lower().strip(string.punctuation) or word
