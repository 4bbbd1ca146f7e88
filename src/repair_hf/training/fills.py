"""Which pairs stand beside a training pair, the anchor, in a step: (I_a, T_a), (I+, T_hn), (I_hn, T+).

T_hn is a caption that the image I_a was confused with, and I+ an image that fits it. I_hn is an image that the caption
T_a was confused with, and T+ a caption that fits it. In a record the edit of the false positive fits the query, so
a record whose false positive is I_a gives T_hn (its query) and I+ (its edit).

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
from repair_hf.records.index import Failures, Groups, index_failures
from repair_hf.records.origin import check_pairs
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
    """Of each pair beside an anchor, the item that the anchor was confused with: `text` or `image`."""

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
        return counts["with_pairs"] / counts["anchors"]

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw the pairs of some anchors. They depend on epoch, anchor and seed alone.

        Shape:
            epochs, anchors: (n,). Returns rows of images and of captions, (n, S) each: first the anchors' own, then
            those beside them.
        """
        return self.pairs.caption_image[anchors][:, None], anchors[:, None]

    def report(self) -> dict[str, Any]:
        """Count the anchors, those with pairs beside them, and those with each kind of pair."""
        anchors = np.arange(len(self.pairs.captions))
        images, texts = self.draw(np.zeros_like(anchors), anchors)
        is_there = (images >= 0) | (texts >= 0)
        kinds = {f"beside_{kind}": int(is_there[:, slot].sum()) for slot, kind in enumerate(self.beside, 1)}
        return {"anchors": len(anchors), "with_pairs": int(is_there[:, 1:].any(1).sum())} | kinds


class Edits(Anchors):
    """Beside each anchor a caption that its image was confused with, and an image that its caption was confused with.

    Each stands with an item that fits it: the edit that was made from the anchor's own item. So every edit trains.

    Args:
        pairs, truth, seed: As for `Anchors`.
        records: Records of failures on `pairs`.
        own_failures: Draw from both sides: also failures of the anchor's own items as queries. What fits their false
            positive is an edit that was made for it, else an annotated item. This is the paper's grid.

    Raises:
        UserError: If `records` lack a column, none of them belongs to `pairs`, or these have changed since.
    """

    beside = ("text", "image")

    def __init__(
        self, pairs: Pairs, records: Dataset, truth: Truth | None = None, seed: int = 0, *, own_failures: bool = False
    ) -> None:
        super().__init__(pairs, truth, seed)
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
        n_images, n_texts = len(pairs.images), len(pairs.captions)
        self._wrong_texts = _Confusions(self.t2i, self.i2t, n_images, n_texts, own_failures=own_failures)
        self._wrong_images = _Confusions(self.i2t, self.t2i, n_texts, n_images, own_failures=own_failures)
        self._captions_of = Groups(pairs.caption_image, n_images)

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chances = [uniforms(self.seed, epochs, anchors, stream) for stream in range(5)]
        images = self.pairs.caption_image[anchors]
        wrong_texts, right_images = self._wrong_texts.draw(images, chances[0], chances[2])
        wrong_images, right_texts = self._wrong_images.draw(anchors, chances[1], chances[3])
        is_annotated = (right_images < 0) & (wrong_texts >= 0)
        right_images = np.where(is_annotated, self.pairs.caption_image[wrong_texts], right_images)
        is_annotated = (right_texts < 0) & (wrong_images >= 0)
        right_texts = np.where(is_annotated, self._captions_of.draw(wrong_images, chances[4]), right_texts)
        return np.stack([images, right_images, wrong_images], 1), np.stack([anchors, wrong_texts, right_texts], 1)

    def report(self) -> dict[str, Any]:
        edits = {"edits_i2t": self.i2t.n_edits, "edits_t2i": self.t2i.n_edits}
        return super().report() | edits | {"records_outside": self.outside}

    def _with_edits(self, truth: Truth) -> Truth:
        """Add what the edits were made for: an image's caption, and a caption's image."""
        i2t, t2i = self.i2t.n_edits, self.t2i.n_edits
        asked_texts, asked_images = self.t2i.queries[:t2i], self.i2t.queries[:i2t]
        classes = np.full(t2i, -1)
        if self.pairs.groups is not None:  # what fits one caption of a group fits all of them
            classes = truth.image_class[self.pairs.caption_image[asked_texts]]
        blocks = [] if self.texts is None else self.texts.iter(1024)
        return truth.extended(
            (text for block in blocks for text in block["edit_text"]),
            images=np.concatenate([self.t2i.edits[:t2i], asked_images]),
            texts=np.concatenate([asked_texts, self.i2t.edits[:i2t]]),
            new_classes=classes,
            made_for_text=asked_texts,
            made_for_image=asked_images,
        )


class _Confusions:
    """What each item of one kind, image or caption, was confused with, and the edits that fit that.

    Args:
        as_negative: Records whose false positive is of this kind. Their edits fit their queries.
        as_query: Records whose query is of this kind.
        n_items: How many items of this kind the pairs have.
        n_others: How many of the other kind.
        own_failures: Use records without an edit, and `as_query`, too.
    """

    def __init__(
        self, as_negative: Failures, as_query: Failures, n_items: int, n_others: int, *, own_failures: bool
    ) -> None:
        n = len(as_negative) if own_failures else as_negative.n_edits
        n_own = len(as_query) if own_failures else 0
        self._of_item = Groups(np.concatenate([as_negative.negatives[:n], as_query.queries[:n_own]]), n_items)
        self._others = np.concatenate([as_negative.queries[:n], as_query.negatives[:n_own], [-1]])
        self._edits = np.concatenate([as_negative.edits[:n], np.full(n_own + 1, -1)])
        self._edits_for = Groups(as_negative.queries[: as_negative.n_edits], n_others)
        self._made_edits = as_negative.edits

    def draw(self, items: np.ndarray, chance: np.ndarray, edit_chance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw an item that each of some items was confused with, and an edit that fits it, (n,) rows each.

        The edit is the one of the record, else any that was made for the drawn item.
        """
        record = self._of_item.draw(items, chance)
        others, edits = self._others[record], self._edits[record]
        any_edit = self._made_edits[self._edits_for.draw(others, edit_chance)]
        return others, np.where(edits >= 0, edits, any_edit)


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
    fill = Edits(pairs, records, truth, args.draw_seed, own_failures=args.fill == "paper")
    if args.process_index == 0 and fill.outside:
        logger.warning("%d of %d records name items outside these pairs; left out.", fill.outside, len(records))
    return fill
