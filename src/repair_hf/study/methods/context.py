"""What a method's maker works with: pairs, retriever, LLM and image editor.

A maker writes captions, edits images and generates images through `MakerContext`, which counts requests and reuses
paid answers. The functions below it choose one of several candidates by the retriever.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import datasets
import numpy as np
from datasets import Dataset, Features
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tqdm.auto import tqdm

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.words import MODEL, load_parser
from repair_hf.llm.client import AnswerError, ChatModel, Deferred
from repair_hf.llm.cost import known_dollars
from repair_hf.llm.prompts import Drawing
from repair_hf.pairs.dataset import Pairs
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.captions import MAX_TOKENS, TEMPERATURE, Written, usable
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.selection import pixels_of, select_captions
from repair_hf.synthesis.sources import SCENE, SourceImages, UnreadableImage, open_picture
from repair_hf.synthesis.workers import work_through

T = TypeVar("T")

CANDIDATES = 3  # of each edited caption or image


class NoSample(Exception):
    """A caption yields no sample; `drop_reason` is one of `samples.DROPPED`."""

    def __init__(self, drop_reason: str, detail: str) -> None:
        super().__init__(detail)
        self.drop_reason = drop_reason


@dataclass
class RequestCounts:
    """Requests of a maker, including repeated ones and those answered from the ledger."""

    llm: int = 0
    images: int = 0  # candidate images


class MakerContext:
    """What a maker works with. Use it inside `open`.

    Args:
        pairs: The training pairs.
        encoder: The retriever, which chooses among candidates.
        chat: The LLM.
        editor: The image editor; None if no image is made.
        seed: Seed of all draws.
        spacy_model: Parser of captions: an installed model, a folder, or `world` for the toy world's own.
    """

    def __init__(
        self,
        pairs: Pairs,
        encoder: DualEncoder,
        chat: ChatModel,
        editor: ImageEditor | HostedEditor | None,
        *,
        seed: int = 0,
        spacy_model: str = MODEL,
    ) -> None:
        self.pairs, self.encoder, self.chat, self.editor = pairs, encoder, chat, editor
        self.seed, self.spacy_model = seed, spacy_model
        self.asked, self.tried = RequestCounts(), len(pairs.captions)
        self._dropped: dict[int, dict[str, str]] = {}  # caption -> row of `samples.DROPPED`
        self.sources = SourceImages(pairs.images)
        self._images: Candidates | None = None
        self._canvas: Candidates | None = None
        self.captions: list[str] = pairs.captions["caption"][:]
        names = pairs.images["image_id"][:]
        self.image_ids: list[str] = [names[row] for row in pairs.caption_image]  # of each caption

    @asynccontextmanager
    async def open(self, *, edits: int = 0, draws: bool = False) -> AsyncIterator[None]:
        """Start the image editor. `edits` is the number of candidates of `edit`; `draws` allows `draw`."""
        if edits:
            self._images = self._candidates(self.sources, edits)
        if draws:
            self._canvas = self._candidates(SourceImages(_canvas_like(self.pairs.images)), 1)
        async with AsyncExitStack() as stack:
            for candidates in filter(None, (self._images, self._canvas)):
                await stack.enter_async_context(candidates.open())
            yield

    @property
    def image_dollars(self) -> float | None:
        """What the images have cost, in this run or an earlier one; None if a price is unknown."""
        uses = [candidates.usage for candidates in (self._images, self._canvas) if candidates is not None]
        known = known_dollars(uses)
        return None if known is None else known + sum(use.dollars_saved for use in uses)

    async def each(self, rows: Iterable[int], work: Callable[[int], Awaitable[T]], title: str) -> list[T]:
        """Process captions concurrently, results in order. Drop those with useless answers or unreadable images.

        Raises:
            BatchesOpen: If answers will come with a batch; what does not need them is done.
        """
        rows = list(rows)
        found: dict[int, T] = {}
        waiting: list[int] = []

        async def try_one(row: int) -> None:
            try:
                found[row] = await work(row)
            except (AnswerError, NoSample, UnreadableImage) as error:
                self.drop(row, error.drop_reason, str(error))
            except Deferred:
                waiting.append(row)
            bar.update()

        images = [one for one in (self._images, self._canvas) if one is not None]
        with tqdm(total=len(rows), desc=title, unit=" samples", disable=None) as bar:
            await work_through(self.chat, [rows], try_one, *images)
        if waiting and self.chat.batches is not None:
            await self.chat.batches.submit()
            raise self.chat.batches.stopped()
        return [found[row] for row in rows if row in found]

    def drop(self, row: int, reason: str, detail: str) -> None:
        self._dropped[row] = self.of_caption(row) | {"reason": reason, "detail": detail}

    @property
    def dropped(self) -> list[dict[str, str]]:
        """Rows of `samples.DROPPED`: the captions without a sample, in their order."""
        return [self._dropped[row] for row in sorted(self._dropped)]

    def parser(self) -> Any:
        """Load the spaCy pipeline, which must know noun chunks."""
        if self.spacy_model == "world":
            from repair_hf.toyworld.parsing import build_parser

            return build_parser()
        return load_parser(self.spacy_model, noun_chunks=True)

    def of_caption(self, row: int) -> dict[str, str]:
        """Return the id columns of a sample of a caption."""
        return {"caption_id": self.pairs.captions[row]["caption_id"], "image_id": self.image_ids[row]}

    async def write(self, prompt: str, *, samples: int = 1, **blanks: str) -> list[str]:
        """Return the usable ones of `samples` captions by the LLM. If none is usable, raise AnswerError."""
        self.asked.llm += samples
        answers = await self.chat.ask_many(
            self.chat.prompts.chat(prompt, **blanks),
            samples=samples,
            stage=prompt,
            direction="i2t",
            temperature=TEMPERATURE,
            max_tokens=MAX_TOKENS,
            seed=self.seed,
            schema=Written,
        )
        return [text for text in usable(answers) if text is not None]

    async def edit(self, image: int, instruction: str) -> list[Path]:
        """Edit an image of the pairs and return the files of changed candidates. If there is none, raise NoSample."""
        assert self._images is not None, "open(edits=...) comes first"
        self.asked.images += self._images.count
        files = [path for path in await self._images.make(image, instruction) if path is not None]
        if not files:
            raise NoSample("editor_failed", "the editor gave no image")
        before = pixels_of(self.sources.picture(image))
        changed = [path for path in files if pixels_of(open_picture(path.read_bytes())) != before]
        if not changed:
            raise NoSample("no_op", "no candidate changed anything")
        return changed

    async def draw(self, caption: str) -> Path:
        """Let the editor draw a caption, without another image. If it gives none, raise NoSample."""
        assert self._canvas is not None, "open(draws=True) comes first"
        self.asked.images += 1
        path = (await self._canvas.make(0, Drawing(caption)))[0]
        if path is None:
            raise NoSample("editor_failed", "the editor gave no image")
        return path

    def _candidates(self, sources: SourceImages, count: int) -> Candidates:
        assert self.editor is not None, "images need an editor"
        return Candidates(self.editor, sources, self.chat.ledger, count=count, seed=self.seed)


def _canvas_like(images: Dataset) -> Dataset:
    """One white image of the size of the pairs' first; in the toy world with its scene, whose look is then drawn."""
    first, notes, file = images[0]["image"], PngInfo(), io.BytesIO()
    if SCENE in first.info:
        notes.add_text(SCENE, first.info[SCENE])
    Image.new("RGB", first.size, "white").save(file, "PNG", pnginfo=notes)
    row: dict[str, Any] = {"image": [{"bytes": file.getvalue(), "path": None}]}
    return Dataset.from_dict(row, features=Features({"image": datasets.Image()}))


