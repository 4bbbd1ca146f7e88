"""Models that count their requests, and vectors for the losses."""

from __future__ import annotations

import asyncio

import torch
import torch.nn.functional as F

from repair_hf.llm.provider import ProviderError, Reply
from repair_hf.toyworld import oracle
from repair_hf.toyworld.editor import WorldEditor


class CountedOracle:
    """The oracle in this process, counted. It fails after some answers, or says `instead` if that returns a text."""

    def __init__(self, *, fail_after: int | None = None, instead=lambda request: None) -> None:
        self.calls, self.fail_after, self.instead, self._answer = 0, fail_after, instead, oracle.provider()

    async def __call__(self, request) -> Reply:
        await asyncio.sleep(0)
        if self.calls == self.fail_after:
            raise ProviderError("out of credit")
        self.calls += 1
        said = self.instead(request)
        return await self._answer(request) if said is None else Reply(said, "stop", 1, 1, 0.0, oracle.MODEL)


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
