"""`benchmarks/pretrain.py`: a retriever from scratch, in a folder of its own."""

import json

import pytest
from transformers import AutoModel

from benchmarks.pretrain import PretrainOptions, pretrain
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.corpus import build_world
from tests.benchmarks.scripts import run


@pytest.fixture
def world(tmp_path):
    return build_world(tmp_path / "world", splits={"train": 4, "validation": 1, "test": 1})


def test_a_batch_of_more_pairs_than_pictures_is_an_error(world, tmp_path):
    with pytest.raises(UserError, match="`batch_size` must be at most 4"):
        pretrain(PretrainOptions(str(world), str(tmp_path / "b"), batch_size=5))


def test_a_width_must_fit_the_heads():
    with pytest.raises(UserError, match="`width` must be a multiple of 32, got 100"):
        PretrainOptions(width=100)


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


@pytest.mark.slow
def test_a_retriever_beats_chance_by_far(tmp_path):
    world = build_world(tmp_path / "world", splits={"train": 500, "validation": 50, "test": 100}, domain="plain")
    run("pretrain", f"--world {world} --output {tmp_path / 'base'} --epochs 12 --batch-size 64")
    found = json.loads((tmp_path / "base" / "held_out.json").read_text())["test"]
    assert found["t2i_R@1"] > 0.2 and found["i2t_R@1"] > 0.2  # chance: 0.01
    AutoModel.from_pretrained(tmp_path / "base")
