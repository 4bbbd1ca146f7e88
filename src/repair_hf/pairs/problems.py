"""Rows that cannot be used: counted by kind, with the first examples of each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

EXAMPLES = 3

# Kind -> singular and plural description.
KINDS = {
    "malformed_row": ("row in another format than the source's", "rows in another format than the source's"),
    "no_split": (
        "image without a split, while others have one",
        "images without a split, while others have one",
    ),
    "duplicate_id": ("row with the id of an earlier one", "rows with the id of an earlier one"),
    "outside_folder": (
        "image that is no file of its dataset; if you trust it, download the dataset and give its folder",
        "images that are no files of their dataset; if you trust it, download the dataset and give its folder",
    ),
    "unknown_image": (
        "caption of an image that the source does not list",
        "captions of an image that the source does not list",
    ),
    "unfetched_image": (
        "row whose image cannot be downloaded",
        "rows whose images cannot be downloaded",
    ),
    "missing_image": ("image that does not exist", "images that do not exist"),
    "too_large_image": (
        "image above 64 MiB, 89 million pixels or an aspect ratio of 100",
        "images above 64 MiB, 89 million pixels or an aspect ratio of 100",
    ),
    "corrupt_image": ("image that cannot be decoded", "images that cannot be decoded"),
    "empty_caption": ("caption without text", "captions without text"),
    "image_without_captions": ("image without a caption", "images without a caption"),
}


@dataclass(frozen=True)
class Problem:
    """What was left out for one reason."""

    kind: str  # a key of `KINDS`
    count: int
    examples: tuple[str, ...]  # the first of them

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.examples) else ""
        shown = ", ".join(ascii(example) for example in self.examples)  # a name may hold anything, also escape codes
        one, several = KINDS[self.kind]
        return f"{self.count:,} {one if self.count == 1 else several} ({shown}{more})"


class Problems:
    """Collects bad rows while a source is read."""

    def __init__(self) -> None:
        self._examples: dict[str, list[str]] = defaultdict(list)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, kind: str, example: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= EXAMPLES:
            self._examples[kind].append(example)

    def count(self, kind: str) -> int:
        return self._counts[kind]

    def found(self) -> tuple[Problem, ...]:
        return tuple(
            Problem(kind, self._counts[kind], tuple(self._examples[kind])) for kind in KINDS if self._counts[kind]
        )
