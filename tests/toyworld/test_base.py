"""The base retriever's folder: loads by the Auto classes alone, and its tokenizer knows the world's words."""

import random

import pytest
import torch
from transformers import AutoModel, AutoProcessor

from benchmarks.pretrain import build_model, build_processor
from repair_hf.encoder.shipped import RETRIEVERS
from repair_hf.toyworld import captions, renderer, scenes


@pytest.fixture(scope="module")
def world():
    rng = random.Random(0)
    drawn = [scenes.sample(rng) for _ in range(40)]
    return drawn, [captions.write(scene, rng) for scene in drawn for _ in range(5)]


@pytest.mark.parametrize("width", [64, 128])
def test_fresh_model_and_processor_round_trip_through_the_auto_classes(world, tmp_path, width):
    drawn, texts = world
    processor = build_processor(texts)
    build_model(processor, width=width).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    model, processor = AutoModel.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)
    batch = processor(text=texts[:3], images=[renderer.render(drawn[0])], padding=True, return_tensors="pt")
    found = model(**batch)
    assert found.logits_per_image.shape == (1, 3) and found.image_embeds.shape == (1, width)
    assert batch["pixel_values"].shape == (1, 3, 64, 64)


def test_every_word_of_the_grammar_is_one_token(world):
    _, texts = world
    tokenizer = build_processor(texts).tokenizer
    for text in texts[:50]:
        words = text.lower().replace(".", " .").replace(",", " ,").split()
        assert [token.removesuffix("</w>") for token in tokenizer.tokenize(text)] == words
        decoded = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
        assert decoded.replace(" ", "") == text.lower().replace(" ", "")


@pytest.mark.parametrize("folder", RETRIEVERS.values(), ids=RETRIEVERS)
def test_shipped_retrievers_load_and_find_true_captions(world, folder):
    """Not its figure (a command prints that), only that these are the trained weights and not random ones."""
    drawn, texts = world
    model, processor = AutoModel.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    batch = processor(text=texts[::5], images=[renderer.render(s) for s in drawn], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model.float()(**batch).logits_per_image
    assert (logits.argmax(1) == torch.arange(40)).float().mean() > 0.6
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4 * 2**20
