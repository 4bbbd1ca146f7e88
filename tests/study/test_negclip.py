"""NegCLIP's five generators on captions whose parts are known."""

import random

import pytest

from repair_hf.study.negclip import VERB_PHRASE, negatives, swap


@pytest.fixture(scope="module")
def swapped():
    """The negatives of a document, written as `word/tag/part of speech/head/relation`."""
    spacy = pytest.importorskip("spacy", reason="words are tagged by spaCy: pip install 'repair-hf[study]'")
    from spacy.matcher import Matcher
    from spacy.tokens import Doc

    vocab = spacy.blank("en").vocab
    matcher = Matcher(vocab)
    matcher.add("verb phrase", [VERB_PHRASE])

    def make(text: str, seed: int = 0) -> list[str]:
        words, tags, pos, heads, deps = zip(*(word.split("/") for word in text.split()), strict=True)
        document = Doc(vocab, words, tags=tags, pos=pos, heads=[int(head) for head in heads], deps=deps)
        return [found.strip() for found in negatives(document, matcher, random.Random(seed))]

    return make


BOY = (
    "A/DT/DET/2/det small/JJ/ADJ/2/amod boy/NN/NOUN/4/nsubj quickly/RB/ADV/4/advmod "
    "runs/VBZ/VERB/4/ROOT and/CC/CCONJ/4/cc a/DT/DET/8/det big/JJ/ADJ/8/amod "
    "dog/NN/NOUN/10/nsubj slowly/RB/ADV/10/advmod jumps/VBZ/VERB/4/conj"
)


def test_each_generator_swaps_its_two_parts(swapped):
    assert swapped(BOY) == [
        "A big dog quickly runs and a small boy slowly jumps",
        "A small boy slowly jumps and a big dog quickly runs",
        "A small dog quickly runs and a big boy slowly jumps",
        "A small boy slowly runs and a big dog quickly jumps",
        "A big boy quickly runs and a small dog slowly jumps",
    ]


def test_two_distinct_parts_are_drawn_and_plural_nouns_where_there_are_no_two_singular_ones(swapped):
    text = "a/DT/DET/1/det cat/NN/NOUN/1/ROOT dog/NN/NOUN/1/conj cow/NN/NOUN/1/conj"
    assert {swapped(text, seed)[0] for seed in range(40)} == {"a dog cat cow", "a cow dog cat", "a cat cow dog"}
    assert swapped("a/DT/DET/1/det Dog/NN/NOUN/1/ROOT and/CC/CCONJ/1/cc a/DT/DET/4/det dog/NN/NOUN/1/conj") == []
    text = "dogs/NNS/NOUN/0/ROOT and/CC/CCONJ/0/cc cats/NNS/NOUN/0/conj near/IN/ADP/0/prep water/NN/NOUN/3/pobj"
    assert swapped(text) == ["cats and dogs near water"]


def test_a_swap_keeps_spacing_and_the_capital():
    assert swap("Dogs, and  a cat.", (0, 4), (13, 16)) == "Cat, and  a dogs."
    assert swap("we see a cat, a dog", (9, 12), (16, 19)) == "we see a dog, a cat"
