"""What the evaluation bench measures; tests/crosscheck runs the row of CLIP_benchmark."""

from __future__ import annotations

import pytest

from repair_hf.bench.evaluate import REFERENCE, ROWS, Found, Load, available, measure
from repair_hf.bench.options import EvaluateBenchOptions
from repair_hf.cli.main import main
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.measuring import Took, Vectors


def test_each_row_gives_the_metrics_of_the_vectors():
    rounds = list(measure(Load(images=20, texts=60, dim=8, resamples=10), list(ROWS), repeat=2))
    assert len(rounds) == 2
    vectors = Vectors.random(20, 60, 8)
    wanted = evaluate_retrieval(vectors.images, vectors.texts, vectors.image_of)
    for found in rounds:
        assert list(found) == [row for row in ROWS if available(row)]
        for one in found.values():
            assert one.took.seconds > 0 and one.took.busy > 0
            assert one.metrics == pytest.approx({name: wanted[name] for name in one.metrics}, abs=1e-6)


def test_how_far_two_are_apart_is_that_of_the_worst_recall():
    one = Found(Took(1, 1, 1), {"i2t_R@1": 0.5, "t2i_R@5": 0.7, "i2t_MRR": 0.1})
    assert one.apart(Found(Took(1, 1, 1), {"i2t_R@1": 0.4, "t2i_R@5": 0.4})) == pytest.approx(0.3)


def test_table_of_the_command(capsys):
    assert main("bench evaluate --images 20 --texts 60 --dim 8 --resamples 10 --repeat 1".split()) == 0
    table = capsys.readouterr().out
    for row in ROWS:
        line = next(line for line in table.splitlines() if line.startswith(row))
        assert ("MiB" in line) if available(row) else "`make crosscheck` says where it is" in line
    assert "20 images x 60 captions" in table and available(REFERENCE) == ("e-" in table or "0.0e+00" in table)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--images", "50", "--texts", "49"], r"`texts` must be at least `images` (50): each has a caption; got 49"),
        (["--images", "9"], "`images` must be at least 10, for Recall@10; got 9"),
        (["--paper", "--images", "7"], "`paper` has sizes of its own; leave out it or `images`, got 7"),
        (["--resamples", "0"], "`resamples` must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured(words, reason, capsys):
    assert main(["bench", "evaluate", *words]) == 2
    assert reason in capsys.readouterr().err


def test_paper_is_the_size_of_cocos_test_split():
    for paper, sizes in ((True, (5000, 25_000)), (False, (1000, 5000))):
        options = EvaluateBenchOptions(paper=paper)
        assert (options.images, options.texts) == sizes
