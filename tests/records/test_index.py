"""Records by query and by false positive, against loops over their rows."""

from __future__ import annotations

import numpy as np
import pytest
from made_pairs import make_pairs, make_records, random_records

from repair_hf.records.index import Groups, index_failures
from repair_hf.runtime.options import UserError


def test_a_place_of_each_group_is_drawn_uniformly():
    keys = np.array([4, 0, 4, 1, 4])
    groups = Groups(keys, 6)
    wanted = np.repeat([4, 0, 1, 3, -1], 3000)
    drawn = groups.draw(wanted, np.random.default_rng(0).random(15_000)).reshape(5, 3000)
    assert set(drawn[0]) == {0, 2, 4} and np.bincount(drawn[0])[[0, 2, 4]].min() > 900
    assert (drawn[1:] == [[1], [3], [-1], [-1]]).all()
    assert groups.draw(np.array([4, 4]), np.array([0.0, 1 - 2**-53])).tolist() == [0, 4]
    assert groups.count.tolist() == [1, 1, 0, 0, 3, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_records_are_found_whatever_their_order_those_with_an_edit_first(seed):
    records, pairs = random_records(40, seed), make_pairs()
    shuffled = records.select(np.random.default_rng(seed).permutation(40))
    for direction, *sides in zip(
        ("i2t", "t2i"), index_failures(records, pairs), index_failures(shuffled, pairs), strict=True
    ):
        rows = [row for row in records.to_list() if row["direction"] == direction]
        edit = "edit_text" if direction == "i2t" else "edit_image"
        rows.sort(key=lambda row: (row[edit] is None, -row["fp_score"], row["record_id"]))
        first = 12 if direction == "i2t" else 6
        has_edit = [row[edit] is not None for row in rows]
        for side, table in zip(sides, (records, shuffled), strict=True):
            assert len(side) == len(rows) and side.n_edits == sum(has_edit)
            assert table[side.edited_rows.tolist()]["record_id"] == [row["record_id"] for row in rows[: sum(has_edit)]]
            for values, name in ((side.queries, "q_id"), (side.negatives, "fp_id")):
                assert values.tolist() == [*(int(row[name][1:]) for row in rows), -1]
            assert side.edits.tolist() == [*(first + k if has else -1 for k, has in enumerate(has_edit)), -1]


def test_records_of_other_items_stay_out_and_a_missing_column_is_named():
    records = make_records(("c0", "i3"), ("c99", "i0"), ("i0", "c99"), ("i1", "c0"))
    assert [len(side) for side in index_failures(records, make_pairs())] == [1, 1]
    with pytest.raises(UserError, match="fp_score"):
        index_failures(records.remove_columns("fp_score"), make_pairs())
