"""The toy world's own compositional benchmark: a caption against the same caption with one swap, in four categories.

| category | what is swapped | for captions that |
|---|---|---|
| `attribute` | the colors of the two things | name two colors |
| `relation` | the relation, for its opposite (`left of`, `right of`) | name a relation |
| `order` | the two things themselves | name a relation |
| `count` | the number of the subject | name it |

The pictures are the pairs' own. Each picture and category has one case: the first caption whose swap is false. Both
captions are checked against the picture's scene, so every answer is certain.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from repair_hf.evaluation.cases import Case, Cases, first_is_right, micro_and_macro
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions
from repair_hf.toyworld.captions import COUNT_WORDS, RELATION_READ, RELATION_WORDS
from repair_hf.toyworld.scenes import COUNTS, INVERSE, Facts, Scene, align, holds
from repair_hf.toyworld.truth import scenes_of
from repair_hf.toyworld.variations import rewrite

NAME = "world"
CATEGORIES = ("attribute", "relation", "order", "count")

Spans = list[tuple[int, int, str]]  # start and end in a caption, and the new text


def load_world(pairs: Pairs) -> Cases:
    """Make the cases of some pairs; the same for the same pairs.

    Raises:
        UserError: If a picture has no scene, or no caption allows a swap.

    Example:
        >>> cases = load_world(load_pairs("runs/world", split="test"))
        >>> [cases.captions[row] for row in cases.caption[0]]  # the true one first
        ['two red circles left of a blue square', 'two blue circles left of a red square']
    """
    image_ids, texts = pairs.images["image_id"][:], pairs.captions["caption"][:]
    cases = []
    for row, scene in enumerate(scenes_of(pairs)):
        own, name = [texts[caption] for caption in pairs.captions_of(row)], image_ids[row]
        for category in CATEGORIES:
            if choices := _first_swap(own, category, scene):
                cases.append(Case(f"{category}/{name}", category, (row,), choices, name))
    if not cases:
        raise UserError(
            "`compositional` world: no caption of these pairs names two things or a number; build pairs with "
            "`repair-hf world`."
        )
    count = Counter(case.group for case in cases)
    metrics = micro_and_macro([category for category in CATEGORIES if category in count])
    counts = {f"n_{category}": count[category] for category in CATEGORIES}
    return Cases(NAME, cases, None, first_is_right, metrics, counts)


def swap(caption: str, category: str, scene: Scene) -> str | None:
    """Swap one part of a caption that is true of the scene so that it becomes false; None if that is impossible.

    Raises:
        ValueError: If the caption lies outside the grammar.
    """
    match, facts = captions.match_caption(caption), captions.parse(caption)
    if not holds(facts, scene):
        return None
    for spans in _SWAPS[category](match, facts, scene):
        text = rewrite(caption, spans)
        if not holds(captions.parse(text), scene):
            return text
    return None


def _first_swap(texts: list[str], category: str, scene: Scene) -> tuple[str, str] | None:
    """Return the first caption that is true of the scene and has a false swap, and the swap."""
    for text in texts:
        try:
            wrong = swap(text, category, scene)
        except ValueError as error:
            raise UserError(f"`compositional` world reads the captions, and {error}") from error
        if wrong is not None:
            return text, wrong
    return None


def _attribute(match: re.Match, facts: Facts, scene: Scene) -> Iterator[Spans]:
    if match["color1"] and match["color2"]:
        yield [(*match.span("color1"), match["color2"]), (*match.span("color2"), match["color1"])]


def _relation(match: re.Match, facts: Facts, scene: Scene) -> Iterator[Spans]:
    if said := match["relation"]:
        meaning: Any = RELATION_READ[said]
        opposite = RELATION_WORDS[INVERSE[meaning]][RELATION_WORDS[meaning].index(said)]
        yield [(*match.span("relation"), opposite)]


def _order(match: re.Match, facts: Facts, scene: Scene) -> Iterator[Spans]:
    if match["relation"]:
        spans = [(match.start(f"core{k}"), max(match.end(f"core{k}"), match.end(f"after{k}"))) for k in (1, 2)]
        first, second = (match.string[start:end] for start, end in spans)
        yield [(*spans[0], second), (*spans[1], first)]


def _count(match: re.Match, facts: Facts, scene: Scene) -> Iterator[Spans]:
    """Yield the other two numbers in random order."""
    which, thing = ("1", facts.first) if align(facts, scene).first == "subject" else ("2", facts.second)
    assert thing is not None
    form = COUNT_WORDS[thing.count].index(match[f"count{which}"])
    noun = captions.singular(match[f"noun{which}"])
    others = [count for count in COUNTS if count != thing.count]
    for count in random.Random(match.string).sample(others, len(others)):
        yield [
            (*match.span(f"count{which}"), COUNT_WORDS[count][form]),
            (*match.span(f"noun{which}"), captions.inflect(noun, count)),
        ]


_SWAPS = dict(zip(CATEGORIES, (_attribute, _relation, _order, _count), strict=True))
