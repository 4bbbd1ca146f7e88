"""`benchmarks/pretrain.py`: a retriever from scratch, in a folder of its own."""

import json
import random

import pytest
from transformers import AutoModel, AutoProcessor

from benchmarks.pretrain import PretrainOptions, build_model, build_processor, pretrain
from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.corpus import build_world
from tests.benchmarks.scripts import run


@pytest.fixture
def world(tmp_path):
    return build_world(tmp_path / "world", splits={"train": 4, "validation": 1, "test": 1})


def test_a_pretraining_that_is_cut_off_leaves_no_retriever_and_a_finished_one_stays(world, tmp_path, monkeypatch):
    """Random weights that load like trained ones would be mined without a word."""
    base = tmp_path / "base"
    options = PretrainOptions(str(world), str(base), batch_size=4, epochs=1)

    def cut_off(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("benchmarks.pretrain.train", cut_off)
        pretrain(options)
    assert not (base / "config.json").exists()
    pretrain(options)
    assert AutoModel.from_pretrained(base) and not (base / "start").exists()
    with pytest.raises(UserError, match="is not empty; give another --output"):
        pretrain(options)


def test_a_fresh_retriever_loads_by_the_auto_classes_and_knows_the_grammars_words(tmp_path):
    rng = random.Random(0)
    drawn = [scenes.sample(rng) for _ in range(40)]
    texts = [captions.write(scene, rng) for scene in drawn for _ in range(5)]
    processor = build_processor(texts)
    build_model(processor, width=64).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    model, processor = AutoModel.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)
    batch = processor(text=texts[:3], images=[renderer.render(drawn[0])], padding=True, return_tensors="pt")
    found = model(**batch)
    assert found.logits_per_image.shape == (1, 3) and found.image_embeds.shape == (1, 64)
    for text in texts[:50]:
        words = text.lower().replace(".", " .").replace(",", " ,").split()
        assert [token.removesuffix("</w>") for token in processor.tokenizer.tokenize(text)] == words


@pytest.mark.slow
def test_a_retriever_beats_chance_by_far(tmp_path):
    world = build_world(tmp_path / "world", splits={"train": 500, "validation": 50, "test": 100}, domain="plain")
    run("pretrain", f"--world {world} --output {tmp_path / 'base'} --epochs 12 --batch-size 64")
    found = json.loads((tmp_path / "base" / "held_out.json").read_text())["test"]
    assert found["t2i_R@1"] > 0.2 and found["i2t_R@1"] > 0.2  # chance: 0.01
    AutoModel.from_pretrained(tmp_path / "base")
