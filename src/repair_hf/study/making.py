"""What makes the samples of a baseline, and what it works with: pairs, retriever, LLM and image editor.

A maker lets the LLM write texts, and the editor edit or draw images, through `MakerContext`. It works on all captions
at once, counts requests, reuses paid answers, and chooses one of several candidates by the retriever.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import datasets
import numpy as np
from datasets import Dataset, Features
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.answers import AnswerError
from repair_hf.llm.asker import Asker
from repair_hf.llm.prompts import Drawing
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.progress import Progress
from repair_hf.study.words import MODEL
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.loop import work_through
from repair_hf.synthesis.options import Format
from repair_hf.synthesis.selection import pixels_of, select_captions
from repair_hf.synthesis.sources import SCENE, SourceImages, UnreadableImage, open_picture
from repair_hf.synthesis.steps import write

T = TypeVar("T")
Sample = tuple[int, dict[str, Any]]  # the row of its caption, and its text or its image, or both
Passes = Callable[[np.ndarray, np.ndarray], "np.ndarray | bool"]  # see `nearest_images`

SEED = 0  # of all draws
CANDIDATES = 3  # of each edited caption or image
BLOCK = 256  # candidate images that are compared at once


@dataclass(frozen=True)
class Maker:
    """How one kind of samples is made, once for all methods and seeds that use it."""

    name: str  # name of the folder
    make: Callable[[Any], Awaitable[Iterable[Sample]]]  # called with a `MakerContext`
    prompt: str = ""  # what the LLM is asked about each caption; empty if it is not asked
    answers: int = 0  # requested for each caption
    edits: int = 0  # candidates of each edited image; 0 if no image is edited
    draws: bool = False  # whether images are generated from text


class NoSample(Exception):
    """A caption yields no sample; `drop_reason` is one of `samples.DROPPED`."""

    def __init__(self, drop_reason: str, detail: str) -> None:
        super().__init__(detail)
        self.drop_reason = drop_reason


class MakerContext:
    """What a maker works with: it asks, edits and draws. `llm_calls` and `images` count reused answers, too."""

    def __init__(
        self,
        maker: Maker,
        pairs: Pairs,
        encoder: DualEncoder,
        asker: Asker,
        editor: ImageEditor | HostedEditor | None,
        *,
        spacy_model: str = MODEL,
        save_as: Format = "png",
    ) -> None:
        self.maker, self.pairs, self.encoder = maker, pairs, encoder
        self.asker, self.spacy_model = asker, spacy_model
        self.llm_calls = self.images = 0
        self._dropped: dict[int, dict[str, str]] = {}  # caption -> row of `samples.DROPPED`
        self.sources = SourceImages(pairs.images)
        self.captions: list[str] = pairs.captions["caption"][:]
        names = pairs.images["image_id"][:]
        self._image_ids: list[str] = [names[row] for row in pairs.caption_image]  # of each caption
        self._candidates: dict[str, Candidates] = {}
        folder = asker.ledger.folder
        how: dict[str, Any] = {"seed": SEED, "save_as": save_as}
        if maker.edits and editor is not None:
            self._candidates["edit"] = Candidates(editor, self.sources, folder, count=maker.edits, **how)
        if maker.draws and editor is not None:
            canvas = SourceImages(_canvas_like(pairs.images))
            self._candidates["draw"] = Candidates(editor, canvas, folder, count=1, **how)

    async def run(self) -> list[dict[str, Any]]:
        """Make rows of `samples.SAMPLES`.

        Raises:
            RunStopped: If a ceiling is reached, a provider is down, or answers will come with a batch.
        """
        return [self.of_caption(row) | sample for row, sample in await self.maker.make(self)]

    def drop(self, row: int, reason: str, detail: str) -> None:
        self._dropped[row] = self.of_caption(row) | {"reason": reason, "detail": detail}

    @property
    def dropped(self) -> list[dict[str, str]]:
        """Rows of `samples.DROPPED`: the captions without a sample, in their order."""
        return [self._dropped[row] for row in sorted(self._dropped)]

    def of_caption(self, row: int) -> dict[str, str]:
        """Return the id columns of a sample of a caption."""
        return {"caption_id": self.pairs.captions[row]["caption_id"], "image_id": self._image_ids[row]}

    async def ask(
        self, keeps: Callable[[str, str], bool] = lambda caption, text: True, *, shows_image: bool = False
    ) -> dict[int, str]:
        """Let the LLM answer the prompt about each caption; return the answers by row.

        An answer must differ from the caption and pass `keeps(caption, answer)`. Of several, the nearest is returned.
        """

        async def ask_one(row: int) -> list[str]:
            caption, answers = self.captions[row], self.maker.answers
            image = {"source_image": self.sources.url(int(self.pairs.caption_image[row]))} if shows_image else {}
            self.llm_calls += answers
            messages = self.asker.prompts.chat(self.maker.prompt, caption=caption, **image)
            written = await write(self.asker, messages, self.maker.prompt, candidates=answers, seed=SEED)
            texts = list(filter(None, written))
            kept = [text for text in texts if keeps(caption, text)]
            _not_empty(kept, "filtered", f"the method does not keep {texts[0]!r}")
            changed = [text for text in kept if bare_caption(text) != bare_caption(caption)]
            return _not_empty(changed, "no_op", "the answer equals the caption")

        asked = await self._each(ask_one, f"Asking for {self.maker.name}", range(len(self.captions)))
        if self.maker.answers == 1:
            return {row: texts[0] for row, texts in asked.items()}
        choices = select_captions(self.encoder, [(self.captions[row], texts) for row, texts in asked.items()])
        chosen = zip(asked.items(), choices, strict=True)
        return {row: texts[choice.candidate] for (row, texts), choice in chosen if choice.candidate is not None}

    async def edit(
        self,
        instructions: Mapping[int, str],
        wanted: Callable[[list[int]], np.ndarray],
        passes: Passes = lambda vectors, cosines: True,
    ) -> dict[int, dict[str, Any]]:
        """Edit the image of each caption; return values of an image column, by row.

        Of the candidates that differ and pass, the nearest to a text is returned: `wanted` gives its vector for some
        rows, (n, D). See `nearest_images`.
        """

        async def edit_one(row: int) -> list[Path]:
            candidates, image = self._candidates["edit"], int(self.pairs.caption_image[row])
            self.images += candidates.count
            files = filter(None, await candidates.make(image, instructions[row]))
            before = pixels_of(self.sources.picture(image))
            changed = [path for path in files if pixels_of(open_picture(path.read_bytes())) != before]
            return _not_empty(changed, "no_op", "no candidate changed anything")

        edits = await self._each(edit_one, "Editing images", instructions)
        nearest = nearest_images(self.encoder, edits, wanted(list(edits)), passes) if edits else {}
        for row in edits.keys() - nearest.keys():
            self.drop(row, "filtered", "no candidate passes the filters")
        return {row: as_cell(path) for row, path in nearest.items()}

    async def draw(self, texts: Mapping[int, str]) -> dict[int, dict[str, Any]]:
        """Let the editor draw a text for each caption, by row, without another image; return as `edit`."""

        async def draw_one(row: int) -> dict[str, Any]:
            self.images += 1
            (path,) = await self._candidates["draw"].make(0, Drawing(texts[row]))
            assert path is not None, "a drawing without a candidate is an error"
            return as_cell(path)

        return await self._each(draw_one, "Drawing images", texts)

    async def _each(self, work: Callable[[int], Awaitable[T]], title: str, rows: Collection[int]) -> dict[int, T]:
        """Process captions concurrently; return the results by row, in order, without what is useless or unreadable.

        Raises:
            RunStopped: If answers will come with a batch; what does not need them is done.
        """
        results: dict[int, T] = {}

        async def try_one(row: int) -> None:
            try:
                results[row] = await work(row)
            except (AnswerError, NoSample, UnreadableImage) as error:
                self.drop(row, error.drop_reason, str(error))
            bar.update()

        with Progress(total=len(rows), desc=title, unit=" samples") as bar:
            await work_through(self.asker, [rows], try_one, *self._candidates.values())
        return {row: results[row] for row in rows if row in results}


def _not_empty(found: list[T], reason: str, detail: str) -> list[T]:
    if not found:
        raise NoSample(reason, detail)
    return found


def _canvas_like(images: Dataset) -> Dataset:
    """One white image of the size of the pairs' first; in the toy world with its scene, whose look is then drawn."""
    first, notes, file = images[0]["image"], PngInfo(), io.BytesIO()
    if SCENE in first.info:
        notes.add_text(SCENE, first.info[SCENE])
    Image.new("RGB", first.size, "white").save(file, "PNG", pnginfo=notes)
    row: dict[str, Any] = {"image": [{"bytes": file.getvalue(), "path": None}]}
    return Dataset.from_dict(row, features=Features({"image": datasets.Image()}))


