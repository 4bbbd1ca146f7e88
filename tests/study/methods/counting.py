"""An editor that counts its images, and vectors for the losses."""

import torch
import torch.nn.functional as F

from repair_hf.toyworld.editor import WorldEditor


class CountedEditor(WorldEditor):
    """The world's editor in this process, counted. With `gives`, it makes that of each source instead."""

    own_process = False

    def __init__(self, gives=None) -> None:
        super().__init__()
        self.made, self.gives = 0, gives

    def edit(self, sources, instructions, seeds):
        self.made += sum(map(len, seeds))
        if self.gives is None:
            return super().edit(sources, instructions, seeds)
        return [[self.gives(source) for _ in row] for source, row in zip(sources, seeds, strict=True)]


def unit(n: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(n, 6, generator=torch.Generator().manual_seed(seed)), dim=1)
