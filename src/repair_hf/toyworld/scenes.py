"""What a toy picture shows, what a toy caption says, and how the two differ.

A `Scene` holds everything that a picture shows: a group of equal things (the subject), mostly one other thing, the
relation of the subject to it, and a background. `Facts` holds what a caption says, which is some of it. Each
`Difference` has an error type of the paper: Object, Action, Attribute, Count, Relation, Hallucination.

A caption names one or two things without saying which is the subject. So the comparison tries every way to match named
and shown things, and takes the one with the fewest differences.

The world is dense on purpose (about 330,000 scenes). With some thousand pictures, a trained retriever's top false
positive differs from the query in one to three facts: a near miss.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from repair_hf.runtime.texts import parse_json

SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "cross", "ring")
COLORS = ("red", "blue", "green", "yellow", "purple", "orange")
SIZES = ("large", "small")
COUNTS = (1, 2, 3)
ACTIONS = ("sleeping", "jumping", "running")
RELATIONS = ("left", "right", "above", "below")
BACKGROUNDS = ("day", "night")
INVERSE: dict[Any, str] = {"left": "right", "right": "left", "above": "below", "below": "above"}
ERROR_TYPES = ("Object", "Action", "Attribute", "Count", "Relation", "Hallucination")

COMPANY = 0.85  # share of scenes with a second thing; in the others, captions can hallucinate one

Role = Literal["subject", "other"]
Slot = tuple[str, str]  # a fact of a scene: its place (`subject`, `other`, `scene`) and its name, such as `color`


@dataclass(frozen=True)
class Thing:
    """A group of equal shapes. `None` means unspecified; a scene's other thing has no size and no action."""

    shape: str
    color: str | None = None
    count: int = 1
    size: str | None = None
    action: str | None = None


@dataclass(frozen=True)
class Scene:
    """Everything that a picture shows. `layout` seeds the positions; it and `look`, a name, are not compared."""

    subject: Thing
    other: Thing | None
    relation: str | None  # of the subject to the other thing
    background: str
    layout: int = field(default=0, compare=False)
    look: str = field(default="plain", compare=False)

    def to_json(self) -> str:
        """Return one line of JSON, which a picture holds as metadata."""
        values = asdict(self)
        if self.look == "plain":
            del values["look"]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Scene:
        values = parse_json(text)
        other = Thing(**values["other"]) if values["other"] else None
        return cls(**values | {"subject": Thing(**values["subject"]), "other": other})


@dataclass(frozen=True)
class Facts:
    """What a caption says: one or two things, and optionally their relation and the background."""

    first: Thing
    second: Thing | None = None
    relation: str | None = None
    background: str | None = None


@dataclass(frozen=True)
class Difference:
    """One fact in which a caption and a picture disagree."""

    kind: str  # one of `ERROR_TYPES`. `Hallucination`: the caption names a thing that is not in the picture
    target: str  # mention of the caption that differs: `first`, `second`, or `scene`
    name: str  # field of `Thing` or `Facts` that differs
    said: Any  # what the caption says
    shown: Any  # what the picture shows


@dataclass(frozen=True)
class Alignment:
    """The shown thing that each named thing is matched with (`None`: nothing shown), and the remaining differences."""

    first: Role | None
    second: Role | None
    differences: tuple[Difference, ...]


KIND_OF = {"shape": "Object", "count": "Count", "action": "Action", "relation": "Relation"}  # or else Attribute
VALUES: dict[str, tuple] = {
    "shape": SHAPES,
    "color": COLORS,
    "count": COUNTS,
    "size": SIZES,
    "action": ACTIONS,
    "relation": RELATIONS,
    "background": BACKGROUNDS,
}
FACTS: dict[Role, tuple[str, ...]] = {
    "subject": ("shape", "color", "count", "size", "action"),
    "other": ("shape", "color"),  # what may differ in a scene's other thing
}


def sample(rng: random.Random, *, company: float = COMPANY, look: str = "plain") -> Scene:
    """Draw a scene; a share of `company` has two things.

    The two differ in shape or color, so that a phrase always names one of them.
    """
    pick = rng.choice
    subject = Thing(pick(SHAPES), pick(COLORS), pick(COUNTS), pick(SIZES), pick(ACTIONS))
    other = None
    if rng.random() < company:
        other = Thing(pick(SHAPES), pick(COLORS))
        while (other.shape, other.color) == (subject.shape, subject.color):
            other = Thing(pick(SHAPES), pick(COLORS))
    relation = pick(RELATIONS) if other else None
    return Scene(subject, other, relation, pick(BACKGROUNDS), layout=rng.randrange(2**31), look=look)


def is_clear(scene: Scene) -> bool:
    """Return whether the two things of a scene differ in shape or color, so that a phrase names one of them."""
    other = scene.other
    return other is None or (other.shape, other.color) != (scene.subject.shape, scene.subject.color)


