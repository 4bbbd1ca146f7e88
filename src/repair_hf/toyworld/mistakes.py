"""Wrong facts, as an LLM or an image editor gets them wrong: a missed change, or a change too many."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from repair_hf.toyworld import scenes
from repair_hf.toyworld.scenes import INVERSE, Facts, Scene, align
from repair_hf.toyworld.variations import is_clear

Slot = tuple[str, str]  # a fact of a scene: its place (`subject`, `other`, `scene`) and its name, such as `color`

THING = ("shape", "color", "count", "size", "action")
OTHER = ("shape", "color")  # what may differ in a scene's other thing
VALUES: dict[str, tuple] = {
    "shape": scenes.SHAPES,
    "color": scenes.COLORS,
    "count": scenes.COUNTS,
    "size": scenes.SIZES,
    "action": scenes.ACTIONS,
    "relation": scenes.RELATIONS,
    "background": scenes.BACKGROUNDS,
}


def miss(before: Scene, goal: Scene, rng: random.Random) -> Scene:
    """Undo one of the changes that lead from `before` to `goal`."""
    old, new = facts_of(before), facts_of(goal)
    undone = [_with(goal, slot, old[slot]) for slot in new if slot in old and old[slot] != new[slot]]
    if (before.other is None) != (goal.other is None):
        undone.append(replace(goal, other=before.other, relation=before.relation))
    undone = [scene for scene in undone if is_clear(scene)]
    return rng.choice(undone) if undone else goal


def slip(scene: Scene, slots: Iterable[Slot], rng: random.Random) -> Scene:
    """Change one of some facts of a scene, so that its two things stay distinct; without a fact, nothing changes."""
    shown = facts_of(scene)
    for slot in rng.sample(known := [slot for slot in slots if slot in shown], len(known)):
        others = [_with(scene, slot, value) for value in VALUES[slot[1]] if value != shown[slot]]
        if clear := [other for other in others if is_clear(other)]:
            return rng.choice(clear)
    return scene


def facts_of(scene: Scene) -> dict[Slot, Any]:
    """Return what a scene shows, fact by fact."""
    found: dict[Slot, Any] = {("subject", name): getattr(scene.subject, name) for name in THING}
    if scene.other:
        found |= {("other", name): getattr(scene.other, name) for name in OTHER}
        found["scene", "relation"] = scene.relation
    return found | {("scene", "background"): scene.background}


def true_facts(facts: Facts, scene: Scene) -> list[Slot]:
    """Return the facts of a scene that a caption states, and rightly."""
    alignment, shown = align(facts, scene), facts_of(scene)
    said: dict[Slot, Any] = {("scene", "background"): facts.background}
    for thing, role in ((facts.first, alignment.first), (facts.second, alignment.second)):
        if thing and role:
            said |= {(role, name): getattr(thing, name) for name in THING}
    if facts.relation:
        said["scene", "relation"] = facts.relation if alignment.first == "subject" else INVERSE[facts.relation]
    return [slot for slot, value in said.items() if value is not None and shown.get(slot) == value]


def unchanged(before: Scene, after: Scene) -> list[Slot]:
    """Return the facts in which two scenes agree."""
    old = facts_of(before)
    return [slot for slot, value in facts_of(after).items() if old.get(slot) == value]


def _with(scene: Scene, slot: Slot, value: Any) -> Scene:
    place, name = slot
    change: dict[str, Any] = {name: value}
    if place == "scene":
        return replace(scene, **change)
    changes: dict[str, Any] = {place: replace(getattr(scene, place), **change)}
    return replace(scene, **changes)
