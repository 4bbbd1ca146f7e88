"""Choose the rows of a source that belong to a split, a benchmark and a draw of fewer images.

A source without splits is split by a hash of the image's id: 80% `train`, 10% `validation` and 10% `test`. A draw
takes the images whose ids have the smallest hashes. So an image keeps its place when others are added or removed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from repair_hf.pairs.benchmarks import BenchmarkSplit, rows_of_benchmark
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.rows import Listing, Row
from repair_hf.runtime.options import UserError

SAME = {"val": "validation", "validation": "val"}  # Karpathy's name of the split, and that of `datasets`
PARTS = ("train", "validation", "test")  # of a source without splits


def rows_of_split(
    listing: Listing, wanted: Sequence[str], expected: BenchmarkSplit | None, problems: Problems, source: str
) -> list[Row]:
    """Return the rows of some splits, which must be those of the benchmark `expected`, if any."""
    rows = listing.rows
    if wanted != ("all",) and rows:
        have = {row.split for row in rows if row.split is not None} if listing.has_splits else set(PARTS)
        wanted = [SAME[name] if name not in have and SAME.get(name) in have else name for name in wanted]
        rows = rows if listing.has_splits else _with_parts(rows, wanted[0], problems)
        for row in rows:
            if row.split is None:
                problems.add("no_split", row.image_id)
        have = {row.split for row in rows if row.split is not None}
        needed = wanted if expected is None else wanted[:1]  # some benchmarks have `restval` in `train` already
        if absent := [name for name in needed if name not in have]:
            raise UserError(
                f"`{source}` has no image in split `{absent[0]}`; it has {sorted(have)}. "
                "Choose one of these, or `all` to take everything."
            )
        rows = [row for row in rows if row.split in wanted]
    return rows if expected is None else rows_of_benchmark(expected, rows, has_splits=listing.has_splits)


def draw_images(rows: list[Row], most: int | None) -> list[Row]:
    """Draw at most so many rows and keep their order; None keeps all. A larger draw contains every smaller one."""
    if most is None:
        return rows
    drawn = sorted(range(len(rows)), key=lambda place: _hash(f"drawn {rows[place].image_id}"))[:most]
    return [rows[place] for place in sorted(drawn)]


def _with_parts(rows: list[Row], wanted: str, problems: Problems) -> list[Row]:
    """Split images by a hash of their ids, or of their groups, and say so."""
    parts = [
        {8: "validation", 9: "test"}.get(int.from_bytes(_hash(row.group or row.image_id)) % 10, "train")
        for row in rows
    ]
    counts = Counter(parts)
    problems.warnings.append(
        f"No splits are named (a lone `train` is none): {counts[wanted]:,} of its {len(rows):,} images are used. "
        f"Split by image: {' / '.join(f'{counts[part]:,}' for part in PARTS)} ({' / '.join(PARTS)}). --split all uses "
        "all images."
    )
    return [row._replace(split=part) for row, part in zip(rows, parts, strict=True)]


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:8]
