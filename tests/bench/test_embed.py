"""The embedding bench: that what it compares is the same, not how fast this machine is."""

from __future__ import annotations

import pytest

from repair_hf.bench.embed import ROWS, Load, measure
from repair_hf.cli.main import main


def test_all_ways_make_the_vectors_of_the_loop():
    load = Load(architecture="world", images=5, texts=20, batch=4, device="cpu")
    (found,) = measure(load, list(ROWS), rounds=1)
    assert list(found) == list(ROWS)
    for row, one in found.items():
        assert one.images > 0 and one.texts > 0
        assert one.apart < (1e-5 if row != "bf16" else 0.05)
    assert found["bf16"].apart > 1e-4  # it is another precision


def test_table_of_the_command(capsys):
    words = "bench embed --images 3 --texts 10 --batch 2 --rounds 1 --rows ours --device cpu"
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["loop", "ours"]
    assert lines[1].split()[2] == lines[1].split()[4] == "1.00"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--rows", "our"], "`rows` takes loop, ours, cached, bf16 or all, got our"),
        (["--images", "0"], "`images` must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured(words, reason, capsys):
    assert main(["bench", "embed", *words]) == 2
    assert reason in capsys.readouterr().err
