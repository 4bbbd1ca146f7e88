"""Pairs and records whose ids tell their rows: image i2 is row 2, and caption c5 belongs to image 5 // 2."""

from __future__ import annotations

import numpy as np
import PIL.Image
from datasets import Dataset, Features, Image, Value

from repair_hf.pairs.dataset import Pairs
from repair_hf.training.fills import Anchors

PICTURE = PIL.Image.new("RGB", (1, 1))
FEATURES = Features(
    {name: Value("string") for name in ("record_id", "direction", "q_id", "fp_id", "edit_text")}
    | {"fp_score": Value("float32"), "edit_image": Image()}
)


def make_pairs(n_images: int = 6, captions: list[str] | None = None, groups: list[str] | None = None) -> Pairs:
    images = {"image_id": [f"i{k}" for k in range(n_images)], "image": [None] * n_images}
    rows = range(2 * n_images)
    texts = captions or [f"caption {k}" for k in rows]
    named = {"caption_id": [f"c{k}" for k in rows], "caption": texts, "image_index": [k // 2 for k in rows]}
    return Pairs(Dataset.from_dict(images | ({"group": groups} if groups else {})), Dataset.from_dict(named))


def make_records(*rows: tuple[str, str] | tuple[str, str, float], unedited: tuple[int, ...] = ()) -> Dataset:
    """(query, false positive[, score]): ("c0", "i3") is a t2i record, ("i0", "c7") an i2t one; ids are r0, r1, ..."""
    return Dataset.from_list(
        [
            {
                "record_id": f"r{place}",
                "direction": "t2i" if q.startswith("c") else "i2t",
                "q_id": q,
                "fp_id": fp,
                "fp_score": score[0] if score else 0.5,
                "edit_text": f"r{place}" if q.startswith("i") and place not in unedited else None,
                "edit_image": PICTURE if q.startswith("c") and place not in unedited else None,
            }
            for place, (q, fp, *score) in enumerate(rows)
        ],
        features=FEATURES,
    )


def random_records(n: int, seed: int, n_images: int = 6) -> Dataset:
    """Records of random failures, many with equal scores; a quarter have no edit."""
    rng, rows = np.random.default_rng(seed), []
    while len(rows) < n:
        image, caption = int(rng.integers(n_images)), int(rng.integers(2 * n_images))
        ids = f"i{image}", f"c{caption}"
        if caption // 2 != image:
            rows.append((*(ids if rng.random() < 0.5 else ids[::-1]), float(rng.integers(1, 4) / 4)))
    return make_records(*rows, unedited=tuple(np.flatnonzero(rng.random(n) < 0.25).tolist()))


def names_of(fill: Anchors, records: Dataset, anchor: int, epochs: int = 1) -> list[tuple[tuple, ...]]:
    """The pairs of an anchor by id in each of the first epochs; an edit by the id of its record."""
    ids = np.array(records["record_id"][:])
    pictures = [*fill.pairs.images["image_id"][:], *ids[fill.t2i.edited_rows], None]  # the last is -1
    captions = [*fill.pairs.captions["caption_id"][:], *ids[fill.i2t.edited_rows], None]
    drawn = fill.draw(np.arange(epochs), np.full(epochs, anchor))
    return [
        tuple((pictures[i], captions[t]) for i, t in zip(images, texts, strict=True))
        for images, texts in zip(*drawn, strict=True)
    ]
