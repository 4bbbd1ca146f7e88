"""Of which pictures is a caption true? `scenes.holds` for one caption and many scenes at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from repair_hf.toyworld.scenes import INVERSE, KIND_OF, Facts, Scene, Thing


class SceneTable:
    """Scenes as columns, one row each."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        self._things: dict[str, dict[str, np.ndarray]] = {
            role: {
                name: _column(getattr(scene, role) and getattr(getattr(scene, role), name) for scene in scenes)
                for name in KIND_OF
            }
            for role in ("subject", "other")
        }
        self._relation = _column(scene.relation for scene in scenes)
        self._background = _column(scene.background for scene in scenes)

    def matches(self, facts: Facts) -> np.ndarray:
        """Return (n,) bool: whether `facts` hold in each scene."""
        found = np.zeros(len(self._background), bool)
        for first, second in (("subject", "other"), ("other", "subject")):
            true = self._fits(facts.first, first)
            if facts.second:
                true = true & self._fits(facts.second, second)
            if facts.relation:
                said = facts.relation if first == "subject" else INVERSE[facts.relation]
                true = true & (self._relation == said)
            found |= true
        return found & (self._background == facts.background) if facts.background else found

    def _fits(self, thing: Thing, role: str) -> np.ndarray:
        if role == "other" and (thing.size or thing.action or thing.count != 1):
            return np.zeros(len(self._background), bool)
        shown = self._things[role]
        said = {name: value for name, value in vars(thing).items() if value is not None}
        return np.logical_and.reduce([shown[name] == str(value) for name, value in said.items()])


def _column(values: Iterable[object]) -> np.ndarray:
    return np.array([str(value) for value in values])  # "None" for a missing value, which no fact has
