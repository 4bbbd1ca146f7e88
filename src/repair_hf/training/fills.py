"""Which pairs stand beside a training pair, the anchor, in a step: edits made from its items, or the paper's grid.

I_a and T_a are the anchor's image and caption; T_hn is a caption that I_a was confused with, I_hn an image that T_a
was confused with. An edit of the anchor's own failure fits the anchor, so the paper's grid never shows it. The image
that fits T_hn comes from another record, whose edit was made for T_hn; without one it is T_hn's annotated image. The
caption that fits I_hn is found in the same way.

| fill | pairs of an image and a caption |
|---|---|
| `Anchors` | (I_a, T_a) |
| `Edits` | the same; (an edit of I_a, the caption it was made for); (the image that it was made for, an edit of T_a) |
| `PaperGrid` | (I_a, T_a); (an image that fits T_hn, T_hn); (I_hn, a caption that fits I_hn) |

Rows number the images and captions of the training pairs first, then the edits. -1 is none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict

from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.truth import Truth, truth_of
from repair_hf.records.dataset import load_records, one_split
from repair_hf.records.index import Groups, index_failures
from repair_hf.records.origin import check_pairs, with_ids_of
from repair_hf.runtime.draws import uniforms
from repair_hf.runtime.items import check_items
from repair_hf.runtime.options import UserError, expect
from repair_hf.training.config import RepairConfig

logger = logging.getLogger(__name__)

Key = tuple[int, int]  # epoch and anchor


class Anchors(torch.utils.data.Dataset[Key]):
    """The training pairs alone, and the base of the other fills.

    As the dataset of a loader, it hands each key (epoch and anchor) on: the collator draws the pairs of a batch.

    Args:
        pairs: The training pairs.
        truth: What is known to match; by default what `pairs` say.
        seed: Seed of the draws.
    """

    images: Dataset | None = None
    """Images that follow those of the pairs, in a column `edit_image`."""
    texts: Dataset | None = None
    """Captions that follow those of the pairs, in a column `edit_text`."""
    beside: Sequence[str] = ()
    """The direction of the records of each pair beside an anchor."""

    def __init__(self, pairs: Pairs, truth: Truth | None = None, seed: int = 0) -> None:
        self.pairs, self.seed = pairs, seed
        self.truth = truth or truth_of(pairs)[0]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: Key) -> Key:
        return key

    @cached_property
    def share(self) -> float:
        """The share of anchors that have a pair beside them, the same in every epoch."""
        counts = self.report()
        return (counts["anchors"] - counts["beside_0"]) / counts["anchors"]

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw the pairs of some anchors. They depend on epoch, anchor and seed alone.

        Shape:
            epochs, anchors: (n,). Returns rows of images and of captions, (n, S) each: first the anchors' own, then
            those beside them.
        """
        return self.pairs.caption_image[anchors][:, None], anchors[:, None]

    def report(self) -> dict[str, Any]:
        """Count the anchors: by how many pairs stand beside them (`beside_0` and so on), and by their direction."""
        anchors = np.arange(len(self.pairs.captions))
        images, texts = self.draw(np.zeros_like(anchors), anchors)
        is_there = (images >= 0) | (texts >= 0)
        beside = is_there.sum(1) - 1
        counts = {f"beside_{n}": int((beside == n).sum()) for n in range(images.shape[1])}
        of_way = {f"beside_{way}": int(is_there[:, n].sum()) for n, way in enumerate(self.beside, 1)}
        return {"anchors": len(anchors)} | counts | of_way

    def samples(self, images: np.ndarray, texts: np.ndarray) -> dict[str, int]:
        """Count by kind the synthetic samples among distinct rows of images and captions beyond those of the pairs."""
        return {}


