"""Which item goes into which slot, and that draws depend on (seed, epoch, anchor) alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from datasets import Dataset
from made_grids import FEATURES, make_pairs, make_records, many

from repair_hf.runtime.options import UserError
from repair_hf.training.grids import SOURCES, Grids

Paper = partial(Grids, grids="paper")


def draw(grids: Grids, anchor: int, epoch: int = 0) -> tuple[list, list, list]:
    row = grids[(epoch, anchor)]
    return row["grid_images"].tolist(), row["grid_texts"].tolist(), [SOURCES[s] for s in row["sources"]]


# Anchor c0 of image i0; its t2i record names i3 (captions c6, c7), its image's i2t record names c8 (image i4).
# Tables: images 0-5, then edits of t2i records from 6; captions 0-11, then edits of i2t records from 12.
OWN = [("c0", "i3"), ("i0", "c8")]
SLOTS_2_AND_3 = [[False, False, False], [False, False, True], [False, True, False]]  # match each other too


def test_annotations_fill_what_no_record_fills_and_own_edits_stay_out():
    drawn = many(Paper(make_pairs(), make_records(*OWN)), 0)
    assert (drawn["grid_images"] == [0, 4, 3]).all() and not drawn["matches"].any()
    assert (drawn["grid_texts"][:, :2] == [0, 8]).all() and set(drawn["grid_texts"][:, 2]) == {6, 7}
    assert (drawn["sources"] == [SOURCES.index(name) for name in ("anchor", "annotation", "annotation")]).all()


def test_mirror_records_come_first_then_the_best_other_then_the_annotation():
    records = make_records(
        *OWN,
        ("c8", "i0", 0.1),  # mirrors (i0, c8): edits are numbered by score: this is the last of the t2i edits
        ("c8", "i5", 0.9),
        ("c8", "i2", 0.7),
        ("i3", "c0", 0.2),  # mirrors (c0, i3)
        ("i3", "c11", 0.8),
    )
    t2i = {("c8", "i5"): 6, ("c8", "i2"): 7, ("c0", "i3"): 8, ("c8", "i0"): 9}
    i2t = {("i3", "c11"): 12, ("i0", "c8"): 13, ("i3", "c0"): 14}
    mirrored = draw(Paper(make_pairs(), records), 0)
    assert mirrored == ([0, t2i["c8", "i0"], 3], [0, 8, i2t["i3", "c0"]], ["anchor", "reciprocal", "reciprocal"])
    without = records.filter(lambda row: (row["q_id"], row["fp_id"]) not in [("c8", "i0"), ("i3", "c0")])
    assert draw(Paper(make_pairs(), without), 0) == ([0, 6, 3], [0, 8, 12], ["anchor", "other_edit", "other_edit"])
    for some, counterparts in ((without, "reciprocal"), (records, "annotation")):
        images, _, sources = draw(Paper(make_pairs(), some, counterparts=counterparts), 0)
        assert images == [0, 4, 3] and sources == ["anchor", "annotation", "annotation"]


def test_equal_scores_are_ordered_by_record_id_whatever_the_order_of_rows():
    records = make_records(*OWN, ("c8", "i5"), ("c8", "i2"), ("i0", "c10"), ("i0", "c4"))
    one, two = Paper(make_pairs(), records), Paper(make_pairs(), records.select([5, 3, 1, 0, 4, 2]))
    for anchor in range(12):
        drawn = many(two, anchor)
        for name, values in many(one, anchor).items():
            np.testing.assert_array_equal(drawn[name], values)


@pytest.mark.parametrize(
    ("rows", "images", "texts"),
    [
        ([("i0", "c8")], [0, 4, -1], [0, 8]),
        ([("c0", "i3")], [0, -1, 3], [0, -1]),
        ([("c5", "i0")], [0, -1, -1], [0, -1]),
    ],
)
def test_an_anchor_with_a_missing_side(rows, images, texts):
    grids = Paper(make_pairs(), make_records(*rows))
    found_images, found_texts, _ = draw(grids, 0)
    assert found_images == images and found_texts[:2] == texts
    assert [row < 0 for row in found_texts] == [row < 0 for row in found_images]
    assert not grids[(0, 0)]["matches"].any()


def test_one_of_several_records_is_drawn_at_random():
    records = make_records(("i0", "c8"), ("i0", "c4"), ("i0", "c11"), ("c0", "i3"), ("c0", "i5"))
    drawn = many(Paper(make_pairs(), records), 0, 3000)
    for values, expected in ((drawn["grid_texts"][:, 1], {8, 4, 11}), (drawn["grid_images"][:, 2], {3, 5})):
        found, counts = np.unique(values, return_counts=True)
        assert set(found) == expected
        assert (abs(counts / 3000 - 1 / len(expected)) < 0.04).all()
    both = np.corrcoef(drawn["grid_texts"][:, 1] == 8, drawn["grid_images"][:, 2] == 3)[0, 1]
    assert abs(both) < 0.06


def test_mixed_puts_one_own_edit_beside_its_false_positive():
    records = make_records(("c0", "i3"), ("c0", "i5"), ("i0", "c8"), ("i0", "c11"))
    grids = Paper(make_pairs(), records, slot1="mixed")
    drawn = many(grids, 0, 2000)
    image, text = drawn["grid_images"], drawn["grid_texts"]
    new_image, new_text = image[:, 0] >= 6, text[:, 0] >= 12
    assert (new_image ^ new_text).all()
    assert abs(new_image.mean() - 0.5) < 0.04
    assert (text[new_image, 0] == 0).all() and (image[new_text, 0] == 0).all()
    assert (image[new_image, 2] == np.where(image[new_image, 0] == 6, 3, 5)).all()
    assert (text[new_text, 1] == np.where(text[new_text, 0] == 12, 8, 11)).all()
    assert (drawn["sources"][:, 0] == SOURCES.index("own_edit")).all()
    assert (drawn["anchor_images"] == 0).all() and (drawn["anchor_texts"] == 0).all()
    plain = many(Paper(make_pairs(), records), 0, 2000)
    for name in ("grid_images", "grid_texts"):
        np.testing.assert_array_equal(drawn[name][:, 1:], plain[name][:, 1:])


@pytest.mark.parametrize(
    ("row", "changed", "first_edit"), [(("c0", "i3"), "grid_images", 6), (("i0", "c8"), "grid_texts", 12)]
)
def test_mixed_with_one_side_keeps_the_original_half_of_the_time(row, changed, first_edit):
    grids = Paper(make_pairs(), make_records(row), slot1="mixed")
    assert draw(grids, 4)[0] == [2, -1, -1]  # without a record
    drawn = many(grids, 0, 2000)
    other = "grid_texts" if changed == "grid_images" else "grid_images"
    assert (drawn[other][:, 0] == 0).all()
    assert set(drawn[changed][:, 0]) == {0, first_edit}
    assert abs((drawn[changed][:, 0] == first_edit).mean() - 0.5) < 0.04


WORDING = [f"caption {k}" for k in range(12)]
WORDING[7] = "  Caption 8. "


@pytest.mark.parametrize(
    ("wording", "records", "images"),
    [
        # c6 is the false positive of image i0, i3 that of caption c0; c6 is a caption of i3, its annotation
        (None, [("c0", "i3"), ("i0", "c6")], [0, 3, 3]),
        # i3 has a caption that says what c8, a caption of i4, says
        (WORDING, [("c0", "i3"), ("i0", "c8")], [0, 4, 3]),
        # I+(c6) shows what c6 says and T+(i3) says what i3 shows, and c6 is a caption of i3
        (None, [("c0", "i3"), ("i0", "c6"), ("c6", "i0"), ("i3", "c0")], [0, 7, 3]),
    ],
)
def test_true_pairs_off_the_diagonal_are_known(wording, records, images):
    row = Paper(make_pairs(captions=wording), make_records(*records))[(0, 0)]
    assert row["grid_images"].tolist() == images and row["matches"].tolist() == SLOTS_2_AND_3


def test_a_record_without_an_edit_gives_a_negative_and_the_mirror_of_it_the_match():
    """c0 was taken for i3, and i3's record has the edit of c0."""
    records = make_records(("c0", "i3"), ("i3", "c0"), unedited=(0,))
    grids = Paper(make_pairs(), records)
    images, texts, sources = draw(grids, 0)
    assert images == [0, -1, 3] and texts == [0, -1, 12] and sources == ["anchor", "absent", "reciprocal"]
    assert grids.captions[12] == "edit of c0 for i3" and grids.edited_images is None
    # where i3 asks, its negative c0 has no edited image opposite: the annotation of c0 stands there
    assert draw(grids, 6)[0] == [3, 0, -1] and draw(grids, 6)[2] == ["anchor", "annotation", "absent"]


