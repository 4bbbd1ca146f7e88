"""Rows of samples: who is drawn in whose place, how often, and what a share leaves."""

from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset

from repair_hf.pairs.dataset import load_pairs
from repair_hf.study.methods.samples import SAMPLES, SampleRows, content_of
from repair_hf.study.methods.sugarcrepe import is_small


@pytest.fixture(scope="module")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")  # 12 images, 24 captions


def samples(pairs, texts: dict[int, str | None]) -> Dataset:
    ids, images = pairs.captions["caption_id"], pairs.images["image_id"]
    rows = [
        {"caption_id": ids[row], "image_id": images[int(pairs.caption_image[row])], "text": text, "edit_image": None}
        for row, text in texts.items()
    ]
    return Dataset.from_list(rows, features=SAMPLES)


def test_a_caption_and_its_rewrites_are_equally_likely(pairs):
    rows = SampleRows(pairs, {"rewrite": samples(pairs, {3: "one"})})
    drawn = rows.draw(np.arange(4000), np.full(4000, 3))["anchor_texts"]
    assert set(drawn.tolist()) == {3, 24} and rows.captions[24] == "one"
    assert np.mean(drawn == 3) == pytest.approx(0.5, abs=0.04)
    assert (rows.draw(np.arange(50), np.full(50, 4))["anchor_texts"] == 4).all()  # none of its own


def test_a_variant_stands_in_for_the_image_of_its_own_caption_alone(pairs):
    """It is true of that caption, and may have changed what another caption of the image names."""
    made = samples(pairs, {4: None}).map(lambda row: {"edit_image": PIL.Image.new("RGB", (2, 2))}, features=SAMPLES)
    rows = SampleRows(pairs, {"variant": made})
    drawn = rows.draw(np.arange(4000), np.full(4000, 4))["anchor_images"]
    assert set(drawn.tolist()) == {2, 12} and np.mean(drawn == 2) == pytest.approx(0.5, abs=0.04)
    assert len(rows.edited_images) == 1 and pairs.caption_image[5] == 2
    assert (rows.draw(np.arange(50), np.full(50, 5))["anchor_images"] == 2).all()


def test_a_negative_goes_with_its_own_caption(pairs):
    rows = SampleRows(pairs, {"negative": samples(pairs, {0: "no circle", 5: "no square"})})
    drawn = rows.draw(np.zeros(24, int), np.arange(24))["negative_texts"]
    assert rows.captions[drawn[0]] == "no circle" and rows.captions[drawn[5]] == "no square"
    assert (np.delete(drawn, [0, 5]) == -1).all()


def test_the_rows_of_one_group_are_known_to_match(pairs):
    """12 images of 4 groups: an anchor's row has the number of its group, whatever is drawn in its place."""
    assert "wordings" not in SampleRows(pairs, {}).draw(np.zeros(24, int), np.arange(24))
    named = replace(pairs, images=pairs.images.add_column("group", [f"product {k % 4}" for k in range(12)]))
    drawn = SampleRows(named, {"rewrite": samples(pairs, {3: "one"})}).draw(np.zeros(24, int), np.arange(24))
    assert drawn["wordings"].tolist() == [[k % 4] for k in pairs.caption_image]
    assert (drawn["answers"][:, 0] == drawn["wordings"]).all()


def test_a_larger_share_holds_the_smaller(pairs):
    made = samples(pairs, {row: f"text {row}" for row in range(20)})
    kept = [set(SampleRows(pairs, {"rewrite": made}, share=share).captions) for share in (0.2, 0.6, 1.0)]
    assert [len(some) - 24 for some in kept] == [4, 12, 20]
    assert kept[0] < kept[1] < kept[2]


def test_a_hard_negative_changes_at_most_half_of_the_words():
    assert is_small("a red ball on grey paper", "a blue ball on grey paper")
    assert not is_small("a red ball on grey paper", "two dogs run through the snow")


def test_samples_of_other_images_have_another_content_and_those_of_another_folder_do_not(pairs, tmp_path):
    """An image's file is named by what made it: editor, source and instruction."""

    def drawn(*files: str) -> str:
        rows = [
            {"caption_id": str(row), "text": "a cat", "edit_image": str(tmp_path / file)}
            for row, file in enumerate(files)
        ]
        return content_of(Dataset.from_list([{"image_id": "x"} | row for row in rows], features=SAMPLES))

    assert (
        drawn("here/a.png", "here/b.png") == drawn("there/a.png", "there/b.png") != drawn("here/a.png", "here/c.png")
    )
    assert content_of(samples(pairs, {0: "one"})) != content_of(samples(pairs, {0: "two"}))
