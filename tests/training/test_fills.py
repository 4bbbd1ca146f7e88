"""Which pairs stand beside an anchor, by id, over many epochs, against loops over the records."""

from __future__ import annotations

import numpy as np
import pytest
from made_pairs import make_pairs, make_records, names_of, random_records

from repair_hf.runtime.options import UserError
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, Edits, fill_of

EPOCHS = 250
NOBODY = (None, None)


def rows_of(records, direction: str, *, edited: bool = False, **ids: str) -> list[dict]:
    """The records with these ids, best-scored first."""
    edit = "edit_text" if direction == "i2t" else "edit_image"
    found = [
        row
        for row in records.to_list()
        if row["direction"] == direction
        and (row[edit] is not None or not edited)
        and all(row[name] == value for name, value in ids.items())
    ]
    return sorted(found, key=lambda row: (-row["fp_score"], row["record_id"]))


@pytest.mark.parametrize("seed", range(2))
def test_each_edit_stands_beside_its_false_positive_with_the_item_that_it_was_made_for(seed):
    records = random_records(40, seed)
    fill, seen, has_pair = Edits(make_pairs(), records), set(), 0
    for anchor in range(12):
        image, caption = f"i{anchor // 2}", f"c{anchor}"
        pictures = {(row["record_id"], row["q_id"]) for row in rows_of(records, "t2i", edited=True, fp_id=image)}
        texts = {(row["q_id"], row["record_id"]) for row in rows_of(records, "i2t", edited=True, fp_id=caption)}
        own, of_image, of_caption = zip(*names_of(fill, records, anchor, EPOCHS), strict=True)
        assert set(own) == {(image, caption)}
        assert set(of_image) == (pictures or {NOBODY}) and set(of_caption) == (texts or {NOBODY})
        seen |= {name for name, _ in pictures} | {name for _, name in texts}
        has_pair += bool(pictures or texts)
    assert fill.share == has_pair / 12
    assert len(seen) == fill.i2t.n_edits + fill.t2i.n_edits


@pytest.mark.parametrize("seed", range(2))
def test_the_papers_grid_draws_from_both_sides_and_every_edit_stands_beside_its_source(seed):
    """What fits an own false positive is any edit that was made for it, else an annotated item."""
    records = random_records(60, seed)
    fill, seen, has_pair, kinds = Edits(make_pairs(), records, own_failures=True), set(), 0, set()
    for anchor in range(12):
        image, caption = f"i{anchor // 2}", f"c{anchor}"
        of_image, of_caption = set(), set()
        for row in rows_of(records, "t2i", fp_id=image) + rows_of(records, "i2t", q_id=image):
            wrong = row["q_id"] if row["direction"] == "t2i" else row["fp_id"]
            edits = [edit["record_id"] for edit in rows_of(records, "t2i", edited=True, q_id=wrong)]
            if row["direction"] == "t2i" and row["edit_image"] is not None:
                edits = [row["record_id"]]
            of_image |= {(fits, wrong) for fits in edits or [f"i{int(wrong[1:]) // 2}"]}
        for row in rows_of(records, "i2t", fp_id=caption) + rows_of(records, "t2i", q_id=caption):
            wrong = row["q_id"] if row["direction"] == "i2t" else row["fp_id"]
            edits = [edit["record_id"] for edit in rows_of(records, "i2t", edited=True, q_id=wrong)]
            if row["direction"] == "i2t" and row["edit_text"] is not None:
                edits = [row["record_id"]]
            place = 2 * int(wrong[1:])
            of_caption |= {(wrong, fits) for fits in edits or [f"c{place}", f"c{place + 1}"]}
        own, *beside = zip(*names_of(fill, records, anchor, EPOCHS), strict=True)
        assert set(own) == {(image, caption)}
        for drawn, expected in zip(beside, (of_image, of_caption), strict=True):
            assert set(drawn) == (expected or {NOBODY})
            kinds |= {"edit" if "r" in f"{pair}" else "annotation" for pair in expected}
        seen |= {name for pairs in beside for pair in pairs for name in pair if name and name.startswith("r")}
        has_pair += bool(of_image or of_caption)
    assert fill.share == has_pair / 12 and kinds == {"edit", "annotation"}
    assert len(seen) == fill.i2t.n_edits + fill.t2i.n_edits


def test_one_of_several_is_drawn_uniformly_for_each_side_apart():
    rows = [("c5", "i0"), ("c7", "i0"), ("c8", "i0"), ("i1", "c0"), ("i2", "c0"), ("i3", "c0")]
    epochs = np.arange(3000)
    mixed = [row[:: (-1) ** place] for place, row in enumerate(rows)]
    for own_failures, sides in ((False, rows), (True, [row[::-1] for row in rows]), (True, mixed)):
        fill = Edits(make_pairs(), make_records(*sides), own_failures=own_failures)
        images, texts = fill.draw(epochs, np.zeros(3000, int))
        for column in (texts[:, 1], images[:, 2]):
            counts = np.unique(column, return_counts=True)[1]
            assert len(counts) == 3 and abs(counts - 1000).max() < 130  # 5 standard deviations
        assert abs(np.corrcoef(texts[:, 1] == 5, images[:, 2] == 1)[0, 1]) < 0.1


