"""NegCLIP (Yuksekgonul et al., 2023, "When and why vision-language models behave like bags-of-words").

Data: five generators swap two random parts of one kind: noun chunks of more than two words, verb phrases, nouns,
adverbs, adjectives. Up to 5 negatives a caption, or none. No LLM.
Loss: the default; a negative is one more caption of the batch, and each epoch draws one of a caption's.

Our reading: singular and plural nouns are one generator, as in RePair's paper, which also leaves out the original's
hard images. Parts are swapped in place; equal ones are not. A swap may leave a caption true, as in the original.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from repair_hf.study.making import SEED, Maker, MakerContext, Sample
from repair_hf.study.words import load_parser

if TYPE_CHECKING:
    from spacy.tokens import Doc, Span

Cut = tuple[int, int]  # first character of a part, and the one after its last
VERB_PHRASE = [
    {"POS": "VERB", "OP": "?"},
    {"POS": "ADV", "OP": "*"},
    {"POS": "AUX", "OP": "*"},
    {"POS": "VERB", "OP": "+"},
]


async def make(context: MakerContext) -> list[Sample]:
    parser = load_parser(context.spacy_model, noun_chunks=True)
    from spacy.matcher import Matcher  # late: without spaCy, the line above says what to install

    matcher = Matcher(parser.vocab)
    matcher.add("verb phrase", [VERB_PHRASE])
    samples: list[Sample] = []
    for row, document in enumerate(parser.pipe(context.captions)):
        rng = random.Random(f"{SEED}/{context.of_caption(row)['caption_id']}")
        texts = dict.fromkeys(negatives(document, matcher, rng))
        samples += [(row, {"text": text}) for text in texts]
        if not texts:
            context.drop(row, "no_op", "no two parts of one kind to swap")
    return samples


def negatives(document: Doc, matcher: Any, rng: random.Random) -> Iterator[str]:
    """Yield at most one negative of each generator."""
    for parts in _parts(document, matcher):
        distinct = {document.text[first:last].casefold(): (first, last) for first, last in parts}
        if len(distinct) >= 2:
            one, other = sorted(rng.sample(sorted(distinct.values()), 2))
            yield swap(document.text, one, other)


def swap(text: str, one: Cut, other: Cut) -> str:
    """Swap two parts of a text, `one` before `other`. A capital letter at the beginning stays there."""
    parts = text[: one[0]], text[other[0] : other[1]], text[one[1] : other[0]], text[one[0] : one[1]], text[other[1] :]
    if one[0] == 0 and text[0].isupper():
        new_first, moved = parts[1], parts[3]
        parts = "", new_first[0].upper() + new_first[1:], parts[2], moved[0].lower() + moved[1:], parts[4]
    return "".join(parts)


def _parts(document: Doc, matcher: Any) -> Iterator[list[Cut]]:
    from spacy.util import filter_spans

    def cuts(spans: list[Span]) -> list[Cut]:
        return [(span.start_char, span.end_char) for span in spans]

    yield cuts([chunk for chunk in document.noun_chunks if len(chunk) > 2])
    yield cuts(filter_spans(matcher(document, as_spans=True)))
    words = [(token, (token.idx, token.idx + len(token))) for token in document]
    singular, plural = ([cut for token, cut in words if token.tag_ == tag] for tag in ("NN", "NNS"))
    yield singular if len(singular) > 1 else plural
    for pos in ("ADV", "ADJ"):
        yield [cut for token, cut in words if token.pos_ == pos]


SWAPS = Maker("negclip", make)