def test_records_without_edits_are_drawn_like_others_and_never_stand_opposite():
    records = make_records(("c8", "i0", 0.9), ("c8", "i5", 0.1), ("c8", "i2", 0.5), *OWN, unedited=(0, 2, 3))
    grids = Paper(make_pairs(), records, slot1="mixed")
    assert len(grids.edited_images) == 1 and len(grids.captions) == 13
    drawn = many(grids, 8, 3000)
    found, counts = np.unique(drawn["grid_images"][:, 2], return_counts=True)
    assert found.tolist() == [0, 2, 5] and (abs(counts / 3000 - 1 / 3) < 0.04).all()
    heads = drawn["grid_images"][:, 0] != 4  # only (c8, i5) has an edit to put there
    assert (drawn["grid_images"][heads, 0] == 6).all() and (drawn["grid_images"][heads, 2] == 5).all()
    assert heads.mean() == pytest.approx(1 / 6, abs=0.04)
    own = many(grids, 0, 400)  # its t2i record has no edit, its image's i2t record has
    assert set(own["grid_images"][:, 0]) == {0} and set(own["grid_texts"][:, 0]) == {0, 12}
    # c8 is the false positive of i0: of its edits there is one, (c8, i5), for (c8, i0) has none
    assert (own["grid_images"][:, 1] == 6).all() and (own["sources"][:, 1] == SOURCES.index("other_edit")).all()


