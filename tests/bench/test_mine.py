"""What the mining bench measures: that each row does what it says, and the table of the command."""

from __future__ import annotations

import numpy as np
import pytest

from repair_hf.bench import options
from repair_hf.bench.mine import ROWS, Load, available, measure
from repair_hf.cli.main import main
from repair_hf.measuring import Vectors

LOAD = Load(images=60, texts=300, dim=16, k=5)


def test_captions_lie_nearest_their_image():
    vectors = Vectors.random(50, 250, 512)
    nearest = (vectors.texts @ vectors.images.T).argmax(axis=1)
    assert (nearest == vectors.image_of).mean() > 0.9
    np.testing.assert_allclose(np.linalg.norm(vectors.texts, axis=1), 1, rtol=1e-5)


def test_rows_take_turns():
    rounds = list(measure(LOAD, list(ROWS), repeat=2))
    for found in rounds:
        assert list(found) == [row for row in ROWS if available(row)]
        assert all(one.seconds > 0 and one.busy > 0 and one.memory >= 0 for one in found.values())
    assert len(rounds) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--rows", "minne"], "`rows` takes product, mine"),
        (["--k", "0"], "`k` must be at least 1, got 0"),
        (["--k", "5000"], "`k` must be less than the images (5000), got 5000"),
        (["--paper", "--k", "29000"], "`k` must be less than the images (29000), got 29000"),
        (["--growth", "--k", "5000"], "`k` must be less than the images (5000), got 5000"),
        (["--paper", "--images", "50"], "`paper` has sizes of its own; leave out it or `images`, got 50"),
        (["--growth", "--texts", "50"], "`growth` has sizes of its own; leave out it or `texts`, got 50"),
        (["--images", "0"], "`images` must be at least 1, got 0"),
        (["--images", "10", "--texts", "9", "--k", "2"], "`texts` must be at least `images`"),
        (["--paper", "--growth"], "`paper` and `growth` exclude each other"),
    ],
)
def test_what_cannot_be_measured(words, reason, capsys):
    assert main(["bench", "mine", *words]) == 2
    assert reason in capsys.readouterr().err


def test_table_of_the_command(capsys):
    assert main("bench mine --images 40 --texts 200 --dim 16 --k 3 --repeat 1".split()) == 0
    table = capsys.readouterr().out
    for row in ROWS:
        line = next(line for line in table.splitlines() if line.startswith(row))
        assert "MiB" in line or "not installed" in line


def test_growth_tells_the_time_of_a_pair(capsys, monkeypatch):
    monkeypatch.setattr(options, "SMALL", (30, 60))
    monkeypatch.setattr(options, "PAPER", (60, 120))
    assert main("bench mine --growth --dim 16 --k 3 --repeat 1 --rows mine".split()) == 0
    table = capsys.readouterr().out
    for size in ("30 images x 60", "60 images x 120", "120 images x 240"):
        assert size in table
    for row in ("product", "mine"):
        *times, change = map(float, table.split("nanoseconds")[1].split(f"\n{row} ")[1].split("\n")[0].split())
        assert change == pytest.approx(times[2] / times[0], abs=0.006)


def test_paper_is_the_size_of_its_corpus():
    assert options.MineBenchOptions(paper=True).sizes == [(29_000, 145_000)]
    assert options.MineBenchOptions(paper=True, k=6000).sizes == [(29_000, 145_000)]
    assert options.MineBenchOptions(images=200, texts=300).sizes == [(200, 300)]
    assert options.MineBenchOptions().sizes == [(5000, 25_000)]
