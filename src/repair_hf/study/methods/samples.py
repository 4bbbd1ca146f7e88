"""Synthetic samples, and the rows of a training that uses them.

In:  samples: each belongs to a caption of the pairs, and holds a text, an image, or both.
Out: `SampleRows`: one row per training caption, with what is drawn in its place or beside it in an epoch.

A sample plays one of four parts. A `rewrite` may stand in place of its caption, a `variant` in place of its caption's image. A `negative` is set
beside the pair that it was made of: a caption, or a caption with an image. A `drawn` image is a further image of its caption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import datasets
import numpy as np
import torch
from datasets import Dataset, Features, Value, concatenate_datasets

from repair_hf.pairs.dataset import Pairs
from repair_hf.training.draws import uniforms

Part = Literal["rewrite", "variant", "negative", "drawn"]
PARTS: tuple[Part, ...] = ("rewrite", "variant", "negative", "drawn")
KEEP_STREAM, EPOCH = 3, 2**31  # of the draws that choose a share of the samples

SAMPLES = Features(
    {
        "caption_id": Value("string"),
        "image_id": Value("string"),
        "text": Value("string"),
        "edit_image": datasets.Image(),
    }
)
# Captions of which no sample came. `reason` is one of the records' `REASONS`, or `filtered`: the method's own filter took it out.
DROPPED = Features({name: Value("string") for name in ("caption_id", "image_id", "reason", "detail")})


class SampleRows(torch.utils.data.Dataset):
    """One row per training caption, drawn by (epoch, anchor) as `Grids` draws: `anchor_images`, `anchor_texts` (n,); where there are
    such samples `negative_texts`, `negative_images` and `drawn_images` (n,) too, -1 where the anchor has none.

    Args:
        pairs: The training pairs.
        samples: Part -> samples (`SAMPLES`).
        seed: Of the draws.
        share: Of each part's samples that are used; the rest is left out by chance.
    """

    def __init__(self, pairs: Pairs, samples: Mapping[Part, Dataset], *, seed: int = 0, share: float = 1.0) -> None:
        self.anchor_images, self.seed = np.asarray(pairs.caption_image), seed  # (M,)
        self.captions: list[str] = pairs.captions["caption"][:]
        used = {part: take_share(samples[part], share) for part in PARTS if part in samples}
        self.counts = {part: len(some) for part, some in used.items()}
        rows = {id: row for row, id in enumerate(pairs.captions["caption_id"][:])}
        self._choices: dict[Part, _Choices] = {}
        pictures = []
        n_images = len(pairs.images)
        for part, some in used.items():
            owners = np.array([rows[id] for id in some["caption_id"][:]], np.int64)
            text_rows = image_rows = np.full(len(some), -1)
            if part in ("rewrite", "negative"):
                text_rows = len(self.captions) + np.arange(len(some))
                self.captions += some["text"][:]
            if part != "rewrite" and _has_images(some):
                image_rows = n_images + np.arange(len(some))
                n_images += len(some)
                pictures.append(some.select_columns("edit_image"))
            self._choices[part] = _Choices(owners, text_rows, image_rows)
        self.edited_images = concatenate_datasets(pictures) if pictures else None

    def __len__(self) -> int:
        return len(self.anchor_images)

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[dict[str, np.ndarray]]:
        drawn = self.draw(*np.array(keys).T)
        return [dict(zip(drawn, row, strict=True)) for row in zip(*drawn.values(), strict=True)]

    def __getitem__(self, key: tuple[int, int]) -> dict[str, np.ndarray]:
        return self.__getitems__([key])[0]

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> dict[str, np.ndarray]:
        """Draw anchors and what goes with them; an original and its rewrites or variants are all equally likely."""
        images = self.anchor_images[anchors]
        chance = [uniforms(self.seed, epochs, anchors, stream) for stream in range(3)]
        drawn = {"anchor_images": images, "anchor_texts": anchors}
        if "rewrite" in self._choices:
            place = self._choices["rewrite"].draw(anchors, chance[0], or_none=True)
            drawn["anchor_texts"] = np.where(place >= 0, self._choices["rewrite"].texts[place], anchors)
        if "variant" in self._choices:
            place = self._choices["variant"].draw(anchors, chance[1], or_none=True)
            drawn["anchor_images"] = np.where(place >= 0, self._choices["variant"].images[place], images)
        if "negative" in self._choices:
            place = self._choices["negative"].draw(anchors, chance[2])
            drawn["negative_texts"] = self._choices["negative"].texts[place]
            drawn["negative_images"] = self._choices["negative"].images[place]
        if "drawn" in self._choices:
            drawn["drawn_images"] = self._choices["drawn"].images[self._choices["drawn"].draw(anchors, chance[2])]
        return drawn

    def neighbours(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Nobody is known to be confused with anybody."""
        nobody = np.full(len(self), -1)
        return nobody, nobody

    def report(self) -> dict[str, int]:
        """How many anchors, and samples of each part."""
        return {"anchors": len(self)} | {f"samples_{part}": count for part, count in self.counts.items()}


class _Choices:
    """The samples of each owner. The tables end in one more element, -1: the answer to "none"."""

    def __init__(self, owners: np.ndarray, texts: np.ndarray, images: np.ndarray) -> None:
        order = np.argsort(owners, kind="stable")
        self._owners, self._order = owners[order], np.append(order, -1)
        self.texts, self.images = np.append(texts, -1), np.append(images, -1)

    def draw(self, owners: np.ndarray, chance: np.ndarray, *, or_none: bool = False) -> np.ndarray:
        """Any of each owner's samples, all equally likely, and with `or_none` none of them as likely as each; -1 for none."""
        start, stop = np.searchsorted(self._owners, owners), np.searchsorted(self._owners, owners, side="right")
        picks = start + (chance * (stop - start + or_none)).astype(np.int64)
        return self._order[np.where(picks < stop, picks, -1)]


def take_share(samples: Dataset, share: float) -> Dataset:
    """Some of the samples, drawn by chance."""
    return samples if share >= 1 else samples.select(places_of_share(len(samples), share))


def places_of_share(n: int, share: float) -> np.ndarray:
    """The places of a share of n samples: the same ones for the same share, and of a larger share all of a smaller one."""
    chance = uniforms(0, np.full(n, EPOCH), np.arange(n), KEEP_STREAM)
    return np.sort(np.argsort(chance, kind="stable")[: round(share * n)])


def _has_images(samples: Dataset) -> bool:
    return len(samples) > 0 and samples.data.column("edit_image").null_count == 0
