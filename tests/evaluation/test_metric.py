"""The metric modules for `evaluate`: loaded by path, held to the plainest arithmetic, as our own ranks are."""

import doctest
from pathlib import Path

import evaluate
import numpy as np
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "metrics" / "retrieval_recall"


@pytest.fixture(scope="module")
def recall():
    return evaluate.load(str(FOLDER), keep_in_memory=True)


@pytest.fixture(scope="module")
def of_ranks():
    return evaluate.load(str(FOLDER), "ranks", keep_in_memory=True)


def test_equals_sorting(recall, of_ranks):
    """The plain reading: sort by score, wrong ones first where equal, and look where the first right one stands."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, (40, 12)).astype(float)
    right = [rng.choice(12, rng.integers(1, 4), replace=False).tolist() for _ in scores]
    ranks = []
    for row, good in zip(scores, right, strict=True):
        order = sorted(range(12), key=lambda place: (-row[place], place in good))
        ranks.append(1 + min(order.index(place) for place in good))
    expected = {
        "R@2": sum(rank <= 2 for rank in ranks) / 40,
        "MRR": sum(1 / rank for rank in ranks) / 40,
        "median_rank": (sorted(ranks)[19] + sorted(ranks)[20]) / 2,
        "n_queries": 40,
    }
    assert recall.compute(predictions=scores, references=right, ks=[2]) == pytest.approx(expected)
    assert of_ranks.compute(predictions=ranks, ks=[2]) == pytest.approx(expected)


@pytest.mark.parametrize(
    "scores, right, said",
    [
        ([[0.1, 0.2], [0.1, float("nan")]], [[0], [0]], "Query 1 has a score that is not finite, of candidate 1"),
        ([[0.1, 0.2], [0.1, 0.3]], [[0], []], "Query 1 has no right candidate"),
        ([[0.1, 0.2]], [[2]], r"Query 0 has 2 candidates, and \[2\] as right ones"),
        ([[0.1, 0.2]], [[-1]], r"Query 0 has 2 candidates, and \[-1\] as right ones"),
    ],
)
def test_what_has_no_rank_is_an_error_that_names_the_query(recall, scores, right, said):
    with pytest.raises(ValueError, match=said):
        recall.compute(predictions=scores, references=right)


def test_ranks_and_ks_start_at_one(recall, of_ranks):
    with pytest.raises(ValueError, match="Ranks start at 1, got 0 for query 1"):
        of_ranks.compute(predictions=[1, 0])
    with pytest.raises(ValueError, match="numbers from 1, got .0."):
        recall.compute(predictions=[[0.1]], references=[[0]], ks=[0])
    with pytest.raises(ValueError, match="`default` .of scores. and `ranks`, got 'rank'"):
        evaluate.load(str(FOLDER), "rank")


def test_the_card_s_examples_are_true_and_its_head_is_that_of_a_space(recall):
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(card.split("---")[1])
    assert head["sdk"] == "gradio" and (FOLDER / head["app_file"]).is_file()
    assert {"evaluate", "metric"} <= set(head["tags"])

    class Here:
        load = staticmethod(lambda _, *config: evaluate.load(str(FOLDER), *config, keep_in_memory=True))

    rng, image_of = np.random.default_rng(0), np.array([0, 0, 1])
    known = {"recall": recall, "evaluate": Here, "np": np, "images": rng.random((2, 3)), "texts": rng.random((3, 3))}
    text = "\n".join(line for line in card.splitlines() if not line.startswith((">>> import", "```")))
    examples = doctest.DocTestParser().get_doctest(text, known | {"image_of": image_of}, "card", None, 0)
    results = doctest.DocTestRunner().run(examples)
    assert (results.attempted, results.failed) == (7, 0)
