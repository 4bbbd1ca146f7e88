"""Records by query and by false positive: which of them fill the grids, and which of their edits can be encoded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from datasets import Dataset

from repair_hf.runtime.options import UserError
from repair_hf.training.hyperparameters import GridRule

COLUMNS = ("record_id", "direction", "q_id", "fp_id", "fp_score", "edit_text", "edit_image")
EDIT = ("edit_text", "edit_image")
RECORDS_PER_READ = 1024


class Groups:
    """The places of equal keys, each group in ascending order. Key -1 has none.

    Args:
        keys: (n,) integers from 0 to below `n_keys`.
        n_keys: How many keys there may be.
    """

    def __init__(self, keys: np.ndarray, n_keys: int) -> None:
        self.count = np.bincount(keys, minlength=n_keys + 1)  # (n_keys + 1,): the last is that of key -1
        self._start = np.cumsum(self.count) - self.count
        self._places = np.append(np.argsort(keys, kind="stable"), -1)

    def draw(self, keys: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Draw one place of each key's group uniformly; -1 for none."""
        count = self.count[keys]
        return self._places[np.where(count > 0, self._start[keys] + (chance * count).astype(np.int64), -1)]


class Failures:
    """The records of one direction, those with an edit first, then by descending score.

    The arrays that a draw indexes have one more element at the end, -1: the value of record -1, "none".

    Args:
        table: Columns `q` and `fp` (rows of the images or captions), `has_edit`, `fp_score` and `record_id`, with the
            records' rows as index.
        n_queries, n_negatives: How many queries and false positives there may be.
        first_edit: Row of the first edit in the table of images or captions.
    """

    def __init__(self, table: pd.DataFrame, n_queries: int, n_negatives: int, first_edit: int = 0) -> None:
        table = table.sort_values(["has_edit", "fp_score", "record_id"], ascending=[False, False, True])
        self.n_edits = int(table["has_edit"].sum())
        self.edited_rows = table.index.to_numpy()[: self.n_edits]  # (n_edits,) in the records
        self.queries = np.append(table["q"].to_numpy(np.int64), -1)  # (n + 1,)
        self.negatives = np.append(table["fp"].to_numpy(np.int64), -1)  # (n + 1,)
        self.edits = np.full(len(table) + 1, -1)  # (n + 1,) in the table of the edits
        self.edits[: self.n_edits] = first_edit + np.arange(self.n_edits)
        self.by_query = Groups(self.queries[:-1], n_queries)
        self.edits_by_query = Groups(self.queries[: self.n_edits], n_queries)
        self.edits_by_negative = Groups(self.negatives[: self.n_edits], n_negatives)

    def __len__(self) -> int:
        return len(self.queries) - 1

    def counterparts(self, others: Failures, rule: GridRule) -> np.ndarray:
        """Choose for each record one of the other direction whose edit matches its false positive, (n + 1,).

        It is the mirror, with query and false positive exchanged, else (not with `reciprocal`) the best-scored one.
        -1 for none, or if a rule without edits, or one that draws them, leaves nothing to choose.
        """
        chosen = np.full(len(self) + 1, -1)
        if rule.draws_counterparts or not rule.uses_edits:
            return chosen
        queries, negatives = self.negatives[:-1], self.queries[:-1]
        mirror = others.find(queries, negatives)
        best = others.edits_by_query.draw(queries, np.zeros(len(queries)))
        other = np.full_like(best, -1) if rule.counterparts == "reciprocal" else best
        chosen[:-1] = np.where(others.edits[mirror] >= 0, mirror, other)
        return chosen

    def find(self, queries: np.ndarray, negatives: np.ndarray) -> np.ndarray:
        """Return the best-scored record of each query with the given false positive; -1 for none."""
        known = pd.Series(np.arange(len(self)), pd.MultiIndex.from_arrays([self.queries[:-1], self.negatives[:-1]]))
        known = known[~known.index.duplicated()]
        return known.reindex(pd.MultiIndex.from_arrays([queries, negatives]), fill_value=-1).to_numpy(np.int64)


def read_table(records: Dataset) -> pd.DataFrame:
    """Read the columns that decide the grids: ids, direction, score, and whether a record has an edit.

    Raises:
        UserError: If `records` lack a column.
    """
    if missing := sorted(set(COLUMNS) - set(records.column_names)):
        raise UserError(f"The records lack {missing}; they have {records.column_names}. See `load_records`.")
    table = records.select_columns([*COLUMNS[:5]]).to_pandas()
    for column in EDIT:
        edits = records.select_columns([column]).with_format("arrow")  # images: not all of them at once
        blocks = edits.iter(RECORDS_PER_READ)
        table[column] = [has_edit for block in blocks for has_edit in block[0].is_valid().to_pylist()]
    is_t2i = table["direction"] == "t2i"
    return table.assign(has_edit=np.where(is_t2i, table["edit_image"], table["edit_text"]))


def index_failures(
    table: pd.DataFrame, image_rows: Mapping[str, int], caption_rows: Mapping[str, int]
) -> tuple[Failures, Failures]:
    """Index records by items' rows, first those of I2T, then of T2I; records that name other items are left out.

    `table` is that of `read_table`, or has its columns `record_id`, `direction`, `q_id`, `fp_id`, `fp_score` and
    `has_edit`.
    """
    sides = []
    for direction, queries, negatives in (("i2t", image_rows, caption_rows), ("t2i", caption_rows, image_rows)):
        ours = table[table["direction"] == direction]
        ours = ours.assign(q=ours["q_id"].map(queries), fp=ours["fp_id"].map(negatives)).dropna(subset=["q", "fp"])
        sides.append(Failures(ours, len(queries), len(negatives), first_edit=len(negatives)))
    return sides[0], sides[1]


def reachable_edits(i2t: Failures, t2i: Failures, rule: GridRule) -> dict[str, np.ndarray]:
    """Find by direction which edits can be encoded in some epoch, (n_edits,) bool.

    An image has a caption, so it has an anchor; every anchor comes in some epoch.
    """
    found = {}
    for direction, own, others in (("i2t", i2t, t2i), ("t2i", t2i, i2t)):
        # all of them: opposite their own queries, or beside the false positives they were made of
        is_everywhere = (rule.has_made_from and rule.uses_edits) or (rule.has_own_failures and rule.slot1 == "mixed")
        reached = np.full(own.n_edits, is_everywhere)
        if rule.has_own_failures and rule.uses_edits:
            if rule.draws_counterparts:
                reached |= np.isin(own.queries[: own.n_edits], others.negatives[:-1])
            else:
                chosen = others.counterparts(own, rule)
                reached[chosen[chosen >= 0]] = True
        found[direction] = reached
    return found


def share_reachable(i2t: Failures, t2i: Failures, rule: GridRule) -> dict[str, float]:
    """Return by direction the share of edits that can be encoded in some epoch; none for a direction without."""
    return {way: float(some.mean()) for way, some in reachable_edits(i2t, t2i, rule).items() if len(some)}


def edits_reachable(table: pd.DataFrame, rule: GridRule | None = None) -> dict[str, float]:
    """Return by direction the share of edits that can train, as if the pairs held every item that `table` names.

    `table` is as in `index_failures`; `rule` is the default one without any.
    """
    is_t2i = table["direction"] == "t2i"
    images, captions = (
        {name: row for row, name in enumerate(pd.unique(pd.concat([table["q_id"][asks], table["fp_id"][~asks]])))}
        for asks in (~is_t2i, is_t2i)
    )
    return share_reachable(*index_failures(table, images, captions), rule or GridRule())
