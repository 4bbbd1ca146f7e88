import random

import pytest
from datasets import Dataset
from PIL import Image

from repair_hf.analysis.record_sample import compare, sample_records
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import DROPPED_FEATURES
from repair_hf.runtime.options import UserError


@pytest.fixture
def many(repaired):
    """Builds records of both directions, as many of each as asked for."""
    rows = {name: [row for row in repaired if row["direction"] == name] for name in ("t2i", "i2t")}

    def build(t2i: int, i2t: int) -> Dataset:
        wanted = [rows["t2i"][k % 12] | {"record_id": f"t{k}"} for k in range(t2i)]
        kinds = [["Count"] if k % 3 else [] for k in range(i2t)]
        wanted += [rows["i2t"][k % 12] | {"record_id": f"i{k}", "error_types": kinds[k]} for k in range(i2t)]
        return Dataset.from_list(wanted, features=repaired.features)

    return build


def names(sample) -> list[str]:
    return [row["record_id"] for row in sample.rows]


@pytest.mark.parametrize(
    "t2i, i2t, n, expected",
    [(9, 9, 6, (3, 3)), (9, 1, 6, (5, 1)), (0, 9, 6, (0, 6)), (2, 2, 9, (2, 2)), (5, 5, 1, (0, 1))],
)
def test_both_directions_get_the_same_share_as_far_as_there_are_records(many, t2i, i2t, n, expected):
    sample = sample_records(many(t2i, i2t), n=n)
    assert len(set(names(sample))) == len(sample.rows) and sample.available == {"t2i": t2i, "i2t": i2t}
    directions = [row["direction"] for row in sample.rows]
    assert (directions.count("t2i"), directions.count("i2t")) == expected


def test_the_seed_the_direction_and_the_kind_of_error_choose(many):
    records = many(20, 9)
    first, again, other = (names(sample_records(records, n=4, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    sample = sample_records(many(3, 3), n=6, direction="i2t")
    assert names(sample) == ["i0", "i1", "i2"] and sample.available == {"i2t": 3}
    sample = sample_records(records, n=20, error_type="Count")
    assert names(sample) == ["i1", "i2", "i4", "i5", "i7", "i8"] and sample.available == {"t2i": 0, "i2t": 6}


def dropped(*reasons: str, fp_id: str = "red_circle.png") -> Dataset:
    row = dict.fromkeys(DROPPED_FEATURES)
    row |= {"direction": "t2i", "q_text": "a", "gt_id": "blue_circle.png", "fp_id": fp_id}
    return Dataset.from_list([row | {"reason": reason} for reason in reasons], features=DROPPED_FEATURES)


def test_missing_pictures_come_from_the_pairs(repaired, pairs_folder):
    failures = dropped("no_op", "gt_invalid", "gt_invalid")
    sample = sample_records(failures, n=5, reason="gt_invalid")
    assert len(sample.rows) == 2 and sample.lacks_images
    whole = sample_records(failures, n=5, reason="gt_invalid", pairs=load_pairs(pairs_folder, split="all"))
    assert not whole.lacks_images
    with Image.open(pairs_folder / "red_circle.png") as picture:
        assert whole.rows[0]["fp_image"].tobytes() == picture.convert("RGB").tobytes()
    sample = sample_records(repaired, n=24, pairs=load_pairs(pairs_folder, split="all"))
    edits = {row["record_id"]: row["edit_image"] for row in repaired}  # these stay
    assert len(sample.rows) == 24 and all(row["edit_image"] == edits[row["record_id"]] for row in sample.rows)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(direction="t2i"), r"Nothing to draw: records: \{'t2i': 0\}"),
        (dict(n=0), r"Nothing to draw: records: .* `n` is 0"),
        (dict(direction="up"), r"must be one of \['t2i', 'i2t'\], got 'up'"),
        (dict(error_type="Coutn"), r"type 'Coutn' \(the table has \{'Count': 1\}\)"),
    ],
)
def test_where_there_is_nothing_to_draw_it_says_so(many, options, message):
    with pytest.raises(UserError, match=message):
        sample_records(many(0, 2), **{"n": 8} | options)


def test_failures_of_an_unknown_reason_or_without_a_picture(pairs_folder):
    with pytest.raises(UserError, match=r"dropped as 'no-op' \(the table has \{'no_op': 2\}\)"):
        sample_records(dropped("no_op", "no_op"), n=8, reason="no-op")
    with pytest.raises(UserError, match="the image 'absent.png', which is not in `pairs`"):
        sample_records(dropped("no_op", fp_id="absent.png"), n=1, pairs=load_pairs(pairs_folder, split="all"))


def test_changes_are_marked_and_case_and_punctuation_are_no_change():
    before, after = compare("A red dog, runs home.", "a blue dog runs")
    assert before == [("same", "A"), ("out", "red"), ("same", "dog, runs"), ("out", "home.")]
    assert after == [("same", "a"), ("in", "blue"), ("same", "dog runs")]


def test_each_side_is_its_text():
    rng = random.Random(0)
    for _ in range(200):
        texts = [" ".join(rng.choices("a A b, b c - d", k=rng.randrange(8))) for _ in range(2)]
        for text, runs in zip(texts, compare(*texts), strict=True):
            assert " ".join(run for _, run in runs) == " ".join(text.split())
