"""The workshop: where methods make their synthetic samples, by the same LLM client, editor, journal and budget as RePair.

In:  pairs, a chat model, an image editor, a folder.
Out: rewritten captions, instructions, edited and new images; what was asked for is counted, and nothing is paid twice.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import datasets
from datasets import Dataset, Features
from PIL import Image
from tqdm.auto import tqdm

from repair_hf.encoder import DualEncoder
from repair_hf.llm.client import AnswerError, ChatModel
from repair_hf.llm.cost import Usage
from repair_hf.options import UserError
from repair_hf.pairs import Pairs
from repair_hf.parsing import MODEL, load_parser
from repair_hf.synthesis import prompts
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.captions import MAX_TOKENS, TEMPERATURE, clean
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.prompts import draw_instruction
from repair_hf.synthesis.sources import SourceImages, UnreadableImage
from repair_hf.synthesis.stream import GRACE

WORKERS = 64

Item, Made = TypeVar("Item"), TypeVar("Made")


@dataclass
class Asked:
    """What a maker has asked for, equal requests counted each time: what it would take if nothing were there yet.

    Args:
        llm: Requests for a text.
        images: Candidate images.
    """

    llm: int = 0
    images: int = 0


class Workshop:
    """What a maker works with. Use it inside `open`.

    Args:
        pairs: The training pairs.
        encoder: The retriever; chooses among candidates.
        chat: The LLM.
        editor: The image editor.
        folder: Gets the candidate images.
        seed: Fixes all draws.
        spacy_model: What parses captions: an installed model, a folder, or `world` for the toy world's own.

    Attributes:
        asked: What was asked for.
        tried: For how many items.
    """

    def __init__(
        self,
        pairs: Pairs,
        encoder: DualEncoder,
        chat: ChatModel,
        editor: ImageEditor | HostedEditor,
        folder: Path,
        *,
        seed: int = 0,
        spacy_model: str = MODEL,
    ) -> None:
        self.spacy_model = spacy_model
        self.pairs, self.encoder, self.chat, self.editor, self.folder, self.seed = (
            pairs,
            encoder,
            chat,
            editor,
            folder,
            seed,
        )
        self.asked, self.tried = Asked(), 0
        self.sources = SourceImages(pairs.images)
        self.captions: list[str] = pairs.captions["caption"][:]
        names = pairs.images["image_id"][:]
        self.image_ids: list[str] = [names[row] for row in pairs.caption_image]  # of each caption

    @asynccontextmanager
    async def open(self, *, edits: int = 0, draws: bool = False) -> AsyncIterator[None]:
        """Have the image editor ready.

        Args:
            edits: M, how many candidates `edit` makes; 0 where it is not called.
            draws: Whether `draw` is called.
        """
        if edits:
            self._images = self._candidates(self.sources, edits)
        if draws:
            self._canvas = self._candidates(SourceImages(_canvas_like(self.pairs.images)), 1)
        async with self._images.open() if edits else _nothing(), self._canvas.open() if draws else _nothing():
            yield

    async def each(
        self, items: Sequence[Item], work: Callable[[Item], Awaitable[Made | None]], title: str
    ) -> list[Made]:
        """Do the work on all items, many at a time; what came of each, in their order, without those of which nothing came.

        Nothing comes of an item whose answers are of no use, or whose image cannot be read.
        """
        found: list[Made | None] = [None] * len(items)
        self.tried = max(self.tried, len(items))
        queue = iter(range(len(items)))

        async def serve(bar: tqdm) -> None:
            for place in queue:
                with suppress(AnswerError, UnreadableImage):
                    found[place] = await work(items[place])
                bar.update()

        with tqdm(total=len(items), desc=title, unit=" samples", disable=None) as bar:
            try:
                await asyncio.gather(*(serve(bar) for _ in range(WORKERS)))
            finally:
                with suppress(TimeoutError):  # answers that are on their way are paid for already
                    await asyncio.wait_for(self.chat.drain(), GRACE)
        return [made for made in found if made is not None]

    def parser(self) -> Any:
        """A spaCy pipeline that knows noun chunks."""
        if self.spacy_model == "world":
            from repair_hf.toyworld.parsing import build_parser

            return build_parser()
        return load_parser(self.spacy_model, noun_chunks=True)

    def of_caption(self, row: int) -> dict[str, str]:
        """The columns of a sample that say to whom it belongs."""
        return {"caption_id": self.pairs.captions[row]["caption_id"], "image_id": self.image_ids[row]}

    async def write(self, prompt: str, *, samples: int = 1, **blanks: str) -> list[str]:
        """Ask for texts: those of M answers that are of use."""
        self.asked.llm += samples
        answers = await self.chat.ask_many(
            prompts.chat(prompt, **blanks),
            samples=samples,
            together=False,
            stage=prompt,
            direction="i2t",
            temperature=TEMPERATURE,
            max_tokens=MAX_TOKENS,
            seed=self.seed,
        )
        texts = [clean(answer) for answer in answers if isinstance(answer, str)]
        return [text for text in texts if text]

    async def edit(self, image: int, instruction: str) -> list[Path]:
        """Edit an image of the pairs: the files of its candidates."""
        self.asked.images += self._images.count
        return [path for path in await self._images.make(image, instruction) if path is not None]

    async def draw(self, caption: str) -> Path | None:
        """Draw an image of a caption: its file. The editor is given an empty canvas, so that one interface serves both."""
        self.asked.images += 1
        return (await self._canvas.make(0, draw_instruction(caption)))[0]

    def _candidates(self, sources: SourceImages, count: int) -> Candidates:
        return Candidates(
            self.editor, sources, self.folder / "candidates", count=count, seed=self.seed, budget=self.chat.budget
        )


def usage_of(chat: ChatModel) -> Usage:
    """What a chat model has asked and paid, all stages together."""
    uses = [list(vars(use).values()) for use in (Usage(), *chat.usage.values())]
    return Usage(*map(sum, zip(*uses, strict=True)))


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


def _canvas_like(images: Dataset) -> Dataset:
    """One white image of the size of the pairs' first."""
    if not len(images):
        raise UserError("There are no images to draw others like.")
    file = io.BytesIO()
    Image.new("RGB", images[0]["image"].size, "white").save(file, "PNG")
    row: dict[str, Any] = {"image": [{"bytes": file.getvalue(), "path": None}]}
    return Dataset.from_dict(row, features=Features({"image": datasets.Image()}))
