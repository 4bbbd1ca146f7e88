"""Select the candidate that changed the false positive least. (Paper section 3.2, post-edit quality control.)

A candidate that changed nothing would always win and teach the opposite, so it is left out: a caption that differs
only in case, spacing or final punctuation, or an image with the same pixels.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from repair_hf.encoder.embedder import Embedder
from repair_hf.encoder.preprocessing import ahead
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.progress import Progress
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
    def similarity(self) -> float | None:
        return None if self.candidate is None else self.similarities[self.candidate]


def select_captions(
    encoder: Embedder, fps: Sequence[str], candidates: Sequence[Sequence[str | None]], *, select: Select = "nearest"
) -> list[Selection]:
    """Select among the candidates of each caption in `fps`."""

    def embed(texts: list[str]) -> Iterator[Embedded]:
        return zip(encoder.embed_texts(texts), map(bare_caption, texts), strict=True)

    return _select(fps, candidates, embed, select, "Comparing captions")


def select_images(
    encoder: Embedder,
    sources: SourceImages,
    fps: Sequence[int],
    candidates: Sequence[Sequence[Path | None]],
    *,
    select: Select = "nearest",
) -> list[Selection]:
    """Select among the candidate files of each image in `fps`.

    Shape:
        fps: (F,) rows of the pairs' images; candidates: (F, M).
    """
    size = min(encoder.batch_size, MAX_OPENED)

    def open_all(keys: list[int | Path]) -> list[Image.Image]:
        return [_open_candidate(key) if isinstance(key, Path) else sources.picture(key) for key in keys]

    def embed(keys: list[int | Path]) -> Iterator[Embedded]:
        batches = [keys[start : start + size] for start in range(0, len(keys), size)]
        for pictures in ahead(open_all, batches):  # threads open the next ones meanwhile
            yield from zip(encoder.embed_images(pictures), map(pixels_of, pictures), strict=True)

    return _select(fps, candidates, embed, select, "Comparing images")


def _select(
    fps: Sequence[Any],
    candidates: Sequence[Sequence[Any]],
    embed: Callable[[list], Iterator[Embedded]],
    select: Select,
    desc: str,
) -> list[Selection]:
    """Select among the candidates of each false positive. What equals it in content is left out.

    Each distinct one is embedded once. Those of one false positive are compared together, and a vector is kept no
    longer than another failure needs it.
    """
    rows = [(fp, {fp, *some} - {None}) for fp, some in zip(fps, candidates, strict=True)]
    uses = Counter(key for _, keys in rows for key in keys)
    first = {fp: place for place, fp in reversed(list(enumerate(fps)))}
    order = sorted(range(len(rows)), key=lambda place: first[fps[place]])
    kept: dict[Any, Embedded] = {}
    selections: dict[int, Selection] = {}

    def similarity(fp: Any, key: Any) -> float | None:
        if key is None or kept[key][1] == kept[fp][1]:
            return None
        return float(kept[key][0] @ kept[fp][0])

    with Progress(total=len(rows), desc=desc, unit=" failures") as bar:
        for start in range(0, len(order), TOGETHER):
            places = order[start : start + TOGETHER]
            new = list(dict.fromkeys(key for place in places for key in (fps[place], *candidates[place])))
            new = [key for key in new if key is not None and key not in kept]
            kept |= zip(new, embed(new), strict=True) if new else ()
            for place in places:
                fp, keys = rows[place]
                scores = [similarity(fp, key) for key in candidates[place]]
                selections[place] = select_candidate(scores, select)
                uses.subtract(keys)
                for key in keys:
                    if not uses[key]:
                        del kept[key]
            bar.update(len(places))
    return [selections[place] for place in range(len(rows))]


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
        raise RuntimeError(f"{path} is broken ({error}); delete it and run the same command again.") from error
