"""Choose one of several candidate captions or images by the retriever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repair_hf.study.methods.context import MakerContext
from repair_hf.synthesis.selection import select_captions
from repair_hf.synthesis.sources import open_picture

CANDIDATES = 3


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
