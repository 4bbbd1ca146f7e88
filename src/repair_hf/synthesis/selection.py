"""Select the candidate that changed the false positive least. (Paper section 3.2, post-edit quality control.)

In:  false positives and, for each, M candidates of the same modality (None where one could not be made).
Out: for each a `Choice`: the candidate with the highest cosine to its false positive. A candidate that changed nothing would always
     win and teach the opposite, so it is taken out first: a caption that equals the false positive but for case, spacing and final
     punctuation, an image with the same pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import ahead
from repair_hf.pairs.dataset import bare_caption
from repair_hf.synthesis.sources import SourceImages, UnreadableImage, open_picture

Select = Literal["nearest", "first"]
AT_ONCE = 64  # pictures opened together; a few such pieces are in memory


@dataclass(frozen=True)
class Choice:
    """Which candidate was taken, and how near to the false positive each of them is.

    Args:
        candidate: Its place among the M, from 0; None if no candidate changed anything.
        similarities: One cosine per candidate; None for those that were out of the choice.
    """

    candidate: int | None
    similarities: tuple[float | None, ...]

    @property
    def similarity(self) -> float | None:
        return None if self.candidate is None else self.similarities[self.candidate]


def choose_captions(
    encoder: DualEncoder,
    fps: Sequence[str],
    candidates: Sequence[Sequence[str | None]],
    *,
    select: Select = "nearest",
) -> list[Choice]:
    """Choose among the candidates of each caption in `fps`. Every distinct text is embedded once."""
    proper = [
        [None if text is None or bare_caption(text) == bare_caption(fp) else text for text in texts]
        for fp, texts in zip(fps, candidates, strict=True)
    ]
    distinct = list(dict.fromkeys([*fps, *(text for texts in proper for text in texts if text is not None)]))
    if not distinct:
        return []
    embedded = encoder.embed_texts(distinct, desc="Embedding edited captions")  # (n, D)
    vectors = dict(zip(distinct, embedded, strict=True))
    return [
        choose([None if text is None else float(vectors[text] @ vectors[fp]) for text in texts], select)
        for fp, texts in zip(fps, proper, strict=True)
    ]


def choose_images(
    encoder: DualEncoder,
    sources: SourceImages,
    fps: Sequence[int],
    candidates: Sequence[Sequence[Path | None]],
    *,
    select: Select = "nearest",
) -> list[Choice]:
    """Choose among the candidate files of each image in `fps`. Every distinct file is embedded once.

    Shape:
        fps: (F,) rows of the pairs' images; candidates: (F, M).
    """
    paths = list(dict.fromkeys(path for row in candidates for path in row if path is not None))
    if not paths:
        return [choose([None] * len(row)) for row in candidates]
    originals = _embed(encoder, list(dict.fromkeys(fps)), sources.picture, "Embedding false positives")
    edited = _embed(encoder, paths, _open_candidate, "Embedding edited images")

    def similarity(fp: int, path: Path | None) -> float | None:
        if path is None or edited[path].pixels == originals[fp].pixels:
            return None
        return float(edited[path].vector @ originals[fp].vector)

    return [choose([similarity(fp, path) for path in row], select) for fp, row in zip(fps, candidates, strict=True)]


def choose(similarities: Sequence[float | None], select: Select = "nearest") -> Choice:
    """The highest similarity wins; of equals, the first. With `first`, whichever comes first."""
    standing = [place for place, value in enumerate(similarities) if value is not None]
    if select == "first":
        return Choice(candidate=next(iter(standing), None), similarities=tuple(similarities))
    best = max(standing, key=lambda place: similarities[place], default=None)
    return Choice(candidate=best, similarities=tuple(similarities))


def pixels_of(picture: Image.Image) -> bytes:
    """Names what an image shows: equal for equal pixels, whatever file they came in."""
    return hashlib.blake2b(repr(picture.size).encode() + picture.tobytes(), digest_size=16).digest()


@dataclass(frozen=True)
class _Embedded:
    vector: np.ndarray  # (D,)
    pixels: bytes  # names the picture


def _embed(
    encoder: DualEncoder, keys: list, open_one: Callable[[Any], Image.Image], desc: str
) -> dict[Any, _Embedded]:
    """Open and embed images a few at a time, so that their number does not matter; threads open the next ones meanwhile."""
    found = {}
    size = min(encoder.batch_size, AT_ONCE)
    pieces = [keys[start : start + size] for start in range(0, len(keys), size)]
    with tqdm(total=len(keys), desc=desc, unit=" images", delay=1, disable=None) as bar:
        for some, pictures in zip(pieces, ahead(lambda keys: [open_one(key) for key in keys], pieces), strict=True):
            vectors = encoder.embed_images(pictures)  # (B, D)
            for key, vector, picture in zip(some, vectors, pictures, strict=True):
                found[key] = _Embedded(vector, pixels_of(picture))
            bar.update(len(some))
    return found


def _open_candidate(path: Path) -> Image.Image:
    try:
        return open_picture(path.read_bytes())
    except UnreadableImage as error:
        raise RuntimeError(f"{path} is broken ({error}); delete it and run the same command again.") from error
