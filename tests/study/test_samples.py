"""The fills of the baselines: who is drawn in whose place, how often, what matches what, and what a share leaves."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import torch
from datasets import Dataset

from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.truth import truth_of
from repair_hf.study.cells import fill_for
from repair_hf.study.makers import is_small
from repair_hf.study.methods import METHODS
from repair_hf.study.products import Product
from repair_hf.study.samples import SAMPLES, Samples
from repair_hf.training.config import RepairConfig


@pytest.fixture(scope="module")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")  # 12 images, 24 captions


def samples(pairs, texts: dict[int, str | None], *, drawn: bool = False) -> Dataset:
    ids, images = pairs.captions["caption_id"], pairs.images["image_id"]
    picture = PIL.Image.new("RGB", (2, 2)) if drawn else None
    rows = [(ids[row], images[int(pairs.caption_image[row])], text, picture) for row, text in texts.items()]
    return Dataset.from_list([dict(zip(SAMPLES, row, strict=True)) for row in rows], features=SAMPLES)


@pytest.mark.parametrize("part", ["rewrite", "variant"])
def test_an_original_and_what_may_replace_it_are_equally_likely(part, pairs):
    """Of caption 4, whose image is 2, and of no other caption of that image."""
    fill = Samples(pairs, {part: samples(pairs, {4: "one"}, drawn=part == "variant")})
    kind, original, new = (1, 4, 24) if part == "rewrite" else (0, 2, 12)
    drawn = fill.draw(np.arange(4000), np.full(4000, 4))[kind][:, 0]
    assert set(drawn.tolist()) == {original, new} and np.mean(drawn == new) == pytest.approx(0.5, abs=0.04)
    images, texts = fill.draw(np.arange(50), np.full(50, 5))
    assert (images == 2).all() and (texts == 5).all()
    assert fill.share == 0 and fill.report()["with_pairs"] == 0


def test_negatives_and_drawn_images_stand_beside_their_own_caption(pairs):
    """Rows of images: 12 and 13 are negatives, 14 is drawn. Of captions: 24 and 25 are negatives."""
    parts = {"negative": samples(pairs, {0: "no circle", 5: "no square"}, drawn=True)}
    fill = Samples(pairs, parts | {"drawn": samples(pairs, {5: None}, drawn=True)})
    images, texts = fill.draw(np.zeros(24, int), np.arange(24))
    assert (images[0].tolist(), texts[0].tolist()) == ([0, 12, -1], [0, 24, -1])
    assert (images[5].tolist(), texts[5].tolist()) == ([2, 13, 14], [5, 25, -1])
    assert (np.delete(images, [0, 5], 0)[:, 1:] == -1).all() and (np.delete(texts, [0, 5], 0)[:, 1:] == -1).all()
    assert fill.texts["edit_text"][:] == ["no circle", "no square"] and len(fill.images) == 3
    assert fill.share == 2 / 24
    alone = Samples(pairs, {"negative": samples(pairs, {0: "no circle"})})
    assert alone.images is None and alone.draw(np.zeros(1, int), np.zeros(1, int))[0].tolist() == [[0, -1]]


@pytest.mark.parametrize("grouped", [False, True])
def test_what_samples_are_known_to_match(pairs, grouped):
    """Captions 0 and 6 are worded alike, so both match images 0 and 3; with groups, an image has two of its product.

    Rows of images: 12 is a variant, 13 and 14 are negatives, 15 is drawn. Of captions: 24 is a rewrite, 25 and 26 are
    negatives, and the first is worded as caption 0.
    """
    captions = pairs.captions["caption"][:]
    captions[6] = captions[0]
    named = replace(pairs, captions=pairs.captions.remove_columns("caption").add_column("caption", captions))
    if grouped:
        named = replace(named, images=named.images.add_column("group", [f"product {k % 4}" for k in range(12)]))
    made = {
        "rewrite": samples(named, {0: "a rewrite"}),
        "variant": samples(named, {6: None}, drawn=True),
        "negative": samples(named, {2: captions[0], 3: "a negative"}, drawn=True),
        "drawn": samples(named, {1: None}, drawn=True),
    }
    before = truth_of(named)[0].known(torch.arange(12), torch.arange(24)).numpy()
    assert before[0, 6] and before[3, 0]
    expected = np.zeros((16, 27), bool)
    expected[:12, :24] = before
    expected[:12, 24] = expected[:12, 25] = before[:, 0]
    expected[12, [0, 6, 24, 25]] = expected[13, [0, 6, 25]] = expected[14, 26] = expected[15, 1] = True
    expected[15, 24] = True  # image 15 was made for caption 1, caption 24 for image 0, and these match
    if grouped:  # what fits one caption of a product fits all of them
        expected[12], expected[15] = expected[3], expected[0]
    found = Samples(named, made).truth.known(torch.arange(16), torch.arange(27)).numpy()
    assert (found == expected).all(), np.argwhere(found != expected)


def test_a_larger_share_holds_the_smaller(pairs):
    whole = Product(samples(pairs, {row: f"text {row}" for row in range(20)}), 20, 60, None)
    parts = [whole.part(share) for share in (0.2, 0.6, 1.5)]
    kept = [set(part.data["text"]) for part in parts]
    assert [(part.samples, part.llm_calls) for part in parts] == [(4, 12), (12, 36), (20, 60)]
    assert [len(some) for some in kept] == [4, 12, 20]
    assert kept[0] < kept[1] < kept[2]


def test_a_hard_negative_changes_at_most_half_of_the_words():
    assert is_small("a red ball on grey paper", "a blue ball on grey paper")
    assert not is_small("a red ball on grey paper", "two dogs run through the snow")


def test_without_edits_a_false_positive_is_opposite_its_annotation(pairs, repaired, tmp_path):
    setting = SimpleNamespace(pairs=pairs, truth=truth_of(pairs)[0])
    config = RepairConfig(str(tmp_path), fill="paper", loss="grid")
    grid = fill_for(METHODS["wo-repair"], {"records": Product(repaired, len(repaired))}, setting, config)
    assert grid.images is grid.texts is None and grid.share > 0
    images, texts = grid.draw(np.zeros(24, int), np.arange(24))
    assert (images >= 0).tolist() == (texts >= 0).tolist()
    here = texts[:, 1:] >= 0
    assert (pairs.caption_image[texts[:, 1:][here]] == images[:, 1:][here]).all() and here.any(0).all()
