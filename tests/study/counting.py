"""An editor that counts its images, and steps of training for the losses."""

import numpy as np
import torch
import torch.nn.functional as F

from repair_hf.pairs.truth import Truth
from repair_hf.toyworld.editor import WorldEditor
from repair_hf.training.step import Step, step_of


class CountedEditor(WorldEditor):
    """The world's editor in this process, counted. With `gives`, it makes that of each source instead."""

    def __init__(self, gives=None) -> None:
        super().__init__()
        self.made, self.gives = 0, gives

    def edit(self, source, instruction, seeds):
        self.made += len(seeds)
        return super().edit(source, instruction, seeds) if self.gives is None else [self.gives(source)] * len(seeds)


def unit(n: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(n, 6, generator=torch.Generator().manual_seed(seed)), dim=1)


def step(images: list[list[int]], texts: list[list[int]], *more: tuple[int, int], scale: float = 9.0) -> Step:
    """Make a step of anchors, a row each, with the numbers of their pairs' images and captions, -1 where absent.

    The pairs are known to match, and `more` images and captions.
    """
    rows = torch.tensor(images), torch.tensor(texts)
    pairs = zip(rows[0].flatten().tolist(), rows[1].flatten().tolist(), strict=True)
    known = np.array([pair for pair in [*pairs, *more] if min(pair) >= 0]).T
    sizes = [int(some.max()) + 1 for some in rows]
    truth = Truth(np.arange(sizes[0]), np.arange(sizes[1]), *known)
    batch = {"images": rows[0], "captions": rows[1], "image_rows": rows[0], "text_rows": rows[1]}
    vectors = unit(sizes[0], 0).requires_grad_(), unit(sizes[1], 1).requires_grad_()
    return step_of(*vectors, batch, truth, torch.tensor(scale))
