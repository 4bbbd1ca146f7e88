"""Records by query and by false positive, as rows of the pairs that they were made from.

Rows number the images and captions of the pairs first, then the edits. -1 is none.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError

COLUMNS = ["record_id", "direction", "q_id", "fp_id", "fp_score", "edit_text", "edit_image"]
EDIT = {"i2t": "edit_text", "t2i": "edit_image"}


class Groups:
    """The places of equal keys, each group in ascending order. Key -1 has none.

    Args:
        keys: (n,) integers from 0 to below `n_keys`.
        n_keys: How many keys there may be.
    """

    def __init__(self, keys: np.ndarray, n_keys: int) -> None:
        count = np.bincount(keys, minlength=n_keys + 1)
        self.count = count.astype(np.int32)  # (n_keys + 1,): the last is that of key -1
        self._start = (np.cumsum(count) - count).astype(np.int32)
        self._places = np.append(np.argsort(keys, kind="stable"), -1).astype(np.int32)

    def draw(self, keys: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Draw one place of each key's group uniformly; -1 for none."""
        count = self.count[keys]
        return self._places[np.where(count > 0, self._start[keys] + (chance * count).astype(np.int64), -1)]


class Failures:
    """The records of one direction, those with an edit first, then by descending score.

    Arrays that a draw indexes, (n + 1,), end in one more element, -1: the value of record -1, "none".

    Args:
        rows: The records in this order, (n,).
        n_edits: How many have an edit.
        queries: Row of each record's query among images or captions, (n,).
        negatives: Row of its false positive, (n,).
        first_edit: The row of the first edit.
    """

    def __init__(
        self, rows: np.ndarray, n_edits: int, queries: np.ndarray, negatives: np.ndarray, first_edit: int
    ) -> None:
        self.n_edits, self.edited_rows = n_edits, rows[:n_edits]
        self.queries = np.append(queries, -1).astype(np.int32)
        self.negatives = np.append(negatives, -1).astype(np.int32)
        self.edits = np.full(len(rows) + 1, -1, np.int32)
        self.edits[:n_edits] = first_edit + np.arange(n_edits)

    def __len__(self) -> int:
        return len(self.queries) - 1


def index_failures(records: Dataset, pairs: Pairs) -> tuple[Failures, Failures]:
    """Index records by the rows of their items, first those of I2T, then of T2I. Records of other items stay out.

    Raises:
        UserError: If `records` lack a column.
    """
    if missing := sorted(set(COLUMNS) - set(records.column_names)):
        raise UserError(f"The records lack {missing}; they have {records.column_names}. See `load_records`.")
    arrow = records.select_columns(COLUMNS).with_format("arrow")
    table = arrow.select_columns(COLUMNS[:5])[:].combine_chunks()  # casts copy the offsets before each chunk
    sides, sizes = [], {"image": len(pairs.images), "caption": len(pairs.captions)}
    for direction, query, negative in (("i2t", "image", "caption"), ("t2i", "caption", "image")):
        has_edit = np.array([part.as_py() for block in arrow.iter(1024) for part in block[EDIT[direction]].is_valid()])
        q, fp = _rows(table["q_id"], pairs, query), _rows(table["fp_id"], pairs, negative)
        is_ours = pc.equal(table["direction"], direction).to_numpy() & (q >= 0) & (fp >= 0)
        keys = table.select(["fp_score", "record_id"]).append_column("has_edit", pa.array(has_edit.astype(np.int8)))
        order = [("has_edit", "descending"), ("fp_score", "descending"), ("record_id", "ascending")]
        rows = np.flatnonzero(is_ours)
        rows = rows[pc.sort_indices(keys.filter(pa.array(is_ours)), order).to_numpy()]
        sides.append(Failures(rows, int(has_edit[rows].sum()), q[rows], fp[rows], sizes[negative]))
    return sides[0], sides[1]


def _rows(ids: pa.ChunkedArray, pairs: Pairs, kind: str) -> np.ndarray:
    """Map ids to rows of the pairs' images or captions; -1 for others."""
    items = (pairs.images if kind == "image" else pairs.captions).with_format("arrow")
    # in one piece each: a lookup hashes what is known once for each chunk
    known, wanted = (each.combine_chunks().cast(pa.large_string()) for each in (items[f"{kind}_id"][:], ids))
    return pc.index_in(wanted, value_set=known).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
