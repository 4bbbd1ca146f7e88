"""An image editor without a model, and a folder of candidates made by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ledgers import ledger_in
from PIL import Image

from repair_hf.synthesis.candidates import Candidates


class Painter:
    """Paints the whole image in the colour of the instruction; the seed decides a shade. Refuses `nothing`."""

    def __init__(self, id: str = "painter") -> None:
        self.id = id
        self.calls: list[str] = []

    def edit(self, source, instruction, seeds):
        self.calls.append(instruction)
        return [None if instruction == "nothing" else self._paint(source, instruction, seed) for seed in seeds]

    def _paint(self, source, colour, seed):
        image = Image.new("RGB", source.size, colour)
        image.putpixel((0, 0), (seed % 256, seed // 256 % 256, 0))
        image.info["scene"] = f"a {colour} surface — {seed}"
        return image


def make(editor, sources, folder: Path, jobs: list[tuple[int, str]], count: int = 3, seed: int = 0, **how) -> list:
    async def work():
        with ledger_in(folder) as ledger:
            candidates = Candidates(editor, sources, ledger, count=count, seed=seed, **how)
            async with candidates.open():
                made = await asyncio.gather(*(candidates.make(fp, word) for fp, word in jobs))
            return made, candidates.made, candidates.found

    return asyncio.run(work())
