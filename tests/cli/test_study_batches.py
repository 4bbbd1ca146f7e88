"""`repair-hf study --batch`: the questions of all products go out together, each once, at half the price."""

import json
from pathlib import Path

import pytest
from batch_server import BatchServer
from datasets import Dataset
from small_world import saved

from repair_hf.cli.main import main
from repair_hf.llm.ledger_file import paid_by
from repair_hf.study.spending import products_in
from repair_hf.toyworld import oracle

MAKERS = ["laclip", "sugarcrepe", "tripletclip", "coco-cf"]
METHODS = [*MAKERS, "repair-i2t", "repair"]


def samples(output: Path, maker: str) -> list[dict]:
    rows = Dataset.from_file(str(output / "products" / maker / "samples.arrow")).to_list()
    return [row | {"edit_image": (image := row["edit_image"]) and Path(image["path"]).name} for row in rows]


@pytest.mark.slow  # two studies
def test_batches_bring_the_same_samples_at_half_the_price(tmp_path, monkeypatch, capsys):
    """`tripletclip` asks what `sugarcrepe` asks, and `repair-i2t` what `repair` asks: they wait and take over."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    whole, out, log = tmp_path / "whole", tmp_path / "out", tmp_path / "requests.jsonl"
    words = ["study", "--size", "tiny", "--seeds", "1", "--max-queries", "4", "--llm", "openai/gpt-4o-mini"]
    words += ["--max-usd", "1", "--methods", *METHODS]
    with BatchServer(oracle.answer_to, log=log) as server:
        words += ["--llm-base-url", server.base_url, "--output"]
        assert main([*words, str(whole)]) == 0
        log.unlink()
        told = []
        while code := main([*words, str(out), "--batch"]):
            told.append(capsys.readouterr().err.strip().splitlines()[-1])
            assert code == 1 and told[-1].endswith("Rerun the same command to collect the answers.")
            if len(told) == 1:
                asked = len(log.read_text().splitlines())
                assert f"{asked:,} requests are with openai/gpt-4o-mini in 4 batches" in told[0]
                assert not (out / "cells").exists()
    assert 3 <= len(told) <= 6
    digests = [json.loads(line)["digest"] for line in log.read_text().splitlines()]
    assert len(digests) == len(set(digests)) == paid_by(products_in(out / "products"))[1]
    assert [samples(out, name) for name in MAKERS] == [samples(whole, name) for name in MAKERS]
    for name in ("repair", "repair-i2t"):
        assert saved(out / "products" / f"{name}-records") == saved(whole / "products" / f"{name}-records")
    dollars = [paid_by(products_in(each / "products"))[0] for each in (out, whole)]
    assert dollars[0] == pytest.approx(dollars[1] / 2)
