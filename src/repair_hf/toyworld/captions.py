"""Toy captions: written by a grammar, and parsed by the same grammar.

One table of phrases is used for writing and parsing, so every written caption can be parsed. A caption mentions some
facts of its scene in varied wording.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from typing import Any

from repair_hf.toyworld.scenes import ACTIONS, COLORS, INVERSE, SIZES, Facts, Scene, Thing

Words = dict[Any, tuple[str, ...]]  # meaning -> phrases

NOUNS: Words = {
    "circle": ("circle", "ball"),
    "square": ("square", "box"),
    "triangle": ("triangle", "pyramid"),
    "star": ("star",),
    "heart": ("heart",),
    "diamond": ("diamond", "kite"),
    "cross": ("cross", "plus"),
    "ring": ("ring", "hoop"),
}
COUNT_WORDS: Words = {1: ("a", "one"), 2: ("two", "a pair of"), 3: ("three", "a trio of")}
SIZE_WORDS: Words = {"large": ("large", "big", "huge"), "small": ("small", "little", "tiny")}
ACTION_BEFORE: Words = {
    "sleeping": ("sleeping", "dozing"),
    "jumping": ("jumping", "leaping"),
    "running": ("running", "racing"),
}
ACTION_AFTER: Words = {
    "sleeping": ("sleeping", "fast asleep"),
    "jumping": ("jumping", "leaping up"),
    "running": ("running", "racing along"),
}
RELATION_WORDS: Words = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
BACKGROUND_WORDS: Words = {
    "day": ("by day", "in daylight"),
    "night": ("at night", "after dark"),
}
PREFIXES = ("a picture of ", "here we see ")


def _reading(table: Words) -> dict[str, Any]:
    return {phrase: meaning for meaning, phrases in table.items() for phrase in phrases}


def _any_of(name: str, phrases) -> str:
    return f"(?P<{name}>" + "|".join(sorted(map(re.escape, phrases), key=len, reverse=True)) + ")"


PLURALS = {noun + plural: shape for shape, nouns in NOUNS.items() for noun in nouns for plural in ("", "s", "es")}
READ: dict[str, dict[str, Any]] = {
    "count": _reading(COUNT_WORDS),
    "size": _reading(SIZE_WORDS),
    "before": _reading(ACTION_BEFORE),
    "color": {color: color for color in COLORS},
    "noun": PLURALS,
    "after": _reading(ACTION_AFTER),
}
RELATION_READ, BACKGROUND_READ = _reading(RELATION_WORDS), _reading(BACKGROUND_WORDS)


def _phrase(which: str) -> str:
    part = {name: _any_of(f"{name}{which}", READ[name]) for name in READ}
    core = f"{part['count']}(?: {part['size']})?(?: {part['before']})?(?: {part['color']})? {part['noun']}"
    return f"(?P<core{which}>{core})(?: {part['after']})?"


CAPTION = re.compile(
    "(?:" + _any_of("early", BACKGROUND_READ) + ", )?" + _any_of("prefix", PREFIXES) + "?" + _phrase("1")
    + "(?P<tail> (?:and|" + _any_of("relation", RELATION_READ) + ") " + _phrase("2") + ")?"
    + "(?: " + _any_of("late", BACKGROUND_READ) + ")?"
)  # fmt: skip
THING = re.compile(_phrase(""))


@dataclass(frozen=True)
class Style:
    """Which facts captions mention, as shares from 0 to 1, and which words they prefer.

    Attributes:
        other, color, size, action, background: Share of captions that mention this fact, where there is one.
        joined: Share of captions with `and` in place of the relation.
        first_word: Share of choices among equal phrases that fall on the first; None takes each equally often.
    """

    other: float = 0.95
    color: float = 0.95
    size: float = 0.75
    action: float = 0.8
    background: float = 0.65
    joined: float = 0.1
    first_word: float | None = None

    def fuller(self, share: float) -> Style:
        """Return a style between this one (0) and one that mentions every fact (1)."""
        grown = {name: (1 - share) * getattr(self, name) + share for name in FACTS}
        return replace(self, **grown, joined=(1 - share) * self.joined)


FACTS = ("other", "color", "size", "action", "background")
STYLE = Style()


def write(scene: Scene, rng: random.Random, style: Style = STYLE) -> str:
    """Write a true caption of the scene, with its subject and some other facts, in random wording."""
    second = scene.other if scene.other and rng.random() < style.other else None
    alike = second is not None and second.shape == scene.subject.shape  # then only the color tells them apart
    first_words = _words(scene.subject, rng, style, 1.0 if alike else style.color)
    background = ""
    if rng.random() < style.background:
        background = _choose(BACKGROUND_WORDS[scene.background], rng, style)
    body = first_words
    if second:
        second_words = _words(second, rng, style, 1.0 if alike else style.color)
        swap, joined = rng.random() < 0.35, rng.random() < style.joined
        relation = INVERSE[scene.relation] if swap else scene.relation
        link = "and" if joined else _choose(RELATION_WORDS[relation], rng, style)
        body = f"{second_words} {link} {first_words}" if swap else f"{first_words} {link} {second_words}"
    prefix = rng.choice(PREFIXES) if rng.random() < 0.15 else ""
    if background and rng.random() < 0.3:
        text = f"{background}, {prefix}{body}"
    else:
        text = f"{prefix}{body} {background}".rstrip()
    return text[0].upper() + text[1:] + "." if rng.random() < 0.5 else text


def parse(caption: str) -> Facts:
    """Parse the facts of a caption, like `match_caption`."""
    match = match_caption(caption)
    second = _thing(match, "2") if match["tail"] else None
    relation = RELATION_READ[match["relation"]] if match["relation"] else None
    background = match["early"] or match["late"]
    return Facts(_thing(match, "1"), second, relation, BACKGROUND_READ[background] if background else None)


def parse_thing(phrase: str) -> Thing | None:
    """Parse a phrase such as `two red circles`; None if it names no thing."""
    match = THING.fullmatch(phrase)
    return _thing(match, "") if match else None


def match_caption(caption: str) -> re.Match:
    """Match a caption with the grammar. Lower-casing keeps offsets, so the spans of groups are those of the caption.

    Raises:
        ValueError: If the grammar cannot parse the caption.
    """
    match = CAPTION.fullmatch(caption.lower().rstrip(". "))
    if match is None:
        raise ValueError(f"{caption!r} is not a caption of the toy world's grammar.")
    return match


def describe(thing: Thing) -> str:
    """Describe a thing in full, in the simplest words: `two large sleeping red circles`."""
    words = [COUNT_WORDS[thing.count][0], thing.size, thing.action, thing.color, thing.shape + "s" * (thing.count > 1)]
    return " ".join(word for word in words if word)


def describe_scene(scene: Scene) -> str:
    body = describe(scene.subject)
    if scene.other:
        body += f" {RELATION_WORDS[scene.relation][0]} {describe(scene.other)}"
    return f"{body} {BACKGROUND_WORDS[scene.background][0]}"


def inflect(noun: str, count: int) -> str:
    return noun if count == 1 else noun + ("es" if noun.endswith(("x", "s")) else "s")


def singular(noun: str) -> str:
    return next(base for base in NOUNS[PLURALS[noun]] if noun.startswith(base))


def _words(thing: Thing, rng: random.Random, style: Style, color_share: float) -> str:
    """Write a phrase for a thing; size, action and color may be left out."""
    size = ""
    if thing.size in SIZES and rng.random() < style.size:
        size = _choose(SIZE_WORDS[thing.size], rng, style)
    color = thing.color if rng.random() < color_share else None
    before = after = ""
    if thing.action in ACTIONS and rng.random() < style.action:
        if rng.random() < 0.4:
            before = _choose(ACTION_BEFORE[thing.action], rng, style)
        else:
            after = _choose(ACTION_AFTER[thing.action], rng, style)
    noun = inflect(_choose(NOUNS[thing.shape], rng, style), thing.count)
    words = (_choose(COUNT_WORDS[thing.count], rng, style), size, before, color, noun, after)
    return " ".join(word for word in words if word)


def _choose(phrases: tuple[str, ...], rng: random.Random, style: Style) -> str:
    if style.first_word is not None and rng.random() < style.first_word:
        return phrases[0]
    return rng.choice(phrases if style.first_word is None else phrases[-1:])


def _thing(match: re.Match, which: str) -> Thing:
    read: dict[str, Any] = {
        name: table[match[name + which]] if match[name + which] else None for name, table in READ.items()
    }
    return Thing(read["noun"], read["color"], read["count"], read["size"], read["before"] or read["after"])
