"""A batch holds each distinct item once, in tables of one or several parts, padded to its own longest caption."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from repair_hf.training import collation
from repair_hf.training.collation import DecodedImages, GridCollator

CAPTIONS = [
    "a red circle on grey paper",
    "circle",
    "a blue square",
    "one",
    "a yellow triangle on grey paper again and again",
]


class Table:
    """Image k is k everywhere; refuses rows that are not ascending, as a memory-mapped table would like them."""

    def __init__(self, first: int, size: int) -> None:
        self.values = torch.arange(first, first + size, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: np.ndarray) -> torch.Tensor:
        assert (np.diff(rows) > 0).all() and rows.min() >= 0
        return self.values[torch.from_numpy(rows)]


@pytest.fixture
def collator(preprocessor) -> GridCollator:
    return GridCollator(preprocessor, [Table(0, 6), Table(6, 3)], CAPTIONS)


def row(image: int, text: int, images: list[int] | None = None, texts: list[int] | None = None) -> dict:
    anchor = {"anchor_images": np.int64(image), "anchor_texts": np.int64(text)}
    if images is None:
        return anchor
    return anchor | {"grid_images": np.array(images), "grid_texts": np.array(texts), "matches": np.zeros((3, 3), bool)}


def looked_up(batch: dict[str, torch.Tensor], name: str) -> list:
    """Rows of the image table that an index tensor of the batch stands for."""
    places, values = batch[name], batch["pixels"][:, 0, 0, 0].long()
    return torch.where(places >= 0, values[places], -1).tolist()


def n_texts(batch: dict) -> int:
    return sum(len(group["input_ids"]) for group in batch["texts"])


@pytest.fixture
def said(clip_processor):
    """Captions that an index tensor of a batch stands for, None where it points at nothing."""

    def read(batch: dict, name: str) -> list:
        ids = [row for group in batch["texts"] for row in group["input_ids"]]
        texts = [*(clip_processor.tokenizer.decode(row, skip_special_tokens=True).strip() for row in ids), None]
        places = batch[name].tolist()
        return [[texts[k] for k in place] if isinstance(place, list) else texts[place] for place in places]

    return read


def test_shared_items_are_in_the_batch_once_and_found_again(collator, said):
    rows = [row(4, 0, [4, 7, 2], [0, 1, 2]), row(2, 1, [8, 4, -1], [1, 0, -1]), row(5, 2, [5, -1, -1], [2, -1, -1])]
    batch = collator(rows)
    assert batch["pixels"][:, 0, 0, 0].tolist() == [2, 4, 5, 7, 8] and batch["pixels"].dtype == torch.uint8
    assert n_texts(batch) == 3
    assert looked_up(batch, "anchor_images") == [4, 2, 5]
    assert looked_up(batch, "grid_images") == [[4, 7, 2], [8, 4, -1], [5, -1, -1]]
    assert said(batch, "anchor_texts") == [CAPTIONS[0], CAPTIONS[1], CAPTIONS[2]]
    assert said(batch, "grid_texts") == [CAPTIONS[:3], [CAPTIONS[1], CAPTIONS[0], None], [CAPTIONS[2], None, None]]
    assert batch["present"].tolist() == [[True, True, True], [True, True, False], [True, False, False]]


def test_an_anchor_that_stands_in_no_slot_is_in_the_batch_too(collator):
    batch = collator([row(3, 4, [8, 1, 2], [0, 1, 2])])  # slot 1 holds edits
    assert looked_up(batch, "anchor_images") == [3] and looked_up(batch, "grid_images") == [[8, 1, 2]]
    assert len(batch["pixels"]) == 4 and n_texts(batch) == 4


def test_without_grids_there_are_no_grid_inputs(collator, said):
    batch = collator([row(4, 0), row(1, 3)])
    assert set(batch) == {"pixels", "anchor_images", "anchor_texts", "texts"}
    assert looked_up(batch, "anchor_images") == [4, 1] and said(batch, "anchor_texts") == [CAPTIONS[0], CAPTIONS[3]]


def test_captions_come_by_length_each_group_padded_to_its_own_longest(monkeypatch, collator, said, preprocessor):
    monkeypatch.setattr(collation, "GROUP", 2)
    batch = collator([row(k, text) for k, text in enumerate([4, 3, 2, 0, 1])])
    groups = [[CAPTIONS[1], CAPTIONS[3], CAPTIONS[2]], [CAPTIONS[0], CAPTIONS[4]]]
    for group, captions in zip(batch["texts"], groups, strict=True):
        assert list(group) == ["input_ids"]  # a causal text tower needs no mask
        torch.testing.assert_close(group["input_ids"], preprocessor.texts(captions)["input_ids"])
    assert said(batch, "anchor_texts") == [CAPTIONS[k] for k in (4, 3, 2, 0, 1)]


def test_a_text_tower_that_looks_both_ways_gets_its_mask(preprocessor):
    preprocessor.is_causal = False
    batch = GridCollator(preprocessor, [Table(0, 6)], CAPTIONS)([row(0, 1), row(1, 2)])
    expected = preprocessor.texts([CAPTIONS[1], CAPTIONS[2]])
    torch.testing.assert_close(batch["texts"], [expected])


def test_images_decoded_on_demand_are_the_preprocessors(pairs, preprocessor):
    table = DecodedImages(pairs.images, "image", preprocessor)
    assert len(table) == 12
    expected = preprocessor.images([pairs.images[row]["image"] for row in (1, 7)])
    torch.testing.assert_close(table[np.array([1, 7])], expected)
