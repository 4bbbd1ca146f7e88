"""What makes the samples of a baseline, and what it works with: pairs, retriever, LLM and image editor.

A maker writes captions, edits images and generates images through `MakerContext`, which counts requests and reuses
paid answers. The functions below it choose one of several candidates by the retriever.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
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
from repair_hf.synthesis.options import Format
from repair_hf.synthesis.selection import pixels_of, select_captions
from repair_hf.synthesis.sources import SCENE, SourceImages, UnreadableImage, open_picture
from repair_hf.synthesis.workers import work_through

T = TypeVar("T")
Sample = tuple[int, dict[str, Any]]  # the row of its caption, and its text or its image, or both

TOY = "toy world"
SEED = 0  # of all draws
CANDIDATES = 3  # of each edited caption or image
BLOCK = 256  # candidate images that are open, or compared, at once


class NoSample(Exception):
    """A caption yields no sample; `drop_reason` is one of `samples.DROPPED`."""

    def __init__(self, drop_reason: str, detail: str) -> None:
        super().__init__(detail)
        self.drop_reason = drop_reason


@dataclass(frozen=True)
class Maker:
    """How one kind of samples is made, once for all methods and seeds that use it."""

    name: str  # name of the folder
    make: Callable[[MakerContext], Awaitable[Iterable[Sample]]]
    asks: Mapping[str, int] = field(default_factory=dict)  # prompt -> number of answers requested for each caption
    edits: int = 0  # candidates of each edited image; 0 if no image is edited
    draws: bool = False  # whether images are generated from text
    parses: bool = False  # whether captions are parsed
    is_toy: bool = False  # whether it knows the toy world alone

    @property
    def means(self) -> frozenset[str]:
        """What it uses: the options `llm`, `editor`, `spacy_model` of the study, or the toy world."""
        used = {"llm": self.asks, "editor": self.edits or self.draws, "spacy_model": self.parses, TOY: self.is_toy}
        return frozenset(name for name, is_used in used.items() if is_used)


class MakerContext:
    """What a maker works with; `run` runs it.

    Args:
        maker: Says whether images are edited and drawn.
        pairs: The training pairs.
        encoder: The retriever, which chooses among candidates.
        chat: The LLM.
        editor: The image editor; None if no image is made.
        spacy_model: Parser of captions: an installed model, a folder, or `world` for the toy world's own.
        save_as: Format of new candidate images.

    Attributes:
        files: Candidate images.
        llm_calls, images: Requests and candidate images, also repeated ones and those answered from the ledger.
    """

    def __init__(
        self,
        maker: Maker,
        pairs: Pairs,
        encoder: DualEncoder,
        chat: ChatModel,
        editor: ImageEditor | HostedEditor | None,
        *,
        spacy_model: str = MODEL,
        save_as: Format = "png",
    ) -> None:
        self.maker, self.pairs, self.encoder = maker, pairs, encoder
        self.chat, self.spacy_model = chat, spacy_model
        self.llm_calls = self.images = 0
        self.files: set[Path] = set()
        self._dropped: dict[int, dict[str, str]] = {}  # caption -> row of `samples.DROPPED`
        self.sources = SourceImages(pairs.images)
        self.captions: list[str] = pairs.captions["caption"][:]
        names = pairs.images["image_id"][:]
        self._image_ids: list[str] = [names[row] for row in pairs.caption_image]  # of each caption
        self._candidates: dict[str, Candidates] = {}
        how: dict[str, Any] = {"seed": SEED, "save_as": save_as}
        if maker.edits and editor is not None:
            self._candidates["edit"] = Candidates(editor, self.sources, chat.ledger, count=maker.edits, **how)
        if maker.draws and editor is not None:
            canvas = SourceImages(_canvas_like(pairs.images))
            self._candidates["draw"] = Candidates(editor, canvas, chat.ledger, count=1, **how)

    async def run(self) -> list[dict[str, Any]]:
        """Make rows of `samples.SAMPLES`.

        Raises:
            RunStopped: If a ceiling is reached or a provider is down; answers so far are kept.
            BatchesOpen: If answers will come with a batch; what does not need them is done.
        """
        await self.chat.collect()
        async with AsyncExitStack() as stack:
            for candidates in self._candidates.values():
                await stack.enter_async_context(candidates.open())
            return [self.of_caption(row) | sample for row, sample in await self.maker.make(self)]

    @property
    def dollars(self) -> float | None:
        """What texts and images have cost, in this run or an earlier one; None if a price is unknown."""
        uses = [*self.chat.usage.values(), *(candidates.usage for candidates in self._candidates.values())]
        known = known_dollars(uses)
        return None if known is None else known + sum(use.dollars_saved for use in uses)

    async def each(
        self, work: Callable[[int], Awaitable[T]], title: str, rows: Iterable[int] | None = None
    ) -> dict[int, T]:
        """Process captions concurrently, by default all; return the results by row, in order.

        Captions with useless answers or unreadable images are dropped.

        Raises:
            BatchesOpen: If answers will come with a batch; what does not need them is done.
        """
        rows = list(range(len(self.captions)) if rows is None else rows)
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

        with tqdm(total=len(rows), desc=title, unit=" samples", disable=None) as bar:
            await work_through(self.chat, [rows], try_one, *self._candidates.values())
        if waiting and self.chat.batches is not None:
            await self.chat.batches.submit()
            raise self.chat.batches.stopped()
        return {row: found[row] for row in rows if row in found}

    def drop(self, row: int, reason: str, detail: str) -> None:
        self._dropped[row] = self.of_caption(row) | {"reason": reason, "detail": detail}

    @property
    def dropped(self) -> list[dict[str, str]]:
        """Rows of `samples.DROPPED`: the captions without a sample, in their order."""
        return [self._dropped[row] for row in sorted(self._dropped)]

    def parser(self) -> Any:
        """Load the spaCy pipeline, which must know noun chunks."""
        return load_parser(self.spacy_model, noun_chunks=True)

    def of_caption(self, row: int) -> dict[str, str]:
        """Return the id columns of a sample of a caption."""
        return {"caption_id": self.pairs.captions[row]["caption_id"], "image_id": self._image_ids[row]}

    async def write(self, prompt: str, *, samples: int = 1, **blanks: str) -> list[str]:
        """Return the usable ones of `samples` captions by the LLM. If none is usable, raise AnswerError."""
        self.llm_calls += samples
        answers = await self.chat.ask_many(
            self.chat.prompts.chat(prompt, **blanks),
            samples=samples,
            stage=prompt,
            direction="i2t",
            temperature=TEMPERATURE,
            max_tokens=MAX_TOKENS,
            seed=SEED,
            schema=Written,
        )
        return [text for text in usable(answers) if text is not None]

    async def edit(self, row: int, instruction: str) -> list[Path]:
        """Edit a caption's image and return the files of changed candidates. If there is none, raise NoSample."""
        candidates, image = self._candidates["edit"], int(self.pairs.caption_image[row])
        self.images += candidates.count
        files = [path for path in await candidates.make(image, instruction) if path is not None]
        if not files:
            raise NoSample("editor_failed", "the editor gave no image")
        self.files.update(files)
        before = pixels_of(self.sources.picture(image))
        changed = [path for path in files if pixels_of(open_picture(path.read_bytes())) != before]
        if not changed:
            raise NoSample("no_op", "no candidate changed anything")
        return changed

    async def draw(self, caption: str) -> Path:
        """Let the editor draw a caption, without another image. If it gives none, raise NoSample."""
        self.images += 1
        path = (await self._candidates["draw"].make(0, Drawing(caption)))[0]
        if path is None:
            raise NoSample("editor_failed", "the editor gave no image")
        return path


