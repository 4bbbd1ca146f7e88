"""What each row of the training bench encodes: counted on real batches, so that the table compares what it says."""

from __future__ import annotations

import pytest

from repair_hf.bench.train import ROWS, Load, _measure
from repair_hf.cli.main import main

LOAD = Load(
    architecture="world", batch=16, corpus=64, steps=2, precision="fp32", chunk_size=8, chunk_batch=32, device="cpu"
)


@pytest.mark.slow
def test_each_row_encodes_what_it_says():
    found = {row: _measure(row, LOAD) for row in ROWS}  # `compiled` alone takes some two minutes
    assert found["run_clip"].tokens == 40  # the model's longest
    assert 40 > found["every slot"].tokens > found["chunks"].tokens  # a chunk is a group of like length
    for row in ("run_clip", "vanilla"):
        assert found[row].images == found[row].texts == 1
    assert found["every slot"].images == found["every slot"].texts == 3
    assert 2 < found["grids"].images < 3 and 2 < found["grids"].texts < 3
    assert found["neighbours"].images < found["grids"].images and found["neighbours"].texts < found["grids"].texts
    assert found["eager"].images == found["compiled"].images == found["grids"].images
    for one in found.values():
        assert one.step > 0 and 0 <= one.waiting < 1 and one.memory >= 0


@pytest.mark.parametrize(
    "words, reason",
    [
        (["--rows", "grid"], "`rows` takes run_clip, vanilla"),
        (["--precision", "fp16", "--device", "cpu"], "fp16 needs a GPU"),
        (["--batch", "0"], "`batch` must be at least 1, got 0"),
        (
            ["--corpus", "255", "--device", "cpu"],
            "`corpus` must be at least 256, got 255: two images for each of the 128",
        ),
        (["--corpus", "33", "--batch", "8", "--device", "cpu"], "`corpus` must be at least 34, got 33"),
        (["--chunk-batch", "2001", "--rows", "chunks", "--device", "cpu"], "`corpus` must be at least 4002, got 4000"),
    ],
)
def test_what_cannot_be_measured(words, reason, capsys):
    assert main(["bench", "train", *words]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.slow
def test_table_of_the_command(capsys):
    assert main("bench train --batch 8 --corpus 40 --steps 1 --rounds 1 --rows vanilla --device cpu".split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["run_clip", "vanilla"]
    assert lines[1].split()[1:4:2] == ["8", "1.00"]
