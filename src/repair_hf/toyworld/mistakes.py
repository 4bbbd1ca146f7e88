"""Wrong facts, as an LLM or an image editor gets them wrong: a missed change, or a change too many."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from repair_hf.toyworld.scenes import VALUES, Scene, Slot, facts_of, is_clear, with_fact


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
