"""Variations of toy captions and scenes: other words, one false fact, another noun, another scene.

The oracle uses them to answer the prompts of the study's baselines, and the editor to generate pictures. Both make
mistakes with them: a missed change (`miss`), or a change too many (`slip`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from repair_hf.toyworld import captions
from repair_hf.toyworld.captions import (
    ACTION_AFTER,
    ACTION_BEFORE,
    BACKGROUND_WORDS,
    COUNT_WORDS,
    NOUNS,
    PREFIXES,
    READ,
    RELATION_WORDS,
    SIZE_WORDS,
    Words,
)
from repair_hf.toyworld.domains import Domain
from repair_hf.toyworld.scenes import (
    BACKGROUNDS,
    COLORS,
    INVERSE,
    SHAPES,
    VALUES,
    Facts,
    Scene,
    Slot,
    facts_of,
    holds,
    is_clear,
    satisfy,
    with_fact,
)

SYNONYMS: dict[str, Words] = {  # group of the grammar -> its phrases
    "count": COUNT_WORDS,
    "size": SIZE_WORDS,
    "before": ACTION_BEFORE,
    "after": ACTION_AFTER,
    "relation": RELATION_WORDS,
    **dict.fromkeys(("early", "late"), BACKGROUND_WORDS),
}

KINDS = {  # group of the grammar -> kind of detail
    "noun": "Object",
    **dict.fromkeys(("color", "size", "early", "late"), "Attribute"),
    **dict.fromkeys(("before", "after"), "Action"),
    "count": "Count",
    "relation": "Relation",
}


def reword(caption: str, rng: random.Random) -> str:
    """Reword a caption without changing its facts."""
    match = captions.match_caption(caption)
    spans = []
    for name, said in match.groupdict().items():
        if said and (others := synonyms(name, said)) and rng.random() < 0.7:
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
    """Change one fact so that no picture fits both captions.

    For a caption that names one bare thing only, this is not certain, because a picture may hold two things. Its shape
    or color is changed nevertheless.
    """
    match, facts = captions.match_caption(caption), captions.parse(caption)
    changes = list(_sure_changes(match, facts)) or list(_changes(match, facts, "1"))
    return rewrite(caption, [rng.choice(changes)])


def contrast(caption: str, kind: str, rng: random.Random) -> tuple[str, str]:
    """Change one detail so that no picture fits both captions, with the exception that `falsify` names.

    Args:
        caption: The caption.
        kind: The kind of detail to change, one of `KINDS`; another one if the caption states none that can change.
        rng: Draws the change.

    Returns:
        The kind of the change, and the changed caption.
    """
    match, facts = captions.match_caption(caption), captions.parse(caption)
    changes = [*_sure_changes(match, facts), *_other_plurals(match)] or list(_changes(match, facts, "1"))
    spans = {match.span(name): KINDS[name.rstrip("12")] for name in match.groupdict() if name.rstrip("12") in KINDS}
    by_kind: dict[str, list[tuple[int, int, str]]] = {}
    for change in changes:
        by_kind.setdefault(spans[change[:2]], []).append(change)
    chosen = kind if kind in by_kind else rng.choice(sorted(by_kind))
    return chosen, rewrite(caption, [rng.choice(by_kind[chosen])])


def swap_noun(caption: str, rng: random.Random) -> str:
    """Replace one shape by another."""
    match, facts = captions.match_caption(caption), captions.parse(caption)
    thing = rng.choice(["1", "2"]) if facts.second else "1"
    nouns = [change for change in _changes(match, facts, thing) if change[:2] == match.span(f"noun{thing}")]
    return rewrite(caption, [rng.choice(nouns)])


def change_scene(caption: str, scene: Scene, rng: random.Random) -> Scene:
    """Change one fact of the scene that the caption does not mention; return the same scene if there is none."""
    facts, shown = captions.parse(caption), facts_of(scene)
    goals = [
        with_fact(scene, slot, value)
        for slot in shown
        if slot[1] not in ("shape", "count")
        for value in VALUES[slot[1]]
        if value != shown[slot]
    ]
    true = [goal for goal in goals if is_clear(goal) and holds(facts, goal)]
    return rng.choice(true) if true else scene


def imagine(caption: str, rng: random.Random, domain: Domain) -> Scene:
    """Draw a scene of a domain that the caption is true of."""
    facts = captions.parse(caption)
    while True:
        scene = satisfy(facts, domain.scene(rng))
        if is_clear(scene) and holds(facts, scene):
            return scene


def miss(before: Scene, goal: Scene, rng: random.Random) -> Scene:
    """Undo one of the changes that lead from `before` to `goal`."""
    old, new = facts_of(before), facts_of(goal)
    undone = [with_fact(goal, slot, old[slot]) for slot in new if slot in old and old[slot] != new[slot]]
    if (before.other is None) != (goal.other is None):
        undone.append(replace(goal, other=before.other, relation=before.relation))
    undone = [scene for scene in undone if is_clear(scene)]
    return rng.choice(undone) if undone else goal


def slip(scene: Scene, slots: Iterable[Slot], rng: random.Random) -> Scene:
    """Change one of some facts of a scene, so that its two things stay distinct; without a fact, nothing changes."""
    shown = facts_of(scene)
    for slot in rng.sample(known := [slot for slot in slots if slot in shown], len(known)):
        others = [with_fact(scene, slot, value) for value in VALUES[slot[1]] if value != shown[slot]]
        if clear := [other for other in others if is_clear(other)]:
            return rng.choice(clear)
    return scene


def unchanged(before: Scene, after: Scene) -> list[Slot]:
    """Return the facts in which two scenes agree."""
    old = facts_of(before)
    return [slot for slot, value in facts_of(after).items() if old.get(slot) == value]


def rewrite(caption: str, spans: list[tuple[int, int, str]]) -> str:
    """Replace some spans of a caption; the case of its first letter stays."""
    text = caption[0].lower() + caption[1:]
    for start, end, words in sorted(spans, reverse=True):
        text = text[:start] + words + text[end:]
    return text[0].upper() + text[1:] if caption[0].isupper() else text


def synonyms(name: str, said: str) -> list[str]:
    """Return other phrases with the meaning of a group of the grammar."""
    part = name.rstrip("12")
    if part == "noun":
        base = captions.singular(said)
        return [_like(said, base, other) for other in NOUNS[READ["noun"][said]] if other != base]
    alike = next((phrases for phrases in SYNONYMS.get(part, {}).values() if said in phrases), ())
    return [other for other in alike if other != said]


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
    """Yield other sizes or actions; only one thing of a picture has these."""
    for part in ("size", "before", "after"):
        if said := match[part + which]:
            yield from ((*match.span(part + which), words[0]) for meaning, words in SYNONYMS[part].items()
                        if meaning != READ[part][said])  # fmt: skip


def _other_plurals(match: re.Match) -> Iterator[tuple[int, int, str]]:
    """Yield other numbers of several things; only the subject of a picture is more than one."""
    for which in ("1", "2"):
        said = match[f"count{which}"]
        if said and READ["count"][said] > 1:
            yield from ((*match.span(f"count{which}"), words[0]) for count, words in COUNT_WORDS.items()
                        if count not in (1, READ["count"][said]))  # fmt: skip


def _changes(match: re.Match, facts: Facts, which: str) -> Iterator[tuple[int, int, str]]:
    """Yield other colors or shapes of a thing, unless the caption would then name the other thing twice."""
    thing, other = (facts.first, facts.second) if which == "1" else (facts.second, facts.first)
    assert thing is not None, "the caption has the groups of this thing"
    noun = match[f"noun{which}"]
    base = captions.singular(noun)
    for shape in SHAPES:
        if shape != thing.shape and not (other and other.shape == shape and other.color in (thing.color, None)):
            yield (*match.span(f"noun{which}"), _like(noun, base, NOUNS[shape][0]))
    for color in COLORS if thing.color else ():
        if color != thing.color and not (other and other.shape == thing.shape and other.color == color):
            yield (*match.span(f"color{which}"), color)


def _like(noun: str, base: str, other: str) -> str:
    """Return `other` in the number of `noun`, whose singular is `base`."""
    return other if noun == base else captions.inflect(other, 2)
