"""Toy captions and scenes varied on purpose: other words for the same facts, one fact made false, a scene of one's own.

In:  captions of the grammar, scenes, a random generator.
Out: what the oracle answers to the jobs of the study's other methods, and the pictures that they ask for.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

from repair_hf.toyworld import captions
from repair_hf.toyworld.captions import (
    ACTION_AFTER,
    ACTION_BEFORE,
    BACKGROUND_READ,
    BACKGROUND_WORDS,
    COUNT_WORDS,
    NOUNS,
    PREFIXES,
    READ,
    RELATION_READ,
    RELATION_WORDS,
    SIZE_WORDS,
)
from repair_hf.toyworld.scenes import (
    ACTIONS,
    BACKGROUNDS,
    COLORS,
    INVERSE,
    RELATIONS,
    SHAPES,
    SIZES,
    Facts,
    Scene,
    holds,
    sample,
    satisfy,
)

SYNONYMS = {"count": COUNT_WORDS, "size": SIZE_WORDS, "before": ACTION_BEFORE, "after": ACTION_AFTER, "noun": NOUNS}


def reword(caption: str, rng: random.Random) -> str:
    """Say the same facts in other words."""
    match = captions.match_caption(caption)
    spans = []
    for name, said in match.groupdict().items():
        if said and (others := _synonyms(name, said)) and rng.random() < 0.7:
            spans.append((*match.span(name), rng.choice(others)))
    if match["prefix"]:
        spans.append(
            (*match.span("prefix"), rng.choice([other for other in (*PREFIXES, "") if other != match["prefix"]]))
        )
    elif not spans or rng.random() < 0.3:
        start = match.start("core1")
        spans.append((start, start, rng.choice(PREFIXES)))
    return rewrite(caption, spans)


def falsify(caption: str, rng: random.Random) -> str:
    """Change one fact, so that no picture fits both captions.

    A caption that names one bare thing and nothing else leaves no way to be sure: a picture may hold two things. Its shape or its
    color is changed all the same.
    """
    match, facts = captions.match_caption(caption), captions.parse(caption)
    changes = list(_sure_changes(match, facts)) or list(_changes(match, facts, "1"))
    return rewrite(caption, [rng.choice(changes)])


def swap_noun(caption: str, rng: random.Random) -> str:
    """Put another shape in the place of one."""
    match, facts = captions.match_caption(caption), captions.parse(caption)
    thing = rng.choice(["1", "2"]) if facts.second else "1"
    nouns = [change for change in _changes(match, facts, thing) if change[:2] == match.span(f"noun{thing}")]
    return rewrite(caption, [rng.choice(nouns)])


def change_scene(caption: str, scene: Scene, rng: random.Random) -> Scene:
    """Another scene of which the caption is true: one fact differs that it leaves open. The same scene where it leaves none."""
    subject = [{"size": size} for size in SIZES] + [{"action": action} for action in ACTIONS]
    colors = [{"color": color} for color in COLORS]
    goals = [replace(scene, background=background) for background in BACKGROUNDS]
    goals += [replace(scene, subject=replace(scene.subject, **change)) for change in subject + colors]
    if scene.other:
        goals += [replace(scene, other=replace(scene.other, **change)) for change in colors]
        goals += [replace(scene, relation=relation) for relation in RELATIONS]
    facts = captions.parse(caption)
    true = [goal for goal in goals if goal != scene and _is_clear(goal) and holds(facts, goal)]
    return rng.choice(true) if true else scene


def imagine(caption: str, rng: random.Random) -> Scene:
    """Some scene of which the caption is true."""
    facts = captions.parse(caption)
    while True:
        scene = satisfy(facts, sample(rng))
        if _is_clear(scene) and holds(facts, scene):
            return scene


def rewrite(caption: str, spans: list[tuple[int, int, str]]) -> str:
    """The caption with other words at some places, its first letter as large as before."""
    text = caption[0].lower() + caption[1:]
    for start, end, words in sorted(spans, reverse=True):
        text = text[:start] + words + text[end:]
    return text[0].upper() + text[1:] if caption[0].isupper() else text


def _synonyms(name: str, said: str) -> list[str]:
    """Other phrases of the same meaning for what a group of the grammar holds."""
    if name == "relation":
        return [other for other in RELATION_WORDS[RELATION_READ[said]] if other != said]
    if name in ("early", "late"):
        return [other for other in BACKGROUND_WORDS[BACKGROUND_READ[said]] if other != said]
    part = name.rstrip("12")
    if part not in SYNONYMS:
        return []
    if part == "noun":
        base = captions.singular(said)
        return [_like(said, base, other) for other in NOUNS[READ["noun"][said]] if other != base]
    return [other for other in SYNONYMS[part][READ[part][said]] if other != said]


def _sure_changes(match: re.Match, facts: Facts) -> Iterator[tuple[int, int, str]]:
    if facts.background:
        group = "early" if match["early"] else "late"
        yield from ((*match.span(group), word) for meaning in BACKGROUNDS if meaning != facts.background
                    for word in BACKGROUND_WORDS[meaning])  # fmt: skip
    if facts.relation:
        yield from ((*match.span("relation"), word) for word in RELATION_WORDS[INVERSE[facts.relation]])
    for which, thing in (("1", facts.first), ("2", facts.second)):
        is_subject = thing is not None and bool(thing.size or thing.action or thing.count > 1)
        if is_subject:
            yield from _changes_of_subject(match, which)
        if thing is not None and (is_subject or facts.second):
            yield from _changes(match, facts, which)


def _changes_of_subject(match: re.Match, which: str) -> Iterator[tuple[int, int, str]]:
    """Another size or action: a picture has one thing with these."""
    for part in ("size", "before", "after"):
        if said := match[part + which]:
            yield from ((*match.span(part + which), words[0]) for meaning, words in SYNONYMS[part].items()
                        if meaning != READ[part][said])  # fmt: skip


def _changes(match: re.Match, facts: Facts, which: str) -> Iterator[tuple[int, int, str]]:
    """Another color or shape for a thing, unless the caption would then name the other thing twice."""
    thing, other = (facts.first, facts.second) if which == "1" else (facts.second, facts.first)
    noun = match[f"noun{which}"]
    base = captions.singular(noun)
    for shape in SHAPES:
        if shape != thing.shape and not (other and other.shape == shape and other.color in (thing.color, None)):
            yield (*match.span(f"noun{which}"), _like(noun, base, NOUNS[shape][0]))
    for color in COLORS if thing.color else ():
        if color != thing.color and not (other and other.shape == thing.shape and other.color == color):
            yield (*match.span(f"color{which}"), color)


def _like(noun: str, base: str, other: str) -> str:
    """`other` in the number of `noun`, whose singular is `base`."""
    return other if noun == base else captions.inflect(other, 2)


def _is_clear(scene: Scene) -> bool:
    other = scene.other
    return other is None or (other.shape, other.color) != (scene.subject.shape, scene.subject.color)
