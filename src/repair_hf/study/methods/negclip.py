"""NegCLIP (Yuksekgonul et al., 2023, "When and why vision-language models behave like bags-of-words"): captions with two parts swapped.

Data: five generators per caption, each of which exchanges two parts of one kind, drawn at random: noun chunks of more than two words,
verb phrases, nouns, adverbs, adjectives. Up to 5 negatives a caption; a caption with none goes without. No LLM.
Loss: `negative_captions`; each epoch draws one of a caption's negatives.

Our reading: singular and plural nouns are one generator, which swaps within one number, so that there are five as the paper says and not
six. Parts are exchanged in place, so that spacing and case stay; equal parts are not swapped. The mined hard images of the original are
left out, as RePair's table marks T- alone. The draws are seeded, and made once; the spaCy model is the study's to name. A swap may happen
to leave a caption true ("a cat and a dog"); the original does not look either.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from repair_hf.study.methods.context import Workshop
from repair_hf.study.methods.losses import WithNegatives, negative_captions
from repair_hf.study.methods.method import Baseline, Maker

if TYPE_CHECKING:
    from spacy.tokens import Doc, Span

Cut = tuple[int, int]  # of a part: first and last character
VERB_PHRASE = [
    {"POS": "VERB", "OP": "?"},
    {"POS": "ADV", "OP": "*"},
    {"POS": "AUX", "OP": "*"},
    {"POS": "VERB", "OP": "+"},
]


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """All negatives of all captions."""
    parser = workshop.parser()
    from spacy.matcher import Matcher  # here, for without spaCy the line above says what to install

    matcher = Matcher(parser.vocab)
    matcher.add("verb phrase", [VERB_PHRASE])
    samples = []
    for row, document in enumerate(parser.pipe(workshop.captions)):
        owner = workshop.of_caption(row)
        texts = dict.fromkeys(negatives(document, matcher, random.Random(f"{workshop.seed}/{owner['caption_id']}")))
        samples += [owner | {"text": text} for text in texts]
        if not texts:
            workshop.drop(row, "no_op", "no two parts of a kind to exchange")
    return samples


def negatives(document: Doc, matcher: Any, rng: random.Random) -> Iterator[str]:
    """At most one negative of each generator."""
    for parts in _parts(document, matcher):
        distinct = {document.text[first:last].casefold(): (first, last) for first, last in parts}
        if len(distinct) >= 2:
            one, other = sorted(rng.sample(sorted(distinct.values()), 2))
            yield swap(document.text, one, other)


def swap(text: str, one: Cut, other: Cut) -> str:
    """Exchange two parts of a text; `one` stands before `other`. A capital letter at the beginning stays there."""
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


SWAPS = Maker("negclip", make, parses=True)
METHODS = (Baseline("negclip", {"negative": SWAPS}, WithNegatives.of(negative_captions), needs=("spacy",)),)
