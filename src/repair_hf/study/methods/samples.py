"""Synthetic samples, and the training rows that are drawn from them.

A sample belongs to a caption and holds a text, an image, or both. It plays one of four parts:

| part | use |
|---|---|
| `rewrite` | replaces its caption |
| `variant` | replaces its caption's image |
| `negative` | a caption, or a caption with an image, beside the pair it was made from |
| `drawn` | a further image of its caption |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, Value, concatenate_datasets

from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.run_folder import digest
from repair_hf.training.sampling import uniforms

Part = Literal["rewrite", "variant", "negative", "drawn"]
PARTS: tuple[Part, ...] = ("rewrite", "variant", "negative", "drawn")
# the column of a draw in which each sample of a part has a row of its own
COLUMN = {
    "rewrite": "anchor_texts",
    "variant": "anchor_images",
    "negative": "negative_texts",
    "drawn": "drawn_images",
}
KEEP_STREAM, EPOCH = 3, 2**31  # of the draws that choose a share of the samples

IDS = {name: Value("string") for name in ("caption_id", "image_id")}
SAMPLES = Features(IDS | {"text": Value("string"), "edit_image": datasets.Image()})
# Captions without a sample. `reason` is one of the records' `REASONS`, or `filtered` by the method's own filter.
DROPPED = Features(IDS | {"reason": Value("string"), "detail": Value("string")})


class SampleRows(torch.utils.data.Dataset):
    """Training rows, one for each caption, drawn by (epoch, anchor) as in `Grids`.

    Columns (n,): `anchor_images`, `anchor_texts`; with such samples also `negative_texts`, `negative_images` and
    `drawn_images`, which are -1 for an anchor without one. With groups also `wordings` (n, 1) and `answers` (n, 1, 1),
    both the number of the anchor's group, so that `global_loss` masks out rows of one group. `samples` are rows of
    `SAMPLES` by part, of which a random `share` is used.
    """

    def __init__(self, pairs: Pairs, samples: Mapping[Part, Dataset], *, seed: int = 0, share: float = 1.0) -> None:
        self.anchor_images, self.seed = np.asarray(pairs.caption_image), seed  # (M,)
        self.captions: list[str] = pairs.captions["caption"][:]
        self.groups = None if pairs.groups is None else pairs.groups[self.anchor_images]  # (M,)
        used = {part: samples[part] for part in PARTS if part in samples}
        if share < 1:
            used = {part: some.select(places_of_share(len(some), share)) for part, some in used.items()}
        self.counts = {part: len(some) for part, some in used.items()}
        rows = {id: row for row, id in enumerate(pairs.captions["caption_id"][:])}
        self._tables: dict[Part, _SampleTable] = {}
        pictures = []
        n_images, self.n_images, self.n_captions = len(pairs.images), len(pairs.images), len(self.captions)
        for part, some in used.items():
            owners = np.array([rows[id] for id in some["caption_id"][:]], np.int64)
            text_rows = image_rows = np.full(len(some), -1)
            if part in ("rewrite", "negative"):
                text_rows = len(self.captions) + np.arange(len(some))
                self.captions += some["text"][:]
            if part != "rewrite" and len(some) > 0 and some.data.column("edit_image").null_count == 0:
                image_rows = n_images + np.arange(len(some))
                n_images += len(some)
                pictures.append(some.select_columns("edit_image"))
            self._tables[part] = _SampleTable(owners, text_rows, image_rows)
        self.edited_images = concatenate_datasets(pictures) if pictures else None

    def __len__(self) -> int:
        return len(self.anchor_images)

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[dict[str, np.ndarray]]:
        drawn = self.draw(*np.array(keys).T)
        return [dict(zip(drawn, row, strict=True)) for row in zip(*drawn.values(), strict=True)]

    def __getitem__(self, key: tuple[int, int]) -> dict[str, np.ndarray]:
        return self.__getitems__([key])[0]

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> dict[str, np.ndarray]:
        """Draw the rows of anchors; an original and each of its rewrites or variants are equally likely."""
        images = self.anchor_images[anchors]
        chance = [uniforms(self.seed, epochs, anchors, stream) for stream in range(3)]
        drawn = {"anchor_images": images, "anchor_texts": anchors}
        if self.groups is not None:
            group = self.groups[anchors]
            drawn |= {"wordings": group[:, None], "answers": group[:, None, None]}
        if table := self._tables.get("rewrite"):
            place = table.draw(anchors, chance[0], or_none=True)
            drawn["anchor_texts"] = np.where(place >= 0, table.texts[place], anchors)
        if table := self._tables.get("variant"):
            place = table.draw(anchors, chance[1], or_none=True)
            drawn["anchor_images"] = np.where(place >= 0, table.images[place], images)
        if table := self._tables.get("negative"):
            place = table.draw(anchors, chance[2])
            drawn["negative_texts"], drawn["negative_images"] = table.texts[place], table.images[place]
        if table := self._tables.get("drawn"):
            drawn["drawn_images"] = table.images[table.draw(anchors, chance[2])]
        return drawn

    def neighbours(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return -1 for every anchor: no confusions are known."""
        nobody = np.full(len(self), -1)
        return nobody, nobody

    def report(self) -> dict[str, int]:
        """Return the number of anchors, and of each part's samples."""
        return {"anchors": len(self)} | {f"samples_{part}": count for part, count in self.counts.items()}

    def edits_reachable(self) -> dict[str, float]:
        """Return nothing: there are no records."""
        return {}

    def samples_encoded(self, keys: Iterable[tuple[np.ndarray, np.ndarray]]) -> dict[str, int]:
        """Count by part the samples that are encoded in the rows of some (epochs, anchors)."""
        found: dict[str, np.ndarray] = {part: np.empty(0, int) for part in self.counts}
        for epochs, anchors in keys:
            drawn = self.draw(epochs, anchors)
            for part in found:
                rows, first = drawn[COLUMN[part]], self.n_images if "image" in COLUMN[part] else self.n_captions
                found[part] = np.union1d(found[part], rows[rows >= first])
        return {part: len(rows) for part, rows in found.items()}