def test_a_record_without_an_edit_makes_no_pair_known():
    """The last caption, c11, must not become a match of i0, whose record lacks its edit."""
    drawn = many(Paper(make_pairs(), make_records(("i0", "c11"), ("c0", "i5"), unedited=(0,)), slot1="mixed"), 0)
    assert set(drawn["grid_images"][:, 0]) == {0, 6} and (drawn["grid_images"][:, 2] == 5).all()
    assert (drawn["grid_texts"][:, 0] == 0).all() and (drawn["grid_texts"][:, 1] == 11).all()
    assert not drawn["matches"][:, 0].any() and not drawn["matches"][:, :, 0].any()


def test_an_edit_matches_the_query_it_was_made_for():
    """The edit that mirrors (i0, c8) shows c8; i5 has an edit that says what c8 says."""
    rows = make_records(("i0", "c8"), ("c8", "i0"), ("c0", "i5"), ("i5", "c0")).to_list()
    rows[3]["edit_text"] = "caption 8"
    row = Paper(make_pairs(), Dataset.from_list(rows, features=FEATURES))[(0, 0)]
    assert row["matches"].tolist() == SLOTS_2_AND_3


def test_draws_do_not_depend_on_the_company():
    grids = Paper(make_pairs(), make_records(*OWN, ("i0", "c4"), ("c0", "i5")), slot1="mixed", seed=3)
    keys = [(epoch, anchor) for epoch in range(5) for anchor in range(12)]
    for key, together in zip(keys, grids.__getitems__(keys), strict=True):
        for name, value in grids[key].items():
            np.testing.assert_array_equal(value, together[name])
    other = Paper(make_pairs(), make_records(*OWN, ("i0", "c4"), ("c0", "i5")), slot1="mixed", seed=4)
    assert (many(other, 0)["grid_texts"] != many(grids, 0)["grid_texts"]).any()


