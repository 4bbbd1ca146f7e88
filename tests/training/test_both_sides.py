"""Which edits are encoded under each rule, by id, and what `edits_reachable` says of it, against many drawn epochs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from datasets import concatenate_datasets
from made_grids import make_pairs, make_records, many

from repair_hf.training.grid_records import edits_reachable, read_table
from repair_hf.training.grids import SOURCES, Grids
from repair_hf.training.sampling import OneCaptionPerImage

EPOCHS = 300
# Images 0-5 with captions 2k and 2k + 1. Anchor c0 of image i0: c5 was confused with i0, i4 with c0.
MADE = [("c5", "i0"), ("i4", "c0")]
OWN = [("c0", "i3"), ("i0", "c8")]


def encoded(grids: Grids, records, epochs: int = EPOCHS) -> set[str]:
    """The ids of the records whose edits are in some grid of some epoch."""
    names = np.array(records["record_id"][:])
    edits = {"grid_images": (names[grids._t2i.edited_rows], 6), "grid_texts": (names[grids._i2t.edited_rows], 12)}
    drawn = grids.draw(np.repeat(np.arange(epochs), 12), np.tile(np.arange(12), epochs))
    return {name for table, (ids, first) in edits.items() for name in ids[drawn[table][drawn[table] >= first] - first]}


def test_an_edit_stands_beside_the_item_it_was_made_from_and_the_diagonal_is_its_match():
    grids = Grids(make_pairs(), make_records(*MADE))
    drawn = many(grids, 0)
    assert (drawn["grid_images"] == [0, 6, 4]).all() and (drawn["grid_texts"] == [0, 5, 12]).all()
    assert (drawn["sources"] == [SOURCES.index(name) for name in ("anchor", "reciprocal", "reciprocal")]).all()
    assert not drawn["matches"].any() and grids.captions[12] == "edit of c0 for i4"
    assert (many(grids, 1)["grid_images"] == [0, 6, -1]).all()  # the other caption of i0 shares its image's record


def test_cells_known_to_be_true_are_masked_beside_an_edit_too():
    """c9, which was confused with i0, is a caption of i4, which was confused with c0."""
    matches = Grids(make_pairs(), make_records(("c9", "i0"), ("i4", "c0")))[(0, 0)]["matches"]
    assert np.argwhere(matches).tolist() == [[1, 2], [2, 1]]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_both_kinds_are_drawn_with_their_share_and_each_slot_by_itself(share):
    drawn = many(Grids(make_pairs(), make_records(*MADE, *OWN), own_failures_share=share), 0, 4000)
    own_text, own_image = drawn["grid_texts"][:, 1] == 8, drawn["grid_images"][:, 2] == 3
    assert set(drawn["grid_texts"][:, 1]) <= {5, 8} and set(drawn["grid_images"][:, 2]) <= {4, 3}
    for is_own in (own_text, own_image):
        assert is_own.mean() == pytest.approx(share, abs=0.03)
    if 0 < share < 1:
        assert abs(np.corrcoef(own_text, own_image)[0, 1]) < 0.06
    only = many(Grids(make_pairs(), make_records(*OWN), own_failures_share=share), 0)
    assert (only["grid_images"][:, 2] == (3 if share else -1)).all()  # the only kind is used, unless it is left out


def test_counterparts_are_drawn_among_all_records_of_the_query():
    records = make_records(*OWN, ("c8", "i5", 0.9), ("c8", "i2", 0.1), ("c8", "i1", 0.2))
    drawn = many(Grids(make_pairs(), records, own_failures_share=1.0), 0, 3000)
    found, counts = np.unique(drawn["grid_images"][:, 1], return_counts=True)
    assert len(found) == 3 and (abs(counts / 3000 - 1 / 3) < 0.03).all()
    best = many(Grids(make_pairs(), records, own_failures_share=1.0, counterparts="best"), 0)
    assert (best["grid_images"][:, 1] == 6).all()


ALL = [*MADE, ("i1", "c8"), ("c8", "i5", 0.9), ("c8", "i2", 0.1), ("c2", "i3")]
RULES = [
    (dict(), "r0 r1 r2 r3 r4 r5"),
    (dict(own_failures_share=0.0), "r0 r1 r2 r3 r4 r5"),
    (dict(grids="paper"), "r3"),  # c8 is i1's false positive, and (c8, i5) the best record that asks for it
    (dict(own_failures_share=1.0), "r3 r4"),
    (dict(grids="paper", slot1="mixed"), "r0 r1 r2 r3 r4 r5"),
    (dict(counterparts="annotation"), ""),
    (dict(negatives="alone"), ""),
]


@pytest.mark.parametrize(("rule", "ids"), RULES)
def test_edits_that_are_encoded_by_id(rule, ids):
    records = make_records(*ALL)
    assert encoded(Grids(make_pairs(), records, **rule), records) == set(ids.split())


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_a_single_direction_trains_its_edits(direction):
    """By the default rule alone; by the paper's with the other direction's failures as records without an edit."""
    kept = make_records(*ALL).filter(lambda row: row["direction"] == direction)
    grids = Grids(make_pairs(), kept)
    assert encoded(grids, kept) == set(kept["record_id"]) and grids.edits_reachable() == {direction: 1.0}
    assert encoded(Grids(make_pairs(), kept, grids="paper"), kept) == set()
    mirrors = make_records(*((row["fp_id"], row["q_id"]) for row in kept), unedited=tuple(range(len(kept))))
    both = concatenate_datasets([kept, mirrors.map(lambda row: {"record_id": f"free-{row['record_id']}"})])
    assert encoded(Grids(make_pairs(), both, grids="paper"), both) == set(kept["record_id"])


def test_the_share_of_reachable_edits_is_that_of_many_epochs():
    rng = np.random.default_rng(0)
    rows = [(f"c{rng.integers(12)}", f"i{rng.integers(6)}", rng.random()) for _ in range(7)]
    rows += [(f"i{rng.integers(6)}", f"c{rng.integers(12)}", rng.random()) for _ in range(7)]
    rows = [*rows, ("c99", "i0")]  # outside the pairs: counts neither way
    records = make_records(*dict.fromkeys(rows), unedited=(0, 8))
    ways = {row["record_id"]: row["direction"] for row in records if row["edit_text"] or row["edit_image"]}
    del ways[f"r{len(rows) - 1}"]
    for grids, share, counterparts, slot1 in product(
        ("both", "paper"), (0.5, 1.0), ("edited", "best", "reciprocal", "annotation"), ("anchor", "mixed")
    ):
        rule = dict(grids=grids, own_failures_share=share, counterparts=counterparts, slot1=slot1)
        drawn = Grids(make_pairs(), records, **rule)
        seen = [ways[name] for name in encoded(drawn, records)]
        expected = {way: seen.count(way) / list(ways.values()).count(way) for way in ("i2t", "t2i")}
        assert drawn.edits_reachable() == pytest.approx(expected), rule
        inside = records.select(range(len(records) - 1))
        assert edits_reachable(read_table(inside), drawn.rule) == pytest.approx(expected), rule


def test_edits_encoded_are_counted_over_the_steps_of_the_run():
    records = make_records(*ALL, ("c4", "i1"), ("i5", "c10"))
    grids = Grids(make_pairs(), records)
    sampler = OneCaptionPerImage(grids.anchor_images, 4, seed=1)
    for steps in (1, 3, 8):
        keys = []
        for epoch in range(4):
            sampler.set_epoch(epoch)
            keys += list(sampler)
        rows = [grids[key] for key in keys[: 4 * steps]]
        images, texts = ({int(i) for row in rows for i in row[f"grid_{kind}"]} for kind in ("images", "texts"))
        expected = {"i2t": sum(i >= 12 for i in texts), "t2i": sum(i >= 6 for i in images)}
        assert grids.samples_encoded(sampler.keys(steps)) == expected
    assert Grids(make_pairs()).samples_encoded(sampler.keys(1)) == {}


PAIRED = {"grid": 0, "grid+captions": 1, "grid+edits": 2, "batch": 2}


@pytest.mark.parametrize(("negatives", "count"), PAIRED.items())
def test_edits_are_pairs_of_the_global_batch_with_their_own_queries(negatives, count):
    row = Grids(make_pairs(), make_records(*MADE), negatives=negatives)[(0, 0)]
    if not count:
        assert "pair_images" not in row
        return
    slot2 = (6, 5) if count == 2 else (-1, -1)  # the image that was edited for c5; i4 with the caption edited for it
    assert row["pair_images"].tolist() == [-1, slot2[0], 4] and row["pair_texts"].tolist() == [-1, slot2[1], 12]
    known = (row["answers"][:, :, None] == row["wordings"]).any(1)  # (4 images, 4 texts)
    is_pair = np.array([True, False, count == 2, True])
    assert (known.diagonal() == is_pair)[is_pair].all()
    annotated = Grids(make_pairs(), make_records(*OWN), negatives=negatives, own_failures_share=1.0)[(0, 0)]
    assert (annotated["pair_images"].tolist() == [-1, 4, 3]) == (negatives == "batch")


def test_an_own_edit_in_slot_1_is_a_pair_of_the_global_batch():
    rule = dict(own_failures_share=1.0, slot1="mixed", negatives="grid+edits")
    drawn = many(Grids(make_pairs(), make_records(*OWN), **rule), 0)
    pairs = set(zip(drawn["pair_images"][:, 0].tolist(), drawn["pair_texts"][:, 0].tolist(), strict=True))
    assert pairs == {(6, 0), (0, 12)}


def test_further_known_pairs_are_masked():
    """As if i0 showed what c5 says: c5 asked for an edit of i0."""
    records = make_records(*MADE)
    known = np.array([0]), np.array([5])
    before, after = (Grids(make_pairs(), records, negatives="grid", known=some)[(0, 0)] for some in (None, known))
    assert after["matches"][0, 1] and not before["matches"][0, 1]
    assert after["matches"].sum() == before["matches"].sum() + 1
