"""An editor that counts its images, and vectors for the losses."""

import torch
import torch.nn.functional as F

from repair_hf.toyworld.editor import WorldEditor


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