def test_report_counts_every_anchor_and_source():
    records = make_records(*OWN, ("i3", "c0"), ("c2", "i0"))
    report = Paper(make_pairs(), records, slot1="mixed").report()
    # c0: both sides; c1, c6, c7: their image's record; c2: its own record; the other seven: none
    assert [report[key] for key in ("anchors", "grids_3", "grids_2", "grids_0")] == [12, 1, 4, 7]
    assert [report[f"image_{name}"] for name in ("reciprocal", "other_edit", "annotation")] == [2, 0, 2]
    assert [report[f"caption_{name}"] for name in ("reciprocal", "other_edit", "annotation")] == [1, 1, 0]
    assert report["cells"] == 6 + 4 * 2
    assert 1 <= report["slot1_own_edit"] <= 5


def test_what_stands_opposite_can_be_left_out():
    records = make_records(*OWN, ("i3", "c0"), ("c2", "i0"))
    whole, alone = Paper(make_pairs(), records), Paper(make_pairs(), records, negatives="alone")
    drawn, found = many(whole, 0), many(alone, 0)
    assert (found["grid_images"][:, 1] == -1).all() and (found["grid_texts"][:, 2] == -1).all()
    for name, slots in (("grid_images", [0, 2]), ("grid_texts", [0, 1])):
        assert (found[name][:, slots] == drawn[name][:, slots]).all()
    assert (found["matches"][:, 0, 1] == drawn["matches"][:, 0, 1]).all()
    assert (found["matches"][:, 2, 0] == drawn["matches"][:, 2, 0]).all()
    report = alone.report()
    assert report["cells"] == 2 + 4 and "image_annotation" not in report  # one negative for each side of an anchor
    assert report["cells_known"] == 0
    # c7 (of i3) has T_hn c0 and I_hn i0, whose caption c0 is; so what stands opposite them matches too
    negatives = make_records(("i3", "c0"), ("c7", "i0"))
    reports = [Paper(make_pairs(), negatives, negatives=some).report() for some in ("grid", "alone")]
    assert [report["cells_known"] for report in reports] == [2, 0]


def test_without_records_a_row_is_the_pair():
    grids = Grids(make_pairs())
    assert {name: int(value) for name, value in grids[(0, 5)].items()} == {"anchor_images": 2, "anchor_texts": 5}
    assert grids.report() == {"anchors": 12, "grids_3": 0, "grids_2": 0, "grids_0": 12}


def test_records_of_other_pairs_or_columns_raise_and_some_are_left_out(caplog):
    with pytest.raises(UserError, match="None of the 2 records names an image and a caption of these pairs"):
        Paper(make_pairs(), make_records(("c99", "i0"), ("i0", "c99")))
    with pytest.raises(UserError, match=r"lack \['fp_score'\]; they have"):
        Paper(make_pairs(), make_records(*OWN).remove_columns("fp_score"))
    grids = Paper(make_pairs(), make_records(*OWN, ("c99", "i0")))
    assert "1 of 3 records name items outside these pairs" in caplog.text
    assert len(grids.edited_images) == 1


def test_edits_stand_in_the_tables_where_the_draws_point():
    records = make_records(*OWN, ("i3", "c0"), ("c8", "i0"))
    grids = Paper(make_pairs(), records)
    images, texts, _ = draw(grids, 0)
    assert grids.captions[texts[2]] == "edit of c0 for i3"
    t2i = [row["q_id"] for row in records if row["direction"] == "t2i"]  # of equal scores, in the order of their ids
    assert t2i[images[1] - 6] == "c8" and len(grids.edited_images) == 2


def test_captions_of_one_image_share_its_i2t_records():
    grids = Paper(make_pairs(), make_records(("i0", "c8")))
    assert draw(grids, 0)[1] == [0, 8, -1] and draw(grids, 1)[1] == [1, 8, -1] and draw(grids, 2)[1] == [2, -1, -1]