class _SampleTable:
    """The samples of each owner. `texts` and `images` end in an additional -1, the row of "no sample"."""

    def __init__(self, owners: np.ndarray, texts: np.ndarray, images: np.ndarray) -> None:
        order = np.argsort(owners, kind="stable")
        self._owners, self._order = owners[order], np.append(order, -1)
        self.texts, self.images = np.append(texts, -1), np.append(images, -1)

    def draw(self, owners: np.ndarray, chance: np.ndarray, *, or_none: bool = False) -> np.ndarray:
        """Draw one of each owner's samples, or -1. With `or_none`, -1 is as likely as each sample."""
        start, stop = np.searchsorted(self._owners, owners), np.searchsorted(self._owners, owners, side="right")
        picks = start + (chance * (stop - start + or_none)).astype(np.int64)
        return self._order[np.where(picks < stop, picks, -1)]


def places_of_share(n: int, share: float) -> np.ndarray:
    """Return sorted indices of a fixed random share of n samples. A larger share contains every smaller one."""
    chance = uniforms(0, np.full(n, EPOCH), np.arange(n), KEEP_STREAM)
    return np.sort(np.argsort(chance, kind="stable")[: round(share * n)])


def content_of(samples: Dataset) -> str:
    """Digest samples by their captions, texts and the names of their images, which say how each was made."""
    columns = [samples["caption_id"][:], samples["text"][:]]
    edits = samples.with_format("arrow")["edit_image"][:]
    paths = pc.struct_field(edits, "path").to_pylist()  # without the bytes beside them
    images = [path and Path(path).name for path in paths]
    return digest([*columns, images] if any(images) else columns)