@pytest.mark.parametrize("own_failures", [False, True])
def test_draws_depend_on_seed_epoch_and_anchor_alone(own_failures):
    def kind(pairs, records, seed):
        return Edits(pairs, records, seed=seed, own_failures=own_failures)

    records, rng = random_records(60, 0), np.random.default_rng(0)
    fill, again = (kind(make_pairs(), records, seed=3) for _ in range(2))
    epochs, anchors = np.divmod(np.arange(60), 12)
    some = rng.permutation(60)[:25]
    for whole, part in zip(fill.draw(epochs, anchors), again.draw(epochs[some], anchors[some]), strict=True):
        np.testing.assert_array_equal(whole[some], part)
    shuffled = records.select(rng.permutation(60))
    other = kind(make_pairs(), shuffled, seed=3)
    named = [names_of(fill, records, anchor, 5) for anchor in range(12)]
    assert [names_of(other, shuffled, anchor, 5) for anchor in range(12)] == named
    another = kind(make_pairs(), records, seed=4)
    assert [names_of(another, records, anchor, 5) for anchor in range(12)] != named


def test_edits_lie_in_the_tables_where_the_draws_point():
    records = random_records(40, 1)
    fill = Edits(make_pairs(), records)
    assert fill.texts["edit_text"][:] == records.select(fill.i2t.edited_rows)["record_id"]  # the text is the id
    assert len(fill.images) == fill.t2i.n_edits and len(fill.texts) == fill.i2t.n_edits
    one_way = records.filter(lambda row: row["direction"] == "t2i")
    assert Edits(make_pairs(), one_way).texts is None
    none = records.map(lambda row: {"edit_image": None, "edit_text": None})
    assert Edits(make_pairs(), none).share == 0
    fill = Edits(make_pairs(), none, own_failures=True)  # without edits, failures stand beside annotated items
    assert fill.images is fill.texts is None and fill.share > 0


def test_reports_count_the_anchors_by_what_stands_beside_them():
    records = make_records(("c0", "i3"), ("i0", "c8"), ("c2", "i0"), ("c99", "i0"), unedited=(2,))
    edits = {"edits_i2t": 1, "edits_t2i": 1, "records_outside": 1}
    counts = {"anchors": 12, "with_pairs": 3, "beside_text": 2, "beside_image": 1}
    # c6 and c7 of i3, and c8
    assert Edits(make_pairs(), records).report() == counts | edits
    counts = {"anchors": 12, "with_pairs": 6, "beside_text": 4, "beside_image": 3}
    # a caption beside c0, c1 of i0, and c6, c7 of i3; an image beside c0, c2, and c8
    assert Edits(make_pairs(), records, own_failures=True).report() == counts | edits
    alone = Anchors(make_pairs())
    assert alone.report() == {"anchors": 12, "with_pairs": 0} and alone.share == 0.0
    assert [rows.tolist() for rows in alone.draw(np.array([0, 3]), np.array([5, 1]))] == [[[2], [0]], [[5], [1]]]


@pytest.mark.parametrize("own_failures", [False, True])
def test_any_part_of_a_batch_is_as_wide_as_the_others(own_failures):
    """So that processes gather equal shapes, also where no anchor of one has a pair beside it."""
    fill = Edits(make_pairs(), make_records(("c0", "i3"), ("i0", "c4")), own_failures=own_failures)
    drawn = [fill.draw(np.zeros(1, int), np.array([anchor])) for anchor in range(12)]
    assert {rows.shape for sides in drawn for rows in sides} == {(1, 3)}
    assert min((images >= 0).sum() for images, _ in drawn) == 1


def test_options_choose_the_fill_and_what_cannot_train_is_named(tmp_path, caplog):
    def fill(records, **named):
        return fill_of(make_pairs(), records, RepairConfig(str(tmp_path), use_cpu=True, **named), None)

    records = random_records(40, 0)
    assert type(fill(records)) is type(fill(records, paper=True)) is Edits
    one = make_records(("c0", "i3"))
    assert (fill(one).share, fill(one, paper=True).share) == (2 / 12, 3 / 12)  # c6 and c7 of i3; and c0
    assert type(fill(records, loss="none")) is type(fill(None)) is Anchors
    caplog.clear()
    fill(make_records(("c0", "i3"), ("i0", "c99")))
    assert "1 of 2 records" in caplog.text
    with pytest.raises(UserError, match="None of the 1 records"):
        fill(make_records(("c99", "i0")))
    with pytest.raises(UserError, match="The records lack"):
        fill(records.remove_columns("fp_id"))
