"""The scenes of pictures, and which captions hold in them, whatever is annotated."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from repair_hf.pairs.cells import undecoded
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import open_cell
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.renderer import read_scene
from repair_hf.toyworld.scenes import Facts, Scene, facts_of, matchings, stated


class SceneTable:
    """Scenes as columns of facts, to compare a caption with many scenes at once."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        rows = [facts_of(scene) for scene in scenes]
        slots = {slot for row in rows for slot in row}
        self._shown = {slot: np.array([str(row.get(slot)) for row in rows]) for slot in slots}
        self._none = np.zeros(len(rows), bool)

    def matches(self, facts: Facts) -> np.ndarray:
        """Return (n,) bool: whether `facts` hold in each scene."""
        found = self._none.copy()
        for first, second in matchings(facts):
            said = stated(facts, first, second).items()
            columns = [self._shown.get(slot, self._none) == str(value) for slot, value in said]
            found |= np.logical_and.reduce(columns)
        return found


def scenes_of(pairs: Pairs) -> Iterator[Scene]:
    """Read the scene of each picture. If one has no scene, raise UserError."""
    for image_id, row in zip(pairs.images["image_id"][:], undecoded(pairs.images, "image"), strict=True):
        with open_cell(row["image"]) as picture:
            if "scene" not in picture.info:
                raise UserError(
                    f"{image_id} carries no scene, unlike pictures of the toy world; draw some with `repair-hf world "
                    "build`."
                )
            yield read_scene(picture)


def share_shown(drawn: Sequence[Scene], split: Collection[Scene]) -> float:
    """Return the share of drawn scenes that a split shows."""
    return sum(scene in split for scene in drawn) / len(drawn)
