"""Choose the rows of a source that belong to a split, a benchmark and a draw of fewer images.

A source without splits is split by a hash of the image's id: 80% `train`, 10% `validation` and 10% `test`. A draw
takes the images whose ids have the smallest hashes. So an image keeps its place when others are added or removed.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence

from datasets import Dataset

from repair_hf.pairs.benchmarks import BenchmarkSplit, rows_of_benchmark
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.sources import Listing
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

PARTS = ("train", "validation", "test")  # of a source without splits


def rows_of_split(
    listing: Listing,
    ids: list[str],
    wanted: Sequence[str],
    expected: BenchmarkSplit | None,
    problems: Problems,
    source: str,
) -> list[int]:
    """Return the rows of some splits, which must be those of the benchmark `expected`, if any."""
    rows = list(range(len(ids)))
    if wanted != ("all",) and rows:
        splits = _parts(listing.images, source) if listing.splits is None else listing.splits
        for row in rows:
            if splits[row] is None:
                problems.add("no_split", ids[row])
        have = {name for row in rows if (name := splits[row]) is not None}
        needed = wanted if expected is None else wanted[:1]  # some benchmarks have `restval` in `train` already
        if absent := [name for name in needed if name not in have]:
            raise UserError(
                f"`{source}` has no image in split `{absent[0]}`; it has {sorted(have)}. "
                "Choose one of these, or `all` to take everything."
            )
        rows = [row for row in rows if splits[row] in wanted]
    return rows if expected is None else rows_of_benchmark(expected, listing, ids, rows)


def draw_images(rows: list[int], ids: Sequence[str], most: int | None) -> list[int]:
    """Draw at most so many rows and keep their order; None keeps all. A larger draw contains every smaller one."""
    if most is None:
        return rows
    return sorted(sorted(rows, key=lambda row: _hash(f"drawn {ids[row]}"))[:most])


def _parts(images: Dataset, source: str) -> Sequence[str | None]:
    """Split images by a hash of their ids, or of their groups, and say so."""
    names: list[str] = images["group" if "group" in images.features else "image_id"][:]
    parts = [{8: "validation", 9: "test"}.get(int.from_bytes(_hash(name)) % 10, "train") for name in names]
    counts = Counter(parts)
    sizes = " / ".join(f"{counts[part]:,}" for part in PARTS)
    logger.info(
        "%s has no split column; split by image: %s (%s). --split all uses all images.",
        source,
        sizes,
        " / ".join(PARTS),
    )
    return parts


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:8]
