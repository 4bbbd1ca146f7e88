"""`repair-hf world`: its LLM is served; the shipped retrievers say how they were made."""

import json
import subprocess
import sys

import httpx
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


def test_serve_prints_its_address_and_answers_there():
    words = [sys.executable, "-m", "repair_hf", "world", "serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[-1]
            asked = {"model": "oracle", "messages": [{"role": "user", "content": "Who are you?"}]}
            answer = httpx.post(f"{address}/chat/completions", json=asked, timeout=60)
        finally:
            server.terminate()
    assert answer.status_code == 400 and "error" in answer.json()  # it knows the prompts of this package alone
