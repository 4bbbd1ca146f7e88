"""A spaCy pipeline for toy captions (model id `world`): tags by lookup, noun chunks by rule. It needs no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repair_hf.runtime.options import UserError
from repair_hf.toyworld.captions import (
    ACTION_AFTER,
    ACTION_BEFORE,
    BACKGROUND_WORDS,
    COUNT_WORDS,
    PLURALS,
    RELATION_WORDS,
    SIZE_WORDS,
    Words,
)
from repair_hf.toyworld.scenes import COLORS

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

NAME = "toy_world_words"


def build_parser() -> Language:
    """Build the pipeline. If spaCy is not installed, raise UserError."""
    try:
        import spacy
    except ModuleNotFoundError as error:
        raise UserError(
            "The toy world's captions are parsed by spaCy, which is not installed: pip install 'repair-hf[study]'."
        ) from error
    from spacy.language import Language

    if not Language.has_factory(NAME):
        Language.component(NAME, func=_tag)
    parser = spacy.blank("en")
    parser.add_pipe(NAME)
    return parser


def _words(table: Words) -> set[str]:
    return {word for phrases in table.values() for phrase in phrases for word in phrase.split()}


ADVERBS = {"fast", "along", "up"}
LOOKUP: tuple[tuple[set[str], str, str], ...] = (  # (words, tag, part of speech); the first match counts
    ({"a", "the"}, "DT", "DET"),
    ({"one", "two", "three"}, "CD", "NUM"),
    ({"pair", "trio", "picture", "day", "night", "daylight", "dark"}, "NN", "NOUN"),
    (ADVERBS, "RB", "ADV"),
    ({"asleep"} | set(COLORS) | _words(SIZE_WORDS), "JJ", "ADJ"),
    ({word for word in PLURALS if word.endswith("s")}, "NNS", "NOUN"),
    (set(PLURALS), "NN", "NOUN"),
    (_words(ACTION_BEFORE) | _words(ACTION_AFTER), "VBG", "VERB"),
    ({"and"}, "CC", "CCONJ"),
    ({"here"}, "RB", "ADV"),
    ({"we"}, "PRP", "PRON"),
    ({"see"}, "VBP", "VERB"),
    (_words(RELATION_WORDS) | _words(BACKGROUND_WORDS) | _words(COUNT_WORDS), "IN", "ADP"),
)


def _tag(document: Doc) -> Doc:
    """Tag each word. A noun is the head of all words since the last preposition, conjunction or noun."""
    first = 0
    for token in document:
        word = token.lower_
        token.tag_, token.pos_ = next(((tag, pos) for words, tag, pos in LOOKUP if word in words), (".", "PUNCT"))
        token.dep_, token.head = "dep", token
        if token.pos_ == "NOUN":
            for before in document[first : token.i]:
                before.head, before.dep_ = token, "amod"
            token.dep_ = "ROOT"
        if token.pos_ in ("NOUN", "ADP", "CCONJ", "PUNCT", "PRON") or word == "see":
            first = token.i + 1
    return document
