"""Select the candidate that changed the false positive least. (Paper section 3.2, post-edit quality control.)

A candidate that changed nothing would always win and teach the opposite, so it is left out: a caption that differs
only in case, spacing or final punctuation, or an image with the same pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from repair_hf.encoder.embedder import Embedder
from repair_hf.encoder.preprocessing import ahead
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.options import Select
from repair_hf.synthesis.sources import SourceImages, UnreadableImage, open_picture

MAX_OPENED = 64  # images opened together; a few such batches are in memory
TOGETHER = 512  # failures compared at a time: their vectors are in memory
Embedded: TypeAlias = tuple[np.ndarray, Any]  # a vector (D,), and what is equal for equal content


@dataclass(frozen=True)
class Selection:
    """Which candidate was selected, and how similar each is to the false positive."""

    candidate: int | None  # its place among the M, from 0; None if no candidate changed anything
    similarities: tuple[float | None, ...]  # one cosine per candidate; None for those that were left out

    @property
    def order(self) -> list[int]:
        """The candidates that changed something: the selected one, then the others from the nearest on."""
        places = [place for place, value in enumerate(self.similarities) if value is not None]
        return sorted(places, key=lambda place: (place != self.candidate, -(self.similarities[place] or 0.0)))

    @property
    def similarity(self) -> float | None:
        return None if self.candidate is None else self.similarities[self.candidate]


def select_captions(
    encoder: Embedder, rows: Iterable[tuple[str, Sequence[str | None]]], *, select: Select = "nearest"
) -> Iterator[Selection]:
    """Select for each false-positive caption among its candidates, (fp, candidates); None stands for no candidate."""

    def embed(texts: list[str]) -> Iterator[Embedded]:
        return zip(encoder.embed_texts(texts), map(bare_caption, texts), strict=True)

    return _select(rows, embed, select)


def select_images(
    encoder: Embedder,
    sources: SourceImages,
    rows: Iterable[tuple[int, Sequence[Path | None]]],
    *,
    select: Select = "nearest",
) -> Iterator[Selection]:
    """Select for each false-positive image, a row of the pairs' images, among its candidate files."""
    size = min(encoder.batch_size, MAX_OPENED)

    def open_all(keys: list[int | Path]) -> list[Image.Image]:
        return [_open_candidate(key) if isinstance(key, Path) else sources.picture(key) for key in keys]

    def embed(keys: list[int | Path]) -> Iterator[Embedded]:
        batches = [keys[start : start + size] for start in range(0, len(keys), size)]
        for pictures in ahead(open_all, batches):  # threads open the next ones meanwhile
            yield from zip(encoder.embed_images(pictures), map(pixels_of, pictures), strict=True)

    return _select(rows, embed, select)


def _select(
    rows: Iterable[tuple[Any, Sequence[Any]]], embed: Callable[[list], Iterator[Embedded]], select: Select
) -> Iterator[Selection]:
    """Select among the candidates of each false positive. What equals it in content is left out.

    Rows are compared some at a time, which embeds each of their distinct items once. So rows of one false positive
    should follow one another.
    """
    rows = iter(rows)
    while block := list(islice(rows, TOGETHER)):
        items = dict.fromkeys(item for fp, candidates in block for item in (fp, *candidates) if item is not None)
        embedded = dict(zip(items, embed(list(items)), strict=True))
        for fp, candidates in block:
            yield select_candidate([_similarity(embedded, fp, item) for item in candidates], select)


def _similarity(embedded: Mapping[Any, Embedded], fp: Any, candidate: Any) -> float | None:
    if candidate is None or embedded[candidate][1] == embedded[fp][1]:
        return None
    return float(embedded[candidate][0] @ embedded[fp][0])


def select_candidate(similarities: Sequence[float | None], select: Select = "nearest") -> Selection:
    """Select the highest similarity, and the first of equals; or the first candidate that is not None."""
    scores = {place: value for place, value in enumerate(similarities) if value is not None}
    best = next(iter(scores), None) if select == "first" else max(scores, key=scores.__getitem__, default=None)
    return Selection(candidate=best, similarities=tuple(similarities))


def pixels_of(picture: Image.Image) -> bytes:
    """Digest of an image's pixels, whatever file they came in."""
    return hashlib.blake2b(repr(picture.size).encode() + picture.tobytes(), digest_size=16).digest()


def _open_candidate(path: Path) -> Image.Image:
    try:
        return open_picture(path.read_bytes())
    except UnreadableImage as error:
        raise UserError(f"{path} is damaged ({error}). Delete it, and run the same command again.") from error
