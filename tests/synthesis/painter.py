"""An image editor without a model, and candidates made by it or by a hosted editor."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ledgers import ledger_in
from PIL import Image

from repair_hf.synthesis.candidates import Candidates, FailedEdit


class Painter:
    """Paints the whole image in the color of the instruction; the seed decides a shade. Refuses `nothing`."""

    def __init__(self, id: str = "painter") -> None:
        self.id = id
        self.calls: list[str] = []

    def edit(self, source, instruction, seeds):
        self.calls.append(instruction)
        return [None if instruction == "nothing" else self.paint(source, instruction, seed) for seed in seeds]

    def paint(self, source, color, seed):
        image = Image.new("RGB", source.size, color)
        image.putpixel((0, 0), (seed % 256, seed // 256 % 256, 0))
        image.info["scene"] = f"a {color} surface — {seed}"
        return image


def make(
    editor_of,
    sources,
    folder: Path,
    jobs,
    *,
    count: int = 3,
    seed: int = 0,
    save_as="png",
    max_usd=None,
    max_calls=None,
):
    """Make the candidates of jobs, (image, instruction), at once.

    `editor_of` is an editor, or a function that opens one with a ledger. Returns the files of each job, or why there
    are none; and the `Candidates`.
    """

    async def work():
        with ledger_in(folder, max_usd, max_calls) as ledger:
            editor = editor_of if hasattr(editor_of, "edit") else editor_of(ledger)
            candidates = Candidates(editor, sources, ledger.folder, count=count, seed=seed, save_as=save_as)
            asked = (candidates.make(fp, words) for fp, words in jobs)
            try:
                made = await asyncio.gather(*asked, return_exceptions=True)
            finally:
                await candidates.close()
            for each in made:
                if isinstance(each, BaseException) and not isinstance(each, FailedEdit):
                    raise each
            return [str(each) if isinstance(each, FailedEdit) else each for each in made], candidates

    return asyncio.run(work())
