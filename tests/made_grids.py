"""Pairs and records whose ids tell their places, and parts of the losses in plain Python."""

from __future__ import annotations

import math

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from datasets import Dataset, Features, Image, Value

from repair_hf.pairs.dataset import Pairs
from repair_hf.training.grids import Grids

SCALE = 7.0
PICTURE = PIL.Image.new("RGB", (1, 1))
FEATURES = Features(
    {name: Value("string") for name in ("record_id", "direction", "q_id", "fp_id", "edit_text")}
    | {"fp_score": Value("float32"), "edit_image": Image()}
)


def make_pairs(n_images: int = 6, captions_each: int = 2, captions: list[str] | None = None) -> Pairs:
    """Images i0, i1, ... with captions c0, c1, ...: caption k belongs to image k // captions_each."""
    rows = range(n_images * captions_each)
    return Pairs(
        images=Dataset.from_dict({"image_id": [f"i{k}" for k in range(n_images)], "image": [None] * n_images}),
        captions=Dataset.from_dict(
            {
                "caption_id": [f"c{k}" for k in rows],
                "caption": captions or [f"caption {k}" for k in rows],
                "image_index": [k // captions_each for k in rows],
            }
        ),
        problems=(),
    )


def make_records(*rows: tuple[str, str] | tuple[str, str, float], unedited: tuple[int, ...] = ()) -> Dataset:
    """(query, false positive[, score]): ("c0", "i3") is a t2i record, ("i0", "c7") an i2t one."""
    return Dataset.from_list(
        [
            {
                "record_id": f"r{place}",
                "direction": "t2i" if q.startswith("c") else "i2t",
                "q_id": q,
                "fp_id": fp,
                "fp_score": score[0] if score else 0.5,
                "edit_text": f"edit of {fp} for {q}" if q.startswith("i") and place not in unedited else None,
                "edit_image": PICTURE if q.startswith("c") and place not in unedited else None,
            }
            for place, (q, fp, *score) in enumerate(rows)
        ],
        features=FEATURES,
    )


def many(grids: Grids, anchor: int, epochs: int = 400) -> dict[str, np.ndarray]:
    return grids.draw(np.arange(epochs), np.full(epochs, anchor))


def unit(n: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)), dim=1)


def cross_entropy(own: float, rivals: list[float]) -> float:
    return math.log(sum(math.exp(score) for score in (own, *rivals))) - own


def dot(one: torch.Tensor, other: torch.Tensor) -> float:
    return SCALE * sum(a * b for a, b in zip(one.tolist(), other.tolist(), strict=True))