def _canvas_like(images: Dataset) -> Dataset:
    """One white image of the size of the pairs' first; in the toy world with its scene, whose look is then drawn."""
    first, notes, file = images[0]["image"], PngInfo(), io.BytesIO()
    if SCENE in first.info:
        notes.add_text(SCENE, first.info[SCENE])
    Image.new("RGB", first.size, "white").save(file, "PNG", pnginfo=notes)
    row: dict[str, Any] = {"image": [{"bytes": file.getvalue(), "path": None}]}
    return Dataset.from_dict(row, features=Features({"image": datasets.Image()}))


def nearest_captions(context: MakerContext, candidates: Mapping[int, Sequence[str]]) -> dict[int, str]:
    """Choose for each caption, by row, the nearest candidate that differs from it. Drop captions without one."""
    originals = [context.captions[row] for row in candidates]
    choices = select_captions(context.encoder, originals, list(candidates.values()))
    chosen = {}
    for (row, texts), choice in zip(candidates.items(), choices, strict=True):
        if choice.candidate is None:
            context.drop(row, "no_op", "no candidate changed anything")
        else:
            chosen[row] = texts[choice.candidate]
    return chosen


def nearest_images(
    context: MakerContext,
    candidates: Mapping[int, Sequence[Path]],
    texts: np.ndarray,
    passes: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> dict[int, dict[str, Any]]:
    """Choose for each caption, by row, the image nearest to a text, as a value of an image column.

    Args:
        context: Gets the captions that are dropped, because no candidate passes.
        candidates: Files of images, by row.
        texts: (rows, D) the vector of each text.
        passes: Returns which candidates may be chosen, (n,), from their vectors (n, D) and cosines (n,).
    """
    counts = [len(files) for files in candidates.values()]
    vectors = embed_files(context, [path for files in candidates.values() for path in files])  # (n, D)
    scores = (vectors * texts.repeat(counts, axis=0)).sum(1)  # (n,)
    if passes is not None:
        blocks = [slice(start, start + BLOCK) for start in range(0, len(vectors), BLOCK)]
        is_kept = np.concatenate([passes(vectors[block], scores[block]) for block in blocks])
        scores = np.where(is_kept, scores, -np.inf)
    chosen = {}
    for (row, files), own in zip(candidates.items(), np.split(scores, np.cumsum(counts)[:-1]), strict=True):
        if own.max() == -np.inf:
            context.drop(row, "filtered", "no candidate passes the filters")
        else:
            chosen[row] = as_cell(files[int(own.argmax())])
    return chosen


def embed_files(context: MakerContext, files: Sequence[Path]) -> np.ndarray:
    """Embed image files, `BLOCK` of them open at a time: (n, D)."""
    batches = [files[start : start + BLOCK] for start in range(0, len(files), BLOCK)]
    return np.concatenate(
        [context.encoder.embed_images([open_picture(path.read_bytes()) for path in some]) for some in batches]
    )


def as_cell(path: Path) -> dict[str, Any]:
    """Return the value of a `datasets.Image` column that refers to an image file in place."""
    return {"bytes": None, "path": str(path.absolute())}