def nearest_images(
    encoder: DualEncoder,
    candidates: Mapping[int, Sequence[Path]],
    texts: np.ndarray,
    passes: Passes = lambda vectors, cosines: True,
) -> dict[int, Path]:
    """Choose for each row the image nearest to its text, (rows, D); rows without an image that passes are left out.

    `passes` says which of some candidates may be chosen, from their vectors (n, D) and cosines (n,).
    """
    tried = [(row, path, text) for (row, some), text in zip(candidates.items(), texts, strict=True) for path in some]
    best: dict[int, tuple[float, Path]] = {}
    for start in range(0, len(tried), BLOCK):
        rows, paths, wanted = zip(*tried[start : start + BLOCK], strict=True)
        vectors = encoder.embed_images([open_picture(path.read_bytes()) for path in paths])  # (n, D)
        cosines = (vectors * np.stack(wanted)).sum(1)
        scores = np.where(passes(vectors, cosines), cosines, -np.inf)
        for row, path, score in zip(rows, paths, scores, strict=True):
            if score > best.get(row, (-np.inf,))[0]:
                best[row] = score, path
    return {row: path for row, (_, path) in best.items()}


def as_cell(path: Path) -> dict[str, Any]:
    """Return the value of a `datasets.Image` column that refers to an image file in place."""
    return {"bytes": None, "path": str(path.absolute())}