class _FromRecords(Anchors):
    """A fill from the records of failures on `pairs`.

    Raises:
        UserError: If `records` lack a column, none of them belongs to `pairs`, or these have changed since.
    """

    def __init__(self, pairs: Pairs, records: Dataset, truth: Truth | None = None, seed: int = 0) -> None:
        super().__init__(pairs, truth, seed)
        records = with_ids_of(pairs, records)
        self.i2t, self.t2i = index_failures(records, pairs)
        if not len(self.i2t) + len(self.t2i):
            raise UserError(
                f"None of the {len(records)} records names an image and a caption of these pairs. Train on the pairs "
                "(and the split) that the records were mined from."
            )
        check_pairs(records, pairs)
        self.outside = len(records) - len(self.i2t) - len(self.t2i)
        if self.t2i.n_edits:
            self.images = records.select(self.t2i.edited_rows).select_columns("edit_image")
        if self.i2t.n_edits:
            self.texts = records.select(self.i2t.edited_rows).select_columns("edit_text")
        self.truth = self._with_edits(self.truth)

    def report(self) -> dict[str, Any]:
        edits = {"edits_i2t": self.i2t.n_edits, "edits_t2i": self.t2i.n_edits}
        return super().report() | edits | {"records_outside": self.outside}

    def samples(self, images: np.ndarray, texts: np.ndarray) -> dict[str, int]:
        return {"i2t": len(texts), "t2i": len(images)}

    def _with_edits(self, truth: Truth) -> Truth:
        """Add what the edits were made for: an image's caption, and a caption's image."""
        i2t, t2i = self.i2t.n_edits, self.t2i.n_edits
        asked_texts, asked_images = self.t2i.queries[:t2i], self.i2t.queries[:i2t]
        groups = self.pairs.groups  # what fits one caption of a group fits all of them
        alone = np.full(t2i, -1)
        classes = alone if groups is None else truth.image_class[self.pairs.caption_image[asked_texts]]
        blocks = [] if self.texts is None else self.texts.iter(1024)
        return truth.extended(
            (text for block in blocks for text in block["edit_text"]),
            images=np.concatenate([self.t2i.edits[:t2i], asked_images]),
            texts=np.concatenate([asked_texts, self.i2t.edits[:i2t]]),
            new_classes=classes,
            made_for_text=asked_texts,
            made_for_image=asked_images,
        )


class Edits(_FromRecords):
    """Beside each anchor an edit of its image and an edit of its caption, each with the item that it was made for.

    An edit stands in every step beside the false positive that it was made from, so every edit trains.
    """

    beside = ("t2i", "i2t")

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images = self.pairs.caption_image[anchors]
        t2i = self.t2i.edits_by_negative.draw(images, uniforms(self.seed, epochs, anchors, 0))
        i2t = self.i2t.edits_by_negative.draw(anchors, uniforms(self.seed, epochs, anchors, 1))
        return (
            np.stack([images, self.t2i.edits[t2i], self.i2t.queries[i2t]], 1),
            np.stack([anchors, self.t2i.queries[t2i], self.i2t.edits[i2t]], 1),
        )


class PaperGrid(_FromRecords):
    """Beside each anchor its own failures: the caption T_hn and the image I_hn, each with an item that fits it.

    That item is the edit of the mirrored record (query and false positive exchanged), else the best-scored edit made
    for it, else an annotated one.
    """

    beside = ("i2t", "t2i")

    def __init__(self, pairs: Pairs, records: Dataset, truth: Truth | None = None, seed: int = 0) -> None:
        super().__init__(pairs, records, truth, seed)
        self._fits_text, self._fits_image = self.i2t.counterparts(self.t2i), self.t2i.counterparts(self.i2t)
        self._captions_of = Groups(pairs.caption_image, len(pairs.images))

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images = self.pairs.caption_image[anchors]
        i2t = self.i2t.by_query.draw(images, uniforms(self.seed, epochs, anchors, 0))
        t2i = self.t2i.by_query.draw(anchors, uniforms(self.seed, epochs, anchors, 1))
        wrong_texts, wrong_images = self.i2t.negatives[i2t], self.t2i.negatives[t2i]
        right_images = self.t2i.edits[self._fits_text[i2t]]
        right_texts = self.i2t.edits[self._fits_image[t2i]]
        is_annotated = (right_images < 0) & (wrong_texts >= 0)
        right_images = np.where(is_annotated, self.pairs.caption_image[wrong_texts], right_images)
        annotated = self._captions_of.draw(wrong_images, uniforms(self.seed, epochs, anchors, 2))
        right_texts = np.where(right_texts < 0, annotated, right_texts)
        return np.stack([images, right_images, wrong_images], 1), np.stack([anchors, wrong_texts, right_texts], 1)


def open_records(records: Any, pairs: Pairs, revision: str | None = None) -> Dataset | None:
    """Return records in memory, or load them from folders and Hub ids whose pairs have not changed since.

    Raises:
        UserError: As `load_records`; or if a folder was made of other items, or `records` are of another type.
    """
    places = [records] if isinstance(records, str | Path) else records
    if isinstance(places, list | tuple):
        for place in places:
            check_items(place, pairs.items)
        return load_records(places, revision=revision)
    expect(records, (Dataset, DatasetDict, type(None)), "records", "a Dataset, or a folder or Hub id of records")
    return None if records is None else one_split(records)


def fill_of(pairs: Pairs, records: Dataset | None, args: RepairConfig, truth: Truth | None) -> Anchors:
    """Create the fill that a configuration names, and warn of records of other items.

    Raises:
        UserError: If records lack columns, or do not belong to the pairs.
    """
    if records is None or args.loss == "none":
        return Anchors(pairs, truth, args.draw_seed)
    fill = (PaperGrid if args.fill == "paper" else Edits)(pairs, records, truth, args.draw_seed)
    if args.process_index == 0 and fill.outside:
        logger.warning("%d of %d records name items outside these pairs; left out.", fill.outside, len(records))
    return fill