def nearest_captions(context: MakerContext, candidates: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, str]]:
    """Choose for each caption, by row, the nearest candidate that differs from it. Drop captions without one."""
    originals, texts = [context.captions[row] for row, _ in candidates], [texts for _, texts in candidates]
    chosen = []
    for (row, some), choice in zip(candidates, select_captions(context.encoder, originals, texts), strict=True):
        if choice.candidate is None:
            context.drop(row, "no_op", "no candidate changed anything")
        else:
            chosen.append((row, some[choice.candidate]))
    return chosen


def image_scores(context: MakerContext, files: Sequence[Sequence[Path]], texts: Sequence[str]) -> list[np.ndarray]:
    """Return the cosine of each candidate image with its text, one array for each row of files."""
    flat = [path for row in files for path in row]
    if not flat:
        return [np.empty(0, np.float32) for _ in files]
    images = embed_files(context, flat)  # (n, D)
    captions = context.encoder.embed_texts(list(texts))  # (rows, D)
    owner = np.repeat(np.arange(len(files)), [len(row) for row in files])
    scores = (images * captions[owner]).sum(1)
    return np.split(scores, np.cumsum([len(row) for row in files])[:-1])


def embed_files(context: MakerContext, files: Sequence[Path], batch: int = 256) -> np.ndarray:
    """Embed image files, `batch` of them open at a time: (n, D)."""
    batches = [files[start : start + batch] for start in range(0, len(files), batch)]
    return np.concatenate(
        [context.encoder.embed_images([open_picture(path.read_bytes()) for path in some]) for some in batches]
    )


def as_cell(path: Path) -> dict[str, Any]:
    """Return the value of a `datasets.Image` column that refers to an image file in place."""
    return {"bytes": None, "path": str(path.absolute())}
