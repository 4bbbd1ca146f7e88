"""Rows that cannot be used: counted by kind, with the first examples of each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from repair_hf.runtime.redaction import printable

EXAMPLES = 3

KINDS = {
    "malformed_row": "rows in another format than the source's",
    "no_split": "images without a split, while others have one",
    "duplicate_id": "rows with the id of an earlier one",
    "outside_folder": "images that are no files of their dataset; if you trust it, download it and give its folder",
    "unknown_image": "captions of an image that the source does not list",
    "unfetched_image": "rows whose images cannot be downloaded",
    "placeholder_image": "rows whose addresses give one picture for different captions; is it a placeholder?",
    "missing_image": "images that do not exist",
    "too_large_image": "images above 64 MiB, 89 million pixels or an aspect ratio of 100",
    "corrupt_image": "images that cannot be decoded",
    "empty_caption": "captions without text",
    "image_without_captions": "images without a caption",
}


def quoted(name: str) -> str:
    """Return a name in quotation marks: it may hold anything, also escape codes."""
    return f"'{printable(name)}'"


@dataclass(frozen=True)
class Problem:
    """What was left out for one reason."""

    kind: str  # a key of `KINDS`
    count: int
    examples: tuple[str, ...]  # the first of them

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.examples) else ""
        shown = ", ".join(map(quoted, self.examples))
        return f"{KINDS[self.kind]}: {self.count:,} ({shown}{more})"


class Problems:
    """Collects bad rows, and warnings about all of a source, while it is read."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._examples: dict[str, list[str]] = defaultdict(list)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, kind: str, example: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= EXAMPLES:
            self._examples[kind].append(example)

    def found(self) -> tuple[Problem, ...]:
        return tuple(
            Problem(kind, self._counts[kind], tuple(self._examples[kind])) for kind in KINDS if self._counts[kind]
        )
