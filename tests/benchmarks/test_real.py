"""`make real` with what a test has: a tiny model, drawn pictures, and the toy world's LLM over HTTP."""

import os
from functools import partial

import pytest

from benchmarks.real import differing
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.server import ChatServer
from tests.benchmarks.scripts import run


@pytest.mark.slow
def test_what_is_missing_is_skipped_in_a_line(tmp_path, clip_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without data
    monkeypatch.delenv("REPAIR_HF_PHOTOGRAPHS", raising=False)
    (line,) = run("real", "").splitlines()
    assert line.startswith("skipped, no openai/clip-vit-base-patch32: ")
    (line,) = run("real", f"--model {clip_folder}").splitlines()
    assert line.startswith("skipped, no data: needs data/flickr30k")


@pytest.mark.slow
def test_it_embeds_mines_and_asks(tmp_path, clip_folder, monkeypatch):
    world = build_world(tmp_path / "world", splits={"train": 8, "validation": 1, "test": 1})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPAIR_HF_PHOTOGRAPHS", str(world))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ChatServer(partial(oracle.choices, oracle.answer)) as server:
        asked = f"--llm openai/any --llm-base-url {server.base_url} --output {tmp_path / 'out'}"
        shown = run("real", f"--model {clip_folder} {asked}")
    assert "photographs: i2t_R@1 " in shown and "published" not in shown
    assert "of photographs" in shown and f" of 20 failures -> {tmp_path / 'out'}" in shown
    assert os.listdir(tmp_path / "out" / "records")


@pytest.mark.parametrize(
    ("measured", "apart"), [(0.5010, {}), (0.5055, {}), (0.4955, {"i2t_R@1": -0.55}), (0.5065, {"i2t_R@1": 0.55})]
)
def test_half_a_point_from_the_published_figure(measured, apart):
    assert differing({"i2t_R@1": measured, "t2i_R@1": 0.0}, {"i2t_R@1": 50.1}) == pytest.approx(apart)
