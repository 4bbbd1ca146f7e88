"""`repair-hf world`: build and pretrain in small; the shipped retrievers say how they were made."""

import json
import subprocess
import sys

import httpx
import pytest
from pins import are_pinned
from transformers import AutoModel

from repair_hf.cli.main import main
from repair_hf.cli.world import claim
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.shipped import RETRIEVERS
from repair_hf.runtime.options import UserError


def test_pretrain_refuses_a_batch_of_more_pairs_than_pictures_by_its_own_flag(tmp_path, capsys):
    world = str(tmp_path / "w")
    main(["world", "build", "--output", world, "--train", "4", "--validation", "1", "--test", "1"])
    assert main(["world", "pretrain", "--world", world, "--output", str(tmp_path / "b"), "--batch-size", "5"]) == 2
    assert "`batch_size` must be at most 4" in capsys.readouterr().err


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


def test_pretrain_writes_only_into_a_folder_of_its_own(tmp_path):
    made_of = {"options": {"seed": 0}, "world": "w"}
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds other files than those of this retriever; give another --output"):
        claim(tmp_path, made_of)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "config.json").unlink()
    assert not claim(tmp_path, made_of)
    (tmp_path / "config.json").write_text("{}")
    assert not claim(tmp_path, made_of)  # where it was interrupted
    with pytest.raises(UserError, match="holds other files than those of this retriever"):
        claim(tmp_path, made_of | {"options": {"seed": 1}})
    with pytest.raises(UserError, match="config.json is a file"):
        claim(tmp_path / "config.json", made_of)
    finished = json.dumps(made_of | {"test": {"i2t_R@1": 0.5}})
    (tmp_path / "held_out.json").write_text(finished)
    assert claim(tmp_path, made_of) and (tmp_path / "held_out.json").read_text() == finished  # and stays


def test_a_pretraining_that_is_cut_off_leaves_no_retriever(tmp_path, monkeypatch):
    """Random weights that load like trained ones would be mined without a word."""
    world, base = str(tmp_path / "world"), tmp_path / "base"
    main(["world", "build", "--output", world, "--train", "4", "--validation", "1", "--test", "1"])
    words = ["world", "pretrain", "--world", world, "--output", str(base), "--batch-size", "4", "--epochs", "1"]

    def cut_off(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("repair_hf.training.trainer.train", cut_off)
        assert main(words) != 0
    assert not (base / "config.json").exists()
    assert main(words) == 0 and AutoModel.from_pretrained(base) and not (base / "start").exists()
    before = (base / "model.safetensors").stat().st_mtime_ns
    assert main(words) == 0 and (base / "model.safetensors").stat().st_mtime_ns == before
    assert main([*words, "--seed", "1"]) == 2  # other options


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


@pytest.mark.slow
def test_pretrain_makes_a_retriever_that_beats_chance_by_far(tmp_path):
    world, base = str(tmp_path / "world"), str(tmp_path / "base")
    sizes = "--domain plain --train 500 --validation 50 --test 100".split()
    assert main(["world", "build", "--output", world, *sizes]) == 0
    assert main(["world", "pretrain", "--world", world, "--output", base, "--epochs", "12", "--batch-size", "64"]) == 0
    found = json.loads((tmp_path / "base" / "held_out.json").read_text())["test"]
    assert found["t2i_R@1"] > 0.2 and found["i2t_R@1"] > 0.2  # chance: 0.01
    AutoModel.from_pretrained(base)
