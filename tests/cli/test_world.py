"""The shipped retriever says how it was made."""

import json

import pytest
from pins import are_pinned

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.shipped import BASE

HELD_OUT = json.loads((BASE / "held_out.json").read_text())


def test_the_shipped_retriever_carries_its_recipe_and_its_held_out_figures():
    assert HELD_OUT["test"]["n_images"] == 500 and HELD_OUT["test"]["n_texts"] == 2500


@pytest.mark.skipif(not are_pinned("transformers"), reason="a digest holds what transformers writes")
def test_the_shipped_retriever_is_that_of_its_held_out_figures():
    assert DualEncoder.from_pretrained("world/base").digest == HELD_OUT["digest"]
