"""A batch holds each distinct item once, in tables of one or several parts, padded to its own longest caption."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from repair_hf.training.collation import PairCollator
from repair_hf.training.fills import Edits

CAPTIONS = ["a red circle on grey paper", "circle", "a blue square"]
EDITS = ["one", "a yellow triangle on grey paper again and again"]


class Table:
    """Image k is k everywhere; it takes ascending rows alone, as a memory-mapped table would like them."""

    def __init__(self, first: int, size: int) -> None:
        self.values = torch.arange(first, first + size, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: np.ndarray) -> torch.Tensor:
        assert (np.diff(rows) > 0).all() and rows.min() >= 0
        return self.values[torch.from_numpy(rows)]


def collate(preprocessor, images: list[list[int]], texts: list[list[int]], at_once: int | None = None) -> dict:
    """The batch of anchors whose pairs are these rows."""

    def draw(epochs, anchors):
        assert (epochs == 3).all()
        return np.array(images)[anchors], np.array(texts)[anchors]

    fill = SimpleNamespace(draw=draw)
    collator = PairCollator(preprocessor, fill, [Table(0, 6), Table(6, 3)], [CAPTIONS, EDITS], at_once)
    return collator([(3, anchor) for anchor in range(len(images))])


def looked_up(places: torch.Tensor, values: list) -> list:
    return [[None if place < 0 else values[place] for place in row] for row in places.tolist()]


@pytest.mark.parametrize(("at_once", "n_groups"), [(None, 1), (5, 1), (3, 2), (2, 3), (1, 4)])
def test_shared_items_are_in_the_batch_once_and_found_again(at_once, n_groups, preprocessor):
    images, texts = [[4, 7, 2], [2, 8, 4], [5, -1, 4]], [[0, 3, 2], [1, 3, 0], [2, -1, -1]]
    batch = collate(preprocessor, images, texts, at_once)
    assert batch["pixels"].dtype == torch.uint8 and batch["pixels"][:, 0, 0, 0].tolist() == [2, 4, 5, 7, 8]
    assert looked_up(batch["images"], [2, 4, 5, 7, 8]) == [[4, 7, 2], [2, 8, 4], [5, None, 4]]
    decode = preprocessor.processor.tokenizer.decode
    groups = [part["input_ids"] for part in batch["texts"]]
    said = [decode(row, skip_special_tokens=True).strip() for ids in groups for row in ids]
    assert sorted(said) == sorted([*CAPTIONS, EDITS[0]]) and len(groups) == n_groups
    named = [*CAPTIONS, *EDITS, None]
    assert looked_up(batch["captions"], said) == [[named[k] for k in row] for row in texts]
    assert batch["image_rows"].tolist() == images and batch["text_rows"].tolist() == texts
    assert collate(preprocessor, [[0], [5]], [[0], [1]])["pixels"][:, 0, 0, 0].tolist() == [0, 5]  # of one part
    edits = collate(preprocessor, [[-1], [8]], [[-1], [4]])
    assert edits["pixels"][:, 0, 0, 0].tolist() == [8] and edits["images"].tolist() == [[-1], [0]]


def test_each_distinct_item_of_a_batch_is_encoded_once(repaired, pairs, make_trainer):
    trainer = make_trainer(repaired, per_device_train_batch_size=8)
    batch, seen = next(iter(trainer.get_train_dataloader())), {}
    for tower, kind in ((trainer.base.vision_model, "images"), (trainer.base.text_model, "captions")):
        tower.register_forward_hook(
            lambda _, args, out, kind=kind: seen.update({kind: len(out[1]) + seen.get(kind, 0)})
        )
    trainer.compute_loss(trainer.model, batch)
    drawn = Edits(pairs, repaired, seed=42).draw(np.zeros(8, int), batch["text_rows"][:, 0].numpy())
    for kind, name, rows in zip(("images", "captions"), ("image_rows", "text_rows"), drawn, strict=True):
        np.testing.assert_array_equal(batch[name], rows)
        assert seen[kind] == len(set(rows.ravel()) - {-1}) > 8
