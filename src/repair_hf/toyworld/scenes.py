"""What a toy picture shows, what a toy caption says, and how the two differ.

In:  a random generator, or two descriptions of the same small world.
Out: `Scene` (everything that a picture shows), `Facts` (what a caption says: some of it), and the list of `Difference`s between
     them, each with the error type that the paper names: Object, Action, Attribute, Count, Relation, Hallucination.

A scene holds one group of equal things (the subject), most often one other thing, the relation of the first to the second, and
a background. A caption names one or two things without saying which is the subject, so comparing is first an alignment: every
way to match the named things with the shown ones is tried, and the one with the fewest differences counts.

The world is dense on purpose (about 90,000 scenes): with 2,500 pictures a trained retriever's top false positive differs from the
query in one to three facts, which is what a near miss is.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

SHAPES = ("circle", "square", "triangle", "star", "heart")
COLORS = ("red", "blue", "green", "yellow", "purple")
SIZES = ("large", "small")
COUNTS = (1, 2, 3)
ACTIONS = ("sleeping", "jumping", "running")
RELATIONS = ("left", "right", "above", "below")
BACKGROUNDS = ("day", "night")
INVERSE = {"left": "right", "right": "left", "above": "below", "below": "above"}
ERROR_TYPES = ("Object", "Action", "Attribute", "Count", "Relation", "Hallucination")

COMPANY = 0.85  # share of scenes that hold a second thing; the others let captions hallucinate one


@dataclass(frozen=True)
class Thing:
    """A group of equal shapes. `None` means not said; a scene's other thing has neither size nor action."""

    shape: str
    color: str | None = None
    count: int = 1
    size: str | None = None
    action: str | None = None


@dataclass(frozen=True)
class Scene:
    """Everything that a picture shows. `layout` seeds where things stand; it is no fact and takes no part in comparisons."""

    subject: Thing
    other: Thing | None
    relation: str | None  # of the subject to the other thing
    background: str
    layout: int = field(default=0, compare=False)

    def to_json(self) -> str:
        """One line of JSON, the form in which a picture carries its scene."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Scene:
        """Inverse of `to_json`."""
        values = json.loads(text)
        other = Thing(**values["other"]) if values["other"] else None
        return cls(Thing(**values["subject"]), other, values["relation"], values["background"], values["layout"])


@dataclass(frozen=True)
class Facts:
    """What a caption says: one or two things, perhaps the relation of the first to the second, perhaps the background."""

    first: Thing
    second: Thing | None = None
    relation: str | None = None
    background: str | None = None


@dataclass(frozen=True)
class Difference:
    """One fact in which a caption and a picture disagree.

    Args:
        kind: One of `ERROR_TYPES`. `Hallucination`: the caption names a thing that the picture lacks.
        target: Which mention of the caption it concerns.
        name: The field of `Thing` or `Facts` that differs.
        said: What the caption says.
        shown: What the picture shows.
    """

    kind: str
    target: Literal["first", "second", "scene"]
    name: str
    said: object
    shown: object


@dataclass(frozen=True)
class Alignment:
    """Which shown thing each named thing stands for (`None`: for nothing shown), and what then differs."""

    first: Literal["subject", "other"] | None
    second: Literal["subject", "other"] | None
    differences: tuple[Difference, ...]


KIND_OF = {"shape": "Object", "color": "Attribute", "size": "Attribute", "count": "Count", "action": "Action"}


def sample(rng: random.Random) -> Scene:
    """Draw a scene; no two things in it share both shape and color, so that a phrase always names one of them."""
    pick = rng.choice
    subject = Thing(pick(SHAPES), pick(COLORS), pick(COUNTS), pick(SIZES), pick(ACTIONS))
    other = None
    if rng.random() < COMPANY:
        other = Thing(pick(SHAPES), pick(COLORS))
        while (other.shape, other.color) == (subject.shape, subject.color):
            other = Thing(pick(SHAPES), pick(COLORS))
    relation = pick(RELATIONS) if other else None
    return Scene(subject, other, relation, pick(BACKGROUNDS), layout=rng.randrange(2**31))


def align(facts: Facts, scene: Scene) -> Alignment:
    """The alignment of the caption's things with the picture's that leaves the fewest differences (the first such one)."""
    return min(_alignments(facts, scene), key=lambda alignment: len(alignment.differences))


def differences(facts: Facts, scene: Scene) -> tuple[Difference, ...]:
    """In what the caption is wrong about the picture; empty if it is true of it."""
    return align(facts, scene).differences


def holds(facts: Facts, scene: Scene) -> bool:
    """Whether everything that the caption says is true of the picture."""
    return not differences(facts, scene)


def satisfy(facts: Facts, scene: Scene) -> Scene:
    """The scene nearest to `scene` of which the caption is true; what the caption leaves open stays as it was."""
    alignment = align(facts, scene)
    said = {alignment.first: facts.first, alignment.second: facts.second}
    subject = _overwrite(scene.subject, said.get("subject"))
    missing = {"first": facts.first, "second": facts.second}
    hallucinated = next((missing[gap.target] for gap in alignment.differences if gap.kind == "Hallucination"), None)
    other = hallucinated or _overwrite(scene.other, said.get("other"))
    if other and other.color is None:
        other = replace(other, color=next(color for color in COLORS if color != subject.color))
    relation = scene.relation or ("left" if other else None)
    if facts.relation:
        relation = facts.relation if alignment.first == "subject" else INVERSE[facts.relation]
    return replace(
        scene, subject=subject, other=other, relation=relation, background=facts.background or scene.background
    )


def _alignments(facts: Facts, scene: Scene) -> list[Alignment]:
    """Every admissible matching; only a bare single thing may stand for the scene's other thing."""
    roles = [("subject", "other"), ("other", "subject")] if facts.second else [("subject", None), ("other", None)]
    found = []
    for first, second in roles:
        named_as_other = facts.first if first == "other" else facts.second
        if named_as_other and (named_as_other.size or named_as_other.action or named_as_other.count != 1):
            continue
        if facts.second is None and first == "other" and scene.other is None:
            continue
        if scene.other is None:
            first, second = (None if role == "other" else role for role in (first, second))
        found.append(Alignment(first, second, tuple(_compare(facts, scene, first, second))))
    if not found:
        raise ValueError(
            f"No reading of {facts} fits the toy world: one named thing must be single, without size or action."
        )
    return found


def _compare(facts: Facts, scene: Scene, first: str | None, second: str | None) -> list[Difference]:
    shown = {"subject": scene.subject, "other": scene.other}
    found = []
    for target, thing, role in (("first", facts.first, first), ("second", facts.second, second)):
        if thing and role is None:
            found.append(Difference("Hallucination", target, "thing", thing, None))
        elif thing:
            for name, kind in KIND_OF.items():
                said, seen = getattr(thing, name), getattr(shown[role], name)
                if said is not None and said != seen:
                    found.append(Difference(kind, target, name, said, seen))
    if facts.relation and first and second:
        seen = scene.relation if first == "subject" else INVERSE[scene.relation]
        if facts.relation != seen:
            found.append(Difference("Relation", "scene", "relation", facts.relation, seen))
    if facts.background and facts.background != scene.background:
        found.append(Difference("Attribute", "scene", "background", facts.background, scene.background))
    return found


def _overwrite(thing: Thing | None, said: Thing | None) -> Thing | None:
    if thing is None or said is None:
        return thing
    return Thing(
        said.shape, said.color or thing.color, said.count, said.size or thing.size, said.action or thing.action
    )
