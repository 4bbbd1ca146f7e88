"""Select the candidate that changed the false positive least. (Paper section 3.2, post-edit quality control.)

A candidate that changed nothing would always win and teach the opposite, so it is left out: a caption that differs
only in case, spacing or final punctuation, or an image with the same pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from repair_hf.encoder.embedder import Embedder
from repair_hf.encoder.preprocessing import ahead
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.progress import Progress
from repair_hf.synthesis.candidate_files import lost_similarity
from repair_hf.synthesis.options import Select
from repair_hf.synthesis.sources import SourceImages, UnreadableImage, open_picture

MAX_OPENED = 64  # images opened together; a few such batches are in memory


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
    """Select among the candidates of each caption in `fps`. Every distinct text is embedded once."""
    changed = [
        [None if text is None or bare_caption(text) == bare_caption(fp) else text for text in texts]
        for fp, texts in zip(fps, candidates, strict=True)
    ]
    distinct = list(dict.fromkeys([*fps, *(text for texts in changed for text in texts if text is not None)]))
    if not distinct:
        return []
    embedded = encoder.embed_texts(distinct, desc="Embedding edited captions")  # (n, D)
    vectors = dict(zip(distinct, embedded, strict=True))
    return [
        select_candidate([None if text is None else float(vectors[text] @ vectors[fp]) for text in texts], select)
        for fp, texts in zip(fps, changed, strict=True)
    ]


def select_images(
    encoder: Embedder,
    sources: SourceImages,
    fps: Sequence[int],
    candidates: Sequence[Sequence[Path | None]],
    *,
    select: Select = "nearest",
) -> list[Selection]:
    """Select among the candidate files of each image in `fps`. Every distinct file is embedded once.

    A file that was deleted, because it was not selected, keeps its similarity and is not selected now.

    Shape:
        fps: (F,) rows of the pairs' images; candidates: (F, M).
    """
    paths = list(dict.fromkeys(path for row in candidates for path in row if path is not None))
    if not paths:
        return [select_candidate([None] * len(row)) for row in candidates]
    originals = _embed(encoder, list(dict.fromkeys(fps)), sources.picture, "Embedding false positives")
    there = [path for path in paths if path.is_file()]
    edited = _embed(encoder, there, _open_candidate, "Embedding edited images")

    def similarity(fp: int, path: Path | None) -> float | None:
        if path is None:
            return None
        if path not in edited:
            return lost_similarity(path)
        return None if edited[path][1] == originals[fp][1] else float(edited[path][0] @ originals[fp][0])

    return [
        select_candidate([similarity(fp, path) for path in row], select, [path in edited for path in row])
        for fp, row in zip(fps, candidates, strict=True)
    ]


def select_candidate(
    similarities: Sequence[float | None], select: Select = "nearest", is_there: Sequence[bool] | None = None
) -> Selection:
    """Select the highest similarity, and the first of equals; or the first candidate that is not None.

    Only those that are there, by default all, are selected.
    """
    scores = {
        place: value
        for place, value in enumerate(similarities)
        if value is not None and (is_there is None or is_there[place])
    }
    best = next(iter(scores), None) if select == "first" else max(scores, key=scores.__getitem__, default=None)
    return Selection(candidate=best, similarities=tuple(similarities))


def pixels_of(picture: Image.Image) -> bytes:
    """Digest of an image's pixels, whatever file they came in."""
    return hashlib.blake2b(repr(picture.size).encode() + picture.tobytes(), digest_size=16).digest()


def _embed(
    encoder: Embedder, keys: list, open_one: Callable[[Any], Image.Image], desc: str
) -> dict[Any, tuple[np.ndarray, bytes]]:
    """Embed images: return vector (D,) and digest of pixels by key.

    A few are open at a time, so that memory does not grow; threads open the next ones meanwhile.
    """
    embedded = {}
    size = min(encoder.batch_size, MAX_OPENED)
    batches = [keys[start : start + size] for start in range(0, len(keys), size)]
    with Progress(total=len(keys), desc=desc, unit=" images") as bar:
        for batch, pictures in zip(batches, ahead(lambda keys: [open_one(key) for key in keys], batches), strict=True):
            vectors = encoder.embed_images(pictures)  # (B, D)
            for key, vector, picture in zip(batch, vectors, pictures, strict=True):
                embedded[key] = vector, pixels_of(picture)
            bar.update(len(batch))
    return embedded


def _open_candidate(path: Path) -> Image.Image:
    try:
        return open_picture(path.read_bytes())
    except UnreadableImage as error:
        raise RuntimeError(f"{path} is broken ({error}); delete it and run the same command again.") from error