def facts_of(scene: Scene) -> dict[Slot, Any]:
    """Return what a scene shows, fact by fact."""
    found: dict[Slot, Any] = {("subject", name): getattr(scene.subject, name) for name in FACTS["subject"]}
    if scene.other:
        found |= {("other", name): getattr(scene.other, name) for name in FACTS["other"]}
        found["scene", "relation"] = scene.relation
    return found | {("scene", "background"): scene.background}


def with_fact(scene: Scene, slot: Slot, value: Any) -> Scene:
    """Return the scene with another value of one fact."""
    place, name = slot
    changes: dict[str, Any] = {name: value}
    if place == "scene":
        return replace(scene, **changes)
    things: dict[str, Any] = {place: replace(getattr(scene, place), **changes)}
    return replace(scene, **things)


def matchings(facts: Facts) -> list[tuple[Role | None, Role | None]]:
    """Return the roles that the named things may have. Only a single thing without size or action can be the other."""
    roles: list[tuple[Role | None, Role | None]] = [("subject", None), ("other", None)]
    if facts.second:
        roles = [("subject", "other"), ("other", "subject")]
    found = []
    for first, second in roles:
        other = facts.first if first == "other" else facts.second
        if not (other and (other.size or other.action or other.count != 1)):
            found.append((first, second))
    if not found:
        raise ValueError(
            f"{facts} cannot be true in the toy world: one named thing must be single, without size and action."
        )
    return found


def stated(facts: Facts, first: Role | None, second: Role | None) -> dict[Slot, Any]:
    """Return what a caption says of a scene whose things it names in these roles, fact by fact."""
    said: dict[Slot, Any] = {}
    for thing, role in ((facts.first, first), (facts.second, second)):
        if thing and role:
            said |= {(role, name): getattr(thing, name) for name in FACTS[role]}
    if facts.relation and first and second:
        said["scene", "relation"] = facts.relation if first == "subject" else INVERSE[facts.relation]
    said["scene", "background"] = facts.background
    return {slot: value for slot, value in said.items() if value is not None}


def align(facts: Facts, scene: Scene) -> Alignment:
    """Match the caption's things with the picture's so that the fewest differences remain; of equals, the first."""
    found = []
    for first, second in matchings(facts):
        if scene.other is None and facts.second is None and first == "other":
            continue
        if scene.other is None:
            first, second = (None if role == "other" else role for role in (first, second))
        found.append(Alignment(first, second, tuple(_compare(facts, scene, first, second))))
    return min(found, key=lambda alignment: len(alignment.differences))


def true_facts(facts: Facts, scene: Scene) -> list[Slot]:
    """Return the facts of a scene that a caption states, and rightly."""
    alignment, shown = align(facts, scene), facts_of(scene)
    said = stated(facts, alignment.first, alignment.second)
    return [slot for slot, value in said.items() if shown.get(slot) == value]


def differences(facts: Facts, scene: Scene) -> tuple[Difference, ...]:
    """Return what is wrong in the caption; empty if it is true of the picture."""
    return align(facts, scene).differences


def holds(facts: Facts, scene: Scene) -> bool:
    """Return whether the caption is true of the picture."""
    return not differences(facts, scene)


def satisfy(facts: Facts, scene: Scene) -> Scene:
    """Change a scene so that the caption becomes true; unmentioned facts stay."""
    alignment = align(facts, scene)
    said = {alignment.first: facts.first, alignment.second: facts.second}
    subject = _overwrite(scene.subject, said.get("subject"))
    hallucinated: Thing | None = next((gap.said for gap in alignment.differences if gap.kind == "Hallucination"), None)
    other = hallucinated or (scene.other and _overwrite(scene.other, said.get("other")))
    if other and other.color is None:
        other = replace(other, color=next(color for color in COLORS if color != subject.color))
    relation = scene.relation or ("left" if other else None)
    if facts.relation:
        relation = facts.relation if alignment.first == "subject" else INVERSE[facts.relation]
    return replace(
        scene, subject=subject, other=other, relation=relation, background=facts.background or scene.background
    )


def _compare(facts: Facts, scene: Scene, first: Role | None, second: Role | None) -> list[Difference]:
    named, shown = ((facts.first, first, "first"), (facts.second, second, "second")), facts_of(scene)
    found = [
        Difference("Hallucination", target, "thing", thing, None)
        for thing, role, target in named
        if thing and not role
    ]
    targets: dict[str | None, str] = {role: target for _, role, target in named}
    for (place, name), said in stated(facts, first, second).items():
        seen = shown[place, name]
        if said != seen and name == "relation":
            said, seen = (facts.relation, seen if first == "subject" else INVERSE[seen])
            found.append(Difference("Relation", "scene", name, said, seen))
        elif said != seen:
            found.append(Difference(KIND_OF.get(name, "Attribute"), targets.get(place, "scene"), name, said, seen))
    return found


def _overwrite(thing: Thing, said: Thing | None) -> Thing:
    stated: dict[str, Any] = {name: value for name, value in vars(said).items() if value is not None} if said else {}
    return replace(thing, **stated)
