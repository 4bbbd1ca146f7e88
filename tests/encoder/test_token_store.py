"""Token ids and images by row: the same whether they are read together, in blocks, or one by one."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from repair_hf.encoder import token_store
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import DecodedImages
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.token_store import TokenStore
from repair_hf.pairs.dataset import load_pairs

CAPTIONS = ["a red circle on grey paper", "circle", "a blue square"]
EDITS = ["one", "a yellow triangle on grey paper again and again", "circle " * 40]


@pytest.fixture
def preprocessor(clip, clip_processor):
    return Preprocessor(clip_processor, clip.config)


@pytest.fixture(params=["clip", "mask", "siglip"])
def preprocess(request, preprocessor, siglip_folder):
    """A causal text tower, one that looks both ways and needs a mask, and one that is padded fully."""
    if request.param == "siglip":
        return DualEncoder.from_pretrained(siglip_folder, device="cpu").preprocessor
    made = deepcopy(preprocessor)
    made.is_causal = request.param == "clip"
    return made


@pytest.mark.parametrize("at_once", [1, 2, 1024])
def test_tokens_are_those_of_the_captions_together(preprocess, at_once, monkeypatch):
    """Padded to the longest of the batch (SigLIP's to the full length), whatever block they were tokenized in."""
    monkeypatch.setattr(token_store, "TOKENIZED_AT_ONCE", at_once)
    seen, ids = [], preprocess.token_ids
    monkeypatch.setattr(preprocess, "token_ids", lambda some: (seen.append(len(some)), ids(some))[1])
    tokens = TokenStore(preprocess, [CAPTIONS, EDITS])
    assert seen == {1: [1] * 6, 2: [2, 1, 2, 1], 1024: [3, 3]}[at_once]
    padding = {"padding": "max_length" if preprocess.pads_fully else "longest", "padding_side": "right"}
    cut = {"truncation": True, "max_length": preprocess.max_length, "return_tensors": "pt"}
    for rows in ([1, 2], [3], [4, 0, 2], [0, 1, 2, 3, 4, 5], [2, 2]):
        expected = preprocess.processor.tokenizer([[*CAPTIONS, *EDITS][row] for row in rows], **padding, **cut)
        if preprocess.pads_fully or preprocess.is_causal:
            del expected["attention_mask"]
        found = tokens[np.array(rows)]
        assert found.keys() == expected.keys()
        for name, ids in expected.items():
            torch.testing.assert_close(found[name], ids, check_dtype=False)


def test_images_decoded_on_demand_are_the_preprocessors(pairs_folder, preprocessor):
    pairs = load_pairs(pairs_folder, split="all")
    table = DecodedImages(pairs.images, "image", preprocessor)
    assert len(table) == 12
    expected = preprocessor.images([pairs.images[row]["image"] for row in (1, 7)])
    torch.testing.assert_close(table[np.array([1, 7])], expected)
