"""The shipped retrievers say how they were made."""

import json

import pytest
from pins import are_pinned

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.shipped import RETRIEVERS


@pytest.mark.parametrize("name", RETRIEVERS)
def test_shipped_retrievers_carry_their_recipe_and_their_held_out_figures(name):
    held_out = json.loads((RETRIEVERS[name] / "held_out.json").read_text())
    assert held_out["test"]["n_images"] == 500 and held_out["test"]["n_texts"] == 2500


@pytest.mark.skipif(
    not are_pinned("pillow", "transformers"), reason="a digest knows the versions of Pillow and transformers"
)
@pytest.mark.parametrize("name", RETRIEVERS)
def test_shipped_retrievers_are_those_of_their_held_out_figures(name):
    held_out = json.loads((RETRIEVERS[name] / "held_out.json").read_text())
    assert DualEncoder.from_pretrained(name).digest == held_out["digest"]
