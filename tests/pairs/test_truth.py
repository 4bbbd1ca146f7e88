"""What is known to match, against slow loops; what mining excludes is what the losses mask."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_pairs import make_pairs, make_records

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.mining.mine import mine
from repair_hf.pairs import truth as truth_module
from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.truth import Truth, near_numbers, truth_of, wordings
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Edits
from repair_hf.training.step import PairObjective
from repair_hf.training.trainer import RepairTrainer
from tests.mining.embeddings import random_unit


def parts(linked: np.ndarray) -> set[frozenset[int]]:
    """The parts of a graph, by growing each node's part until nothing more is linked to it."""
    found = set()
    for node in range(len(linked)):
        part = {node}
        while (grown := part | set(np.flatnonzero(linked[list(part)].any(0)).tolist())) != part:
            part = grown
        found.add(frozenset(part))
    return found


def sets(numbers: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(numbers == number).tolist()) for number in numbers}


class Slow:
    """The definition, pair by pair, on random images and captions, some of them edited."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.classes, self.own = rng.integers(0, 5, 7), rng.integers(0, 7, 12)
        self.captions = [f"caption {k}" for k in rng.integers(0, 2 if seed > 5 else 9, 12)]
        self.images = [*range(7), *range(7, 11)]
        self.texts = [*self.captions, *(f"Caption {k}." for k in rng.integers(0, 20, 5))]
        self.for_text = [-1] * 7 + rng.integers(-1, 12, 4).tolist()
        self.for_image = [-1] * 12 + rng.integers(-1, 7, 5).tolist()
        self.new = [int(self.classes[7 - k]) if k == 1 else -1 for k in range(4)]  # one edit is in an old class
        self.all_classes = [*self.classes, *(100 + k if kind < 0 else kind for k, kind in enumerate(self.new))]
        self.matching = list(zip(self.own.tolist(), range(12), strict=True))
        self.matching += [(7 + k, text) for k, text in enumerate(self.for_text[7:]) if text >= 0]
        self.matching += [(image, 12 + k) for k, image in enumerate(self.for_image[12:]) if image >= 0]

    def truth(self) -> Truth:
        classes = np.unique(self.classes, return_inverse=True)[1]
        new = [-1 if kind < 0 else int(classes[self.classes == kind][0]) for kind in self.new]
        base = Truth.annotated(self.own, 7, wording=wordings(self.captions), image_class=classes)
        images, texts = np.array(self.matching[12:]).T
        made = {"made_for_text": np.array(self.for_text[7:]), "made_for_image": np.array(self.for_image[12:])}
        return base.extended(self.texts[12:], images=images, texts=texts, new_classes=np.array(new), **made)

    def base(self, image: int, text: int) -> bool:
        """Some pair that matches is of the same class and of the same wording."""

        def bare(text: int) -> str:
            return self.texts[text].lower().strip(".")

        return any(self.all_classes[i] == self.all_classes[image] and bare(t) == bare(text) for i, t in self.matching)

    def known(self, image: int, text: int) -> bool:
        if min(image, text) < 0:
            return False
        by_way = min(self.for_text[image], self.for_image[text]) >= 0
        return self.base(image, text) or (by_way and self.base(self.for_image[text], self.for_text[image]))


def test_known_equals_a_loop_over_annotation_wording_classes_and_edits():
    images, texts, by_way, sides = [*range(11), -1, 3], [-1, *range(17), 2], 0, set()
    for seed in range(9):
        slow = Slow(seed)
        sides.add(slow.truth().looks_up_classes)
        expected = torch.tensor([[slow.known(image, text) for text in texts] for image in images])
        assert torch.equal(slow.truth().known(torch.tensor(images), torch.tensor(texts)), expected)
        by_way += sum(slow.known(i, t) and not slow.base(i, t) for i in range(11) for t in range(17))
    assert by_way > 3  # edits that match by way of what they were made for
    assert sides == {True, False}


def test_a_label_of_thousands_of_images_is_looked_up_by_the_images():
    """The tables have a column for each wording of an image, not for each image of the label."""
    own, wording = np.arange(6000), np.arange(6000)
    wording[:5000] = 0
    truth = Truth.annotated(own, 6000, wording=wording)
    assert truth.most_linked == 1
    images, texts = np.array([0, 4999, 5000]), np.array([7, 5000, 5001])
    known = truth.known(torch.from_numpy(images), torch.from_numpy(texts))
    assert known.tolist() == [[True, False, False], [True, False, False], [False, True, False]]


def test_known_has_shapes_that_do_not_depend_on_the_data():
    """A device `meta` has no data: what would wait for a GPU raises an error there."""
    images, texts = torch.arange(-1, 11, device="meta"), torch.arange(-1, 17, device="meta")
    assert Slow(0).truth().known(images, texts).shape == (12, 18)


@pytest.mark.parametrize("seed", range(3))
def test_images_of_match_and_beyond_annotation_equal_loops(seed):
    slow = Slow(seed)
    truth = slow.truth()
    captions = [3, 0, 16, 3, 11]
    expected = [(image, place) for place, text in enumerate(captions) for image in range(11) if slow.base(image, text)]
    assert list(zip(*(side.tolist() for side in truth.images_of(np.array(captions))), strict=True)) == expected
    images, texts = np.divmod(np.arange(11 * 17), 17)
    base = [slow.base(int(i), int(t)) for i, t in zip(images, texts, strict=True)]
    assert truth.match(images, texts).tolist() == base
    assert truth.beyond_annotation == sum(base) - 17


def test_an_edited_image_and_an_edited_caption_match_where_what_they_were_made_for_does():
    records = make_records(("c0", "i3"), ("i0", "c8"), ("i1", "c9"), ("c4", "i5"))
    known = Edits(make_pairs(), records).truth.known(torch.arange(8), torch.arange(14))
    expected = {(image, 2 * image + k) for image in range(6) for k in range(2)}
    expected |= {(6, 0), (7, 4)}  # the edited images with c0 and c4
    expected |= {(0, 12), (1, 13)}  # the edited captions with i0 and i1
    expected |= {(6, 12)}  # made for c0 and for i0
    assert set(map(tuple, known.nonzero().tolist())) == expected
    alike = truth_of(make_pairs(groups=[*"aabcde"]))[0]
    known = Edits(make_pairs(groups=[*"aabcde"]), records, alike).truth.known(torch.arange(8), torch.arange(14))
    expected |= {(image, text) for image in (0, 1, 6) for text in (0, 1, 2, 3, 12, 13)}  # one group
    expected |= {(7, 4), (7, 5)}
    assert set(map(tuple, known.nonzero().tolist())) == expected


@pytest.mark.parametrize("at_once", [3, 1024])
@pytest.mark.parametrize("least", [0.5, 0.8, 0.95, 1.0])
def test_near_duplicates_are_linked_in_chains(least, at_once, monkeypatch):
    monkeypatch.setattr(truth_module, "AT_ONCE", at_once)
    vectors = random_unit(np.random.default_rng(0), 40, 4)
    linked = vectors.astype(np.float64) @ vectors.T.astype(np.float64) >= least
    np.fill_diagonal(linked, True)
    assert sets(near_numbers(vectors, least)) == parts(linked)


def test_the_memory_of_near_duplicates_does_not_grow_with_the_square_of_the_images():
    """One block of rows with all others would take 1,024 x 8,000 x 4 bytes, 33 MB."""
    vectors = random_unit(np.random.default_rng(0), 8_000, 2)
    tracemalloc.start()
    try:
        assert near_numbers(vectors, 1.1).max() == len(vectors) - 1
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def alike_pairs(pairs_folder):
    """Twelve images: two of equal pixels, the second also of one group with a third, and two captions repeated."""
    pairs = load_pairs(pairs_folder, split="all")
    images, texts = pairs.images.to_list(), pairs.captions["caption"][:]
    images[3]["image"] = images[0]["image"]
    named = type(pairs.images).from_list(images, features=pairs.images.features)
    named = named.add_column("group", [*"abcdde", *map(str, range(6))])
    texts[20] = f" {texts[12].upper()}. "
    captions = pairs.captions.remove_columns("caption").add_column("caption", texts)
    return replace(pairs, images=named, captions=captions, looks=("same", "b", "c", "same", *"efghijkl"))


def test_every_kind_of_likeness_joins_and_is_counted(alike_pairs):
    vectors = np.eye(12, dtype=np.float32)
    vectors[6] = vectors[5]
    truth, counts = truth_of(alike_pairs, vectors, 0.99)
    assert sets(truth.image_class) == sets(np.array([0, 1, 2, 0, 0, 5, 5, 7, 8, 9, 10, 11]))
    assert counts == {"equal_pixels": 2, "near_duplicates": 2, "group": 2}
    plain, counts = truth_of(replace(alike_pairs, looks=(), images=alike_pairs.images.remove_columns("group")))
    assert sets(plain.image_class) == sets(np.arange(12)) and counts == {} and plain.beyond_annotation == 2


class Recorder(PairObjective):
    """Keeps the rows of the anchors, and which cells may be compared."""

    def terms(self, step):
        self.seen = step.batch["image_rows"][:, 0], step.batch["text_rows"][:, 0], step.visible
        return super().terms(step)


def test_what_mining_excludes_is_what_the_losses_mask(alike_pairs, clip_folder, tmp_path):
    """On the same pairs, with equal pixels, near-duplicates, groups and equal wording."""
    encoder = DualEncoder.from_pretrained(clip_folder, device="cpu")
    vectors = encoder.embed_images(alike_pairs.images["image"])
    cosines = np.sort((vectors @ vectors.T)[np.triu_indices(12, 1)])
    least = float(cosines[-5:-3].mean())  # a few are near
    truth, counts = truth_of(alike_pairs, vectors, least)
    assert min(counts.values()) >= 2 and truth.beyond_annotation < 12 * 24 / 2
    how = dict(k_mine=24, d_i2t=24, d_t2i=12, near_duplicates=least)
    mined = mine(encoder, alike_pairs, **how)
    wrong = {tuple(sorted((row["q_id"], row["fp_id"]), key=lambda name: "#" in name)) for row in mined}
    names, captions = (alike_pairs.images["image_id"][:], alike_pairs.captions["caption_id"][:])
    recorder, compared = Recorder(), set()
    config = RepairConfig(str(tmp_path), per_device_train_batch_size=12, use_cpu=True)
    trainer = RepairTrainer(encoder, config, alike_pairs, truth=truth, objective=recorder)
    for epoch in range(12):
        trainer.sampler.set_epoch(epoch)
        for batch in trainer.get_train_dataloader():
            trainer.compute_loss(trainer.model, batch)
            images, texts, visible = recorder.seen
            assert visible.diagonal().all()
            cells = visible.fill_diagonal_(False).nonzero().tolist()
            compared |= {(names[images[row]], captions[texts[column]]) for row, column in cells}
    assert compared == wrong
    assert len(wrong) == 12 * 24 - 24 - truth.beyond_annotation
