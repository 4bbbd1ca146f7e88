"""The world's own spaCy pipeline: tags of all words, and noun chunks of all things."""

from __future__ import annotations

import random
import sys

import pytest

from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions, scenes

pytest.importorskip("spacy", reason="words are tagged by spaCy: pip install 'repair-hf[study]'")


@pytest.fixture(scope="module")
def parser():
    from repair_hf.toyworld.parsing import build_parser

    return build_parser()


def test_tags_and_noun_chunks_as_an_english_model_gives_them(parser):
    document = parser("Three tiny jumping hearts right of one green star after dark.")
    tags = "CD JJ VBG NNS IN IN CD JJ NN IN NN .".split()
    assert [token.tag_ for token in document] == tags
    assert [chunk.text for chunk in document.noun_chunks] == ["Three tiny jumping hearts", "one green star", "dark"]
    parts = [token.pos_ for token in parser("a star fast asleep and a box")]
    assert parts == "DET NOUN ADV ADJ CCONJ DET NOUN".split()


def test_without_spacy_one_line_says_what_to_install(monkeypatch):
    from repair_hf.toyworld.parsing import build_parser

    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"not installed: pip install 'repair-hf\[study\]'"):
        build_parser()


def test_no_word_of_the_grammar_is_unknown(parser):
    rng = random.Random(0)
    for document in parser.pipe(captions.write(scenes.sample(rng), rng) for _ in range(300)):
        assert {token.text for token in document if token.pos_ == "PUNCT"} <= {".", ","}
        named = sum(word in captions.PLURALS for word in document.text.lower().strip(".").replace(",", "").split())
        things = [chunk for chunk in document.noun_chunks if chunk.root.text.lower() in captions.PLURALS]
        assert len(things) == named > 0
