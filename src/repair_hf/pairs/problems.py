"""Rows that cannot be used: counted by kind, with the first examples of each."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from huggingface_hub import cached_assets_path

from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import printable
from repair_hf.runtime.run_folder import digest

logger = logging.getLogger(__name__)

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


@dataclass
class Problems:
    """Collects bad rows, and warnings about all of a source, while it is read."""

    warnings: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    examples: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= EXAMPLES:
            self.examples[kind].append(example)

    def found(self) -> tuple[Problem, ...]:
        return tuple(
            Problem(kind, self.counts[kind], tuple(self.examples[kind])) for kind in KINDS if self.counts[kind]
        )

    def report(self, source: str, *, is_empty: bool, is_strict: bool) -> None:
        """Warn of what was found: in full the first time, and then in one line.

        Raises:
            UserError: If nothing is left, or `is_strict` and something was left out.
        """
        found = self.found()
        listed = "; ".join(map(str, found))
        if found and is_strict:
            raise UserError(f"`{source}` has {listed}. Repair them, or leave out `strict` to skip them.")
        if is_empty:
            raise UserError(f"`{source}` holds no usable image with a caption: {listed or 'it is empty'}.")
        lines = [*self.warnings, *(f"Left out {problem}." for problem in found)]
        if len(lines) > 1:
            mark = cached_assets_path("repair_hf", "warned") / digest([source, *lines])
            if mark.exists():
                lines = [f"{lines[0]} The other warnings ({len(lines) - 1}) are those of an earlier command."]
            mark.touch()
        for line in lines:
            logger.warning("%s: %s", source, line)
