"""`make real` with what a test has: a tiny model, drawn pictures, and the toy world's LLM over HTTP."""

import os
import sys

import pytest
from chat_server import ChatServer
from recipe_data import SIZES, make_data

from benchmarks import real
from repair_hf.pairs import benchmarks
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
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
    world = build_world(tmp_path / "world", splits={"train": 1, "validation": 1, "test": 1})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPAIR_HF_PHOTOGRAPHS", str(world))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ChatServer(oracle.answer_to) as server:
        asked = f"--llm openai/any --llm-base-url {server.base_url} --output {tmp_path / 'out'}"
        shown = run("real", f"--model {clip_folder} {asked}")
    assert "photographs: i2t_R@1 " in shown and "published" not in shown
    assert "of photographs" in shown and f" of 15 failures -> {tmp_path / 'out'}" in shown  # fewer than 20
    assert os.listdir(tmp_path / "out" / "records")


@pytest.mark.parametrize(
    ("measured", "apart"), [(0.5010, {}), (0.5055, {}), (0.4955, {"i2t_R@1": -0.55}), (0.5065, {"i2t_R@1": 0.55})]
)
def test_half_a_point_from_the_published_figure(measured, apart):
    assert real.differing({"i2t_R@1": measured, "t2i_R@1": 0.0}, {"i2t_R@1": 50.1}) == pytest.approx(apart)


def test_both_datasets_are_compared_with_their_published_figures(
    tmp_path, pairs_folder, clip_folder, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPAIR_HF_PHOTOGRAPHS", str(pairs_folder))  # not embedded where there is a benchmark
    monkeypatch.setattr(benchmarks, "SIZES", SIZES)
    for name, images in (("flickr30k", "flickr30k-images"), ("coco", "")):
        recipe = {"pairs": f"data/{name}/dataset_{name}.json", "image_folder": f"data/{name}/{images}"}
        make_data(pairs_folder, recipe | {"benchmark": name})
    monkeypatch.setattr(real, "MODEL", str(clip_folder))
    monkeypatch.setattr(sys, "argv", ["real.py"])
    assert real.main() == 1
    flickr, coco, mined, llm = capsys.readouterr().out.splitlines()
    for line, name, published in ((flickr, "Flickr30K", (78.8, 58.8)), (coco, "COCO 5K", (50.1, 30.4))):
        assert line.startswith(f"{name}: i2t_R@1 ")
        assert all(f" (published {figure})" in line for figure in published)
        assert line.endswith(" differs by more than 0.5")  # R@1 of four captions is a multiple of 25
    assert mined.endswith("failures of COCO 5K") and llm.startswith("skipped, no LLM: No API key")


@pytest.mark.parametrize(
    ("llm", "base_url", "limit"),
    [
        ("gemini/gemini-3.5-flash-lite", None, {"max_usd": 0.1}),
        ("gemini/gemini-3.5-flash-lite", "http://proxy", {"max_usd": 0.1}),
        ("openai/own", None, {"max_usd": 0.1}),  # refused before anything is paid
        ("openai/own", "http://localhost:8000/v1", {"max_calls": 200}),
    ],
)
def test_what_has_a_price_is_limited_in_dollars(llm, base_url, limit):
    assert real.ceiling(llm, base_url) == limit
