"""How many of the first answers are true in the toy world, whatever is annotated.

R@K counts a true caption that was written for another picture as wrong, as it does with photographs: `a tiny yellow
star` is true of every picture that shows one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from repair_hf.pairs.cells import undecoded
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import open_cell
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.captions import parse
from repair_hf.toyworld.renderer import read_scene
from repair_hf.toyworld.scenes import Scene, holds

KS = (1, 5)


class Truth:
    """Separates true from wrong answers. Pairs that are not of the toy world raise a UserError."""

    def __init__(self, pairs: Pairs) -> None:
        self._scenes = list(scenes_of(pairs))
        self._facts = [parse(caption) for caption in pairs.captions["caption"][:]]

    def shares(self, images: np.ndarray, texts: np.ndarray) -> dict[str, float]:
        """Return the share of true answers among the first K: `i2t_true@1`, `i2t_true@5`, `t2i_true@1`, `t2i_true@5`.

        `images` (N, D) and `texts` (M, D) are the vectors of pictures and captions.
        """
        scores = torch.from_numpy(images) @ torch.from_numpy(texts).mT  # (N, M)
        found: dict[str, float] = {}
        for side, table in (("i2t", scores), ("t2i", scores.mT)):
            first = table.topk(min(max(KS), table.shape[1])).indices.tolist()  # (queries, 5)
            is_true = np.array(
                [[self._holds(side, query, answer) for answer in row] for query, row in enumerate(first)]
            )
            found |= {f"{side}_true@{k}": float(is_true[:, :k].mean()) for k in KS}
        return found

    def _holds(self, side: str, query: int, answer: int) -> bool:
        image, caption = (query, answer) if side == "i2t" else (answer, query)
        return holds(self._facts[caption], self._scenes[image])


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
