"""`repair-hf bench`: that it measures, not how fast this machine is."""

from __future__ import annotations

import contextlib
import re

import pytest

from repair_hf.bench import embed, mine, train
from repair_hf.cli.main import main


def test_llm(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert main(["bench", "llm", "--requests", "12", "--concurrency", "4", "--latency", "0.01", "--rounds", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    rounds = [
        re.fullmatch(r"(\d) +([\d,]+)/s +([\d.]+) ms +([\d,]+)/s +([\d.]+) ms +([\d.]+)", line) for line in shown
    ]
    found = [[float(word.replace(",", "")) for word in line.groups()] for line in rounds if line]
    assert [row[0] for row in found] == [1, 2]
    assert all(0 < rate <= 4 / 0.01 and ms > 0 for row in found for rate, ms in (row[1:3], row[3:5]))
    assert all(row[5] == pytest.approx(row[3] / row[1], rel=0.1) for row in found)
    assert shown[-1].startswith("12 requests a round, 4 at once, 20,000 bytes a picture, 10 ms of the server's own")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--requests", "0"], "`requests` must be at least 1, got 0."),
        (["--latency", "-1"], "`latency` must not be negative, got -1.0."),
    ],
)
def test_a_mistake_is_one_line(words, complaint, capsys):
    assert main(["bench", "llm", *words]) == 2
    assert capsys.readouterr().err == f"repair-hf bench: error: {complaint}\n"


@pytest.mark.parametrize("part", [train, embed, mine], ids=["train", "embed", "mine"])
def test_help_names_the_rows(part, capsys):
    with contextlib.suppress(SystemExit):
        main(["bench", part.__name__.rpartition(".")[2], "--help"])
    assert f"Which rows to measure: {', '.join(part.ROWS)}; " in " ".join(capsys.readouterr().out.split())
