import random

from repair_hf.analysis.record_sample import compare


def test_changes_are_marked_and_case_and_punctuation_are_no_change():
    before, after = compare("A red dog, runs home.", "a blue dog runs")
    assert before == [("same", "A"), ("out", "red"), ("same", "dog, runs"), ("out", "home.")]
    assert after == [("same", "a"), ("in", "blue"), ("same", "dog runs")]


def test_each_side_is_its_text():
    rng = random.Random(0)
    for _ in range(200):
        texts = [" ".join(rng.choices("a A b, b c - d", k=rng.randrange(8))) for _ in range(2)]
        for text, runs in zip(texts, compare(*texts), strict=True):
            assert " ".join(run for _, run in runs) == " ".join(text.split())
