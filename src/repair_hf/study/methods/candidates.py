"""Choose one of several candidates for a sample, by the retriever: the 3-candidates-to-1 of the paper's overhead table.

In:  captions, and the candidates of each.
Out: for each the nearest candidate; a caption without one that differs from it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repair_hf.study.methods.context import Workshop
from repair_hf.synthesis.selection import select_captions
from repair_hf.synthesis.sources import open_picture

CANDIDATES = 3


def nearest_captions(workshop: Workshop, candidates: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, str]]:
    """Of each caption's candidates the one nearest to it. Where all say what it says, it is dropped."""
    originals, texts = [workshop.captions[row] for row, _ in candidates], [texts for _, texts in candidates]
    chosen = []
    for (row, some), choice in zip(candidates, select_captions(workshop.encoder, originals, texts), strict=True):
        if choice.candidate is None:
            workshop.drop(row, "no_op", "no candidate changed anything")
        else:
            chosen.append((row, some[choice.candidate]))
    return chosen


def image_scores(workshop: Workshop, files: Sequence[Sequence[Path]], texts: Sequence[str]) -> list[np.ndarray]:
    """The cosine of each candidate image with a text: one array per row of files."""
    flat = [path for row in files for path in row]
    if not flat:
        return [np.empty(0, np.float32) for _ in files]
    images = embed_files(workshop, flat)  # (n, D)
    captions = workshop.encoder.embed_texts(list(texts))  # (rows, D)
    owner = np.repeat(np.arange(len(files)), [len(row) for row in files])
    scores = (images * captions[owner]).sum(1)
    return np.split(scores, np.cumsum([len(row) for row in files])[:-1])


def embed_files(workshop: Workshop, files: Sequence[Path], at_once: int = 256) -> np.ndarray:
    """(n, D) vectors of image files, a few of which are open at a time."""
    parts = []
    for start in range(0, len(files), at_once):
        parts.append(
            workshop.encoder.embed_images([open_picture(path.read_bytes()) for path in files[start : start + at_once]])
        )
    return np.concatenate(parts)


def as_cell(path: Path) -> dict[str, Any]:
    """How a `datasets.Image` column names an image file that stays where it is."""
    return {"bytes": None, "path": str(path.absolute())}
