"""From rows to images: merge the rows of one photograph, and choose those of a split, a benchmark or a draw.

Many datasets have a row per caption, so that a photograph stands in several rows.

A source without splits is split by a hash of the image's id: 80% `train`, 10% `validation` and 10% `test`. A draw
takes the images whose ids have the smallest hashes. So an image keeps its place when others are added or removed.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from repair_hf.pairs.benchmarks import BenchmarkSplit, rows_of_benchmark
from repair_hf.pairs.images import ABSENT, inspect_images
from repair_hf.pairs.problems import Problems, quoted
from repair_hf.pairs.rows import Listing, Row
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

SAME = {"val": "validation", "validation": "val"}  # Karpathy's name of the split, and that of `datasets`
PARTS = ("train", "validation", "test")  # of a source without splits


def merge_rows(listing: Listing, source: str, problems: Problems, *, by_id_alone: bool) -> Listing:
    """Merge rows of one id and, unless `by_id_alone`, of one image file or of equal bytes.

    The first of them gives id, image and split; all of them give captions. Some photographs of COCO stand in it under
    two ids, and the sizes of benchmarks count both. Rows of one id whose images differ get ids of their own. Groups
    that share an image become one.

    Raises:
        UserError: If the source puts images of one group into several splits.
    """
    rows = _with_own_ids(listing, problems)
    owner: dict[int, str] = {}  # by cell
    if not by_id_alone:
        rows = [row._replace(image_id=owner.setdefault(row.cell, row.image_id)) for row in rows]
    if any(row.group for row in rows):
        rows = _with_joined_groups(rows)
    merged: dict[str, Row] = {}
    if several := _in_several_splits((row.image_id, row) for row in rows):
        name, splits = next(iter(several.items()))
        problems.warnings.append(
            f"{len(several):,} images stand in several splits, such as {quoted(name)} in {' and '.join(splits)}. Each "
            "is kept only in that of its first row."
        )
    for row in rows:
        first = merged.setdefault(row.image_id, row._replace(captions=[]))
        first.captions.extend(row.captions)
    if len(merged) < listing.n_rows:
        named = (source, f"{listing.n_rows:,}", f"{len(merged):,}")
        logger.info("%s: merged %s rows into %s images; each keeps all of its captions.", *named)
    grouped = ((str(row.group), row) for row in merged.values() if row.group and row.split is not None)
    if torn := _in_several_splits(grouped):
        name, splits = next(iter(torn.items()))
        raise UserError(
            f"`{source}` has {len(torn):,} groups in several splits, such as `{name}` in {splits}. Put each group "
            "into one split, or leave out `group`."
        )
    return listing._replace(rows=list(merged.values()))


def _in_several_splits(named_rows: Iterable[tuple[str, Row]]) -> dict[str, list[str]]:
    """Return the splits of each name whose rows stand in several."""
    found: dict[str, set[str]] = {}
    for name, row in named_rows:
        found.setdefault(name, set()).add(str(row.split))
    return {name: sorted(splits) for name, splits in found.items() if len(splits) > 1}


def _with_own_ids(listing: Listing, problems: Problems) -> list[Row]:
    """Give images that share an id, but not their pixels, ids of their own: by split or, in one split, by pixels."""
    cells: dict[str, set[int]] = {}
    for row in listing.rows:
        cells.setdefault(row.image_id, set()).add(row.cell)
    first_rows = {row.cell: row.image for row in reversed(listing.rows) if len(cells[row.image_id]) > 1}
    if not first_rows:
        return listing.rows
    found = inspect_images(listing.images.select(list(first_rows.values())))
    # a cell without an image may belong to any image of its id, a file that cannot be read to none
    pixels = {cell: each.look or f"{cell:08d}" for cell, each in zip(first_rows, found, strict=True)}
    pixels = {cell: look for cell, look in pixels.items() if look != ABSENT}
    several = {name for name, some in cells.items() if len({pixels[cell] for cell in some if cell in pixels}) > 1}
    first: dict[str, str] = {}  # the pixels that have an id
    renamed: dict[str, str] = {}
    rows = []
    for row in listing.rows:
        image_id, look = row.image_id, pixels.get(row.cell)
        if image_id in several and look is not None:
            image_id = image_id if row.split is None else f"{row.split}/{image_id}"
            if first.setdefault(image_id, look) != look:
                image_id = f"{image_id}~{look[-8:]}"
            renamed[image_id] = row.image_id
        rows.append(row._replace(image_id=image_id))
    if several:
        example = min(several)
        names = [name for name, image_id in renamed.items() if image_id == example]
        problems.warnings.append(
            f"Ids that name several images: {len(several):,}, such as {quoted(example)} for {len(names):,} images, "
            f"which are kept apart as {', '.join(map(quoted, names[:3]))}{', ...' * (len(names) > 3)}. Set "
            "`image_id_column` to a column with one value per image."
        )
    return rows


def _with_joined_groups(rows: Sequence[Row]) -> list[Row]:
    """Give the rows of one image, and of one group, the first of their groups' names; a row may have no group."""
    names = [row.group or row.image_id for row in rows]
    image, group = (np.unique(column, return_inverse=True)[1] for column in ([row.image_id for row in rows], names))
    first: dict[int, str] = {}
    named = zip(rows, joined(image, group).tolist(), names, strict=True)
    return [row._replace(group=first.setdefault(part, name)) for row, part, name in named]


def joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Number items, (N,): those that share a number in either of two numberings share one."""
    return connected(one, one.max() + 1 + other)[one]


def connected(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Number the nodes of a graph with these edges, (E,), by the part that they belong to."""
    size = int(max(one.max(), other.max())) + 1
    edges = coo_array((np.ones(len(one), bool), (one, other)), shape=(size, size))
    return connected_components(edges, directed=False)[1]


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
