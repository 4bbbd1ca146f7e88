"""Grids: for each training pair (anchor), a 3x3 grid filled from the records of retrieval failures.

For an anchor (I_a, T_a), a caption T_hn that I_a was confused with, and an image I_hn that T_a was confused with:

    slot     1      2           3
    images   I_a    I+(T_hn)    I_hn
    texts    T_a    T_hn        T+(I_hn)

I+(T_hn) is an image that shows what T_hn says; T+(I_hn) is a caption that says what I_hn shows. Two kinds of records
fill slots 2 and 3:

- Made from the anchor: a record whose false positive is I_a (or T_a) gives its query as T_hn (or I_hn) and its edit as
  I+ (or T+). The edit stands in one grid with the item that it was made from.
- The anchor's own failures: a record whose query is I_a (or T_a) gives its false positive as T_hn (or I_hn). Its own
  edit matches the anchor and stays out of slots 2 and 3: the loss would push a true pair apart. I+ or T+ is the edit
  of another record, one that asks for T_hn (or I_hn), else the annotation.

Slot 2 exists if a record of either kind names I_a, slot 3 if one names T_a. An anchor with neither has no grid.
Off-diagonal cells that are known to be true pairs are masked out of the loss. They are common: the false positive
image and caption of an anchor are often a pair themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.draws import uniforms
from repair_hf.training.grid_records import Failures, Groups, index_failures, read_table, share_reachable
from repair_hf.training.grid_truth import Truth
from repair_hf.training.hyperparameters import GridRule

logger = logging.getLogger(__name__)

SOURCES = ("absent", "anchor", "own_edit", "reciprocal", "other_edit", "annotation")  # origin of a slot's match
ABSENT, ANCHOR, OWN_EDIT, RECIPROCAL, OTHER_EDIT, ANNOTATION = range(6)
# streams of random numbers; slot 2 takes the first of two
RECORD, ANNOTATED, HEADS, KIND, COUNTERPART = (0, 1), 2, 3, (4, 5), (6, 7)


class Grids(torch.utils.data.Dataset):
    """A dataset with one row per training caption: the anchor and its grid, as rows of an image and a caption table.

    The image table holds the images of `pairs`, then `edited_images` (None if there are none). The caption table is
    `captions`, those of `pairs` first. A row is requested by (epoch, anchor) and depends on these and `seed` alone: it
    is the same with any number of workers and processes, and after a resume.

    Args:
        pairs: The training pairs.
        records: What `load_records` returns; None trains on the pairs alone. A record without an edit only
            contributes its false positive.
        seed: Seed of the draws.
        known: Rows of further images and captions of `pairs` that are known to match, (n,) each.
        rule: Options of `GridRule` by name. With `slot1` mixed and equal chance, I_a is replaced by the edit of the
            own failure that gave I_hn, or T_a by the edit of the one that gave T_hn, if there is one: an edit meets
            the false positive that it was made from.

    Raises:
        UserError: If `records` lack a column, or none of them belongs to `pairs`.
    """

    def __init__(
        self,
        pairs: Pairs,
        records: Dataset | None = None,
        *,
        seed: int = 0,
        known: tuple[np.ndarray, np.ndarray] | None = None,
        **rule: Any,
    ) -> None:
        self.anchor_images = np.asarray(pairs.caption_image)  # (M,)
        self.captions: list[str] = pairs.captions["caption"][:]
        self.rule, self.seed, self.has_grids = GridRule(**rule), seed, records is not None
        self.edited_images: Dataset | None = None
        self.n_images, self.n_captions = len(pairs.images), len(self.captions)
        self.has_groups = pairs.groups is not None
        if records is not None:
            nothing = np.empty(0, np.int64)
            self._index(pairs, records, *(known or (nothing, nothing)))
        elif self.has_groups:
            self._truth = Truth(self.captions, self.anchor_images, np.arange(self.n_captions), pairs.groups)

    def __len__(self) -> int:
        return len(self.anchor_images)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, np.ndarray]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[dict[str, np.ndarray]]:
        """Draw many rows at once; torch's loader calls it with a batch's keys."""
        drawn = self.draw(*np.array(keys).T)
        return [dict(zip(drawn, row, strict=True)) for row in zip(*drawn.values(), strict=True)]

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> dict[str, np.ndarray]:
        """Draw anchors and their grids.

        Shape:
            epochs, anchors: (n,). Returns rows of the tables, -1 where absent: `anchor_images`, `anchor_texts` (n,),
            `grid_images` and `grid_texts` (n, 3); `matches` (n, 3, 3) bool, the off-diagonal cells known to be true
            pairs (images in rows); `sources` (n, 3), numbers of SOURCES. Without records only the first two. With
            groups, or pairs for the global batch, also what `_global_pairs` returns.
        """
        images = self.anchor_images[anchors]  # (n,)
        drawn = {"anchor_images": images, "anchor_texts": anchors}
        if not self.has_grids:
            return drawn | self._global_pairs(drawn)
        rule, chance = self.rule, _Chance(self.seed, epochs, anchors)
        i2t, slot2 = self._fill(self._i2t, self._t2i, images, chance, 0)
        t2i, slot3 = self._fill(self._t2i, self._i2t, anchors, chance, 1)
        grid_images = np.stack([images, slot2[1], slot3[0]], 1)  # (n, 3)
        grid_texts = np.stack([anchors, slot2[0], slot3[1]], 1)  # (n, 3)
        sources = np.stack([np.full_like(images, ANCHOR), slot2[2], slot3[2]], 1)
        annotated = sources[:, 1] == ANNOTATION  # an image has many captions, drawn each time; a caption has one image
        grid_images[annotated, 1] = self.anchor_images[grid_texts[annotated, 1]]
        annotated = sources[:, 2] == ANNOTATION
        grid_texts[annotated, 2] = self._captions_of.draw(grid_images[annotated, 2], chance(ANNOTATED)[annotated])
        if rule.slot1 == "mixed":
            heads = chance(HEADS) < 0.5
            new_image, new_text = heads & (self._t2i.edits[t2i] >= 0), ~heads & (self._i2t.edits[i2t] >= 0)
            grid_images[new_image, 0] = self._t2i.edits[t2i[new_image]]
            grid_texts[new_text, 0] = self._i2t.edits[i2t[new_text]]
            sources[new_image | new_text, 0] = OWN_EDIT
        matches = self._truth.off_diagonal(grid_images, grid_texts)  # (n, 3, 3)
        # if T_hn is a caption of I_hn, I+(T_hn) and T+(I_hn) match too
        matches[:, 1, 2] |= matches[:, 2, 1]
        if not rule.has_opposites:
            matches[:, 1] = matches[:, :, 2] = matches[:, 2, 1] = False  # a negative meets the anchor alone
            grid_images[:, 1] = grid_texts[:, 2] = -1
        drawn |= {"grid_images": grid_images, "grid_texts": grid_texts, "matches": matches, "sources": sources}
        return drawn | self._global_pairs(drawn)

    def neighbours(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return each anchor's false positives in an epoch: captions T_hn (M,) and images I_hn (M,), -1 for none."""
        anchors = np.arange(len(self))
        if not self.has_grids:
            return np.full_like(anchors, -1), np.full_like(anchors, -1)
        drawn = self.draw(np.full_like(anchors, epoch), anchors)
        return drawn["grid_texts"][:, 1], drawn["grid_images"][:, 2]

    def report(self) -> dict[str, int]:
        """Count the parts of the first epoch's grids.

        Returns:
            `anchors`, and how many have 3, 2 and 0 slots; the sources of the items opposite the false positives
            (`image_*` in slot 2, `caption_*` in slot 3), if there are any; how many grids have an own edit in slot 1;
            the off-diagonal cells, and how many of them are known to be true pairs (`cells_known`).
        """
        anchors = np.arange(len(self))
        if not self.has_grids:
            return {"anchors": len(self), "grids_3": 0, "grids_2": 0, "grids_0": len(self)}
        drawn = self.draw(np.zeros_like(anchors), anchors)
        sources, slots = drawn["sources"], (drawn["sources"] != ABSENT).sum(1)
        report = {"anchors": len(self)}
        report |= {f"grids_{name}": int((slots == n).sum()) for name, n in (("3", 3), ("2", 2), ("0", 1))}
        for slot, item in ((1, "image"), (2, "caption")) if self.rule.has_opposites else ():
            for source in (RECIPROCAL, OTHER_EDIT, ANNOTATION):
                report[f"{item}_{SOURCES[source]}"] = int((sources[:, slot] == source).sum())
        report["slot1_own_edit"] = int((sources[:, 0] == OWN_EDIT).sum())
        cells = slots * (slots - 1) if self.rule.has_opposites else slots - 1
        return report | {"cells": int(cells.sum()), "cells_known": int(drawn["matches"].sum())}

    def edits_reachable(self, rule: GridRule | None = None) -> dict[str, float]:
        """Return by direction the share of edits that can be encoded in some epoch, under another `rule` if given.

        Edits of records outside the pairs do not count; a direction without edits is absent.
        """
        if not self.has_grids:
            return {}
        return share_reachable(self._i2t, self._t2i, rule or self.rule)

    def samples_encoded(self, keys: Iterable[tuple[np.ndarray, np.ndarray]]) -> dict[str, int]:
        """Count by direction the edits that are encoded at least once in the rows of (epochs, anchors), (n,) each."""
        if not self.has_grids:
            return {}
        seen = {"i2t": np.zeros(self._i2t.n_edits, bool), "t2i": np.zeros(self._t2i.n_edits, bool)}
        for epochs, anchors in keys:
            drawn = self.draw(epochs, anchors)
            for direction, name, first in (
                ("i2t", "grid_texts", self.n_captions),
                ("t2i", "grid_images", self.n_images),
            ):
                seen[direction][drawn[name][drawn[name] >= first] - first] = True
        return {direction: int(some.sum()) for direction, some in seen.items() if len(some)}

    def _fill(
        self, own: Failures, others: Failures, items: np.ndarray, chance: _Chance, side: int
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Fill slot 2 (side 0, items are the anchors' images) or 3 (side 1, captions).

        Shape:
            items: (n,). Returns the own failures that were drawn (n,), -1 for none; and the false positives, the edits
            opposite them, -1 for none or an annotation, and the sources, (n,) each.
        """
        rule, nobody, record = self.rule, np.full_like(items, -1), chance(RECORD[side])
        failure = own.by_query.draw(items, record) if rule.has_own_failures else nobody
        made = others.edits_by_negative.draw(items, record) if rule.has_made_from else nobody
        if rule.has_own_failures and rule.has_made_from:
            is_own = (made < 0) | ((failure >= 0) & (chance(KIND[side]) < rule.own_failures_share))
            failure, made = np.where(is_own, failure, -1), np.where(is_own, -1, made)
        negatives = np.where(made >= 0, others.queries[made], own.negatives[failure])
        edit = self._counterparts[side][failure]  # a record of the other direction
        if rule.draws_counterparts:
            edit = others.edits_by_query.draw(own.negatives[failure], chance(COUNTERPART[side]))
        if rule.uses_edits:
            edit = np.where(made >= 0, made, edit)
        sources = np.select(
            [negatives < 0, edit < 0, others.negatives[edit] == items], [ABSENT, ANNOTATION, RECIPROCAL], OTHER_EDIT
        )
        return failure, (negatives, others.edits[edit], sources)

    def _global_pairs(self, drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Choose the slots that are pairs of the global batch too, and what is known to match in it.

        Shape:
            `pair_images`, `pair_texts` (n, 3), rows of the tables, -1 where absent; `wordings` (n, 4), numbers of the
            captions of the anchor and of these pairs; `answers` (n, 4, K), the wordings that their images match.
            Without such pairs, data with groups have the anchor's alone: (n, 1) and (n, 1, K).
        """
        wanted, sources = self.rule.negatives, drawn.get("sources")
        if sources is None or wanted not in ("grid+captions", "grid+edits", "batch"):
            anchors = drawn["anchor_images"][:, None], drawn["anchor_texts"][:, None]
            return self._known(*anchors) if self.has_groups else {}
        is_pair = np.isin(sources, (OWN_EDIT, RECIPROCAL, OTHER_EDIT))
        if wanted == "batch":  # the annotations opposite a false positive too
            is_pair = (sources != ABSENT) & (np.arange(3) > 0)
        elif wanted == "grid+captions":
            is_pair &= drawn["grid_texts"] >= self.n_captions
        images, texts = (np.where(is_pair, drawn[f"grid_{kind}"], -1) for kind in ("images", "texts"))
        every_image, every_text = (
            np.concatenate([drawn[f"anchor_{kind}"][:, None], some], 1)
            for kind, some in (("images", images), ("texts", texts))
        )
        return {"pair_images": images, "pair_texts": texts} | self._known(every_image, every_text)

    def _known(self, images: np.ndarray, texts: np.ndarray) -> dict[str, np.ndarray]:
        return {"wordings": self._truth.wordings(texts), "answers": self._truth.answers(images)}

    def _index(self, pairs: Pairs, records: Dataset, images: np.ndarray, texts: np.ndarray) -> None:
        table = read_table(records)
        image_rows = {name: row for row, name in enumerate(pairs.images["image_id"][:])}
        caption_rows = {name: row for row, name in enumerate(pairs.captions["caption_id"][:])}
        self._i2t, self._t2i = i2t, t2i = index_failures(table, image_rows, caption_rows)
        self._counterparts = i2t.counterparts(t2i, self.rule), t2i.counterparts(i2t, self.rule)
        used = len(t2i) + len(i2t)
        if used == 0:
            raise UserError(
                f"None of the {len(records)} records names an image and a caption of these pairs. Train on the pairs "
                "(and the split) that the records were mined from."
            )
        if used < len(records):
            logger.warning(
                "%d of %d records name items outside these pairs; left out.", len(records) - used, len(records)
            )
        self._captions_of = Groups(self.anchor_images, self.n_images)
        if t2i.n_edits:
            self.edited_images = records.select(t2i.edited_rows).select_columns("edit_image")
        self.captions += records.select(i2t.edited_rows)["edit_text"][:]
        asked_for = t2i.queries[: t2i.n_edits]
        self._truth = Truth(
            self.captions,
            np.concatenate([self.anchor_images, t2i.edits[: t2i.n_edits], i2t.queries[: i2t.n_edits], images]),
            np.concatenate([np.arange(self.n_captions), asked_for, i2t.edits[: i2t.n_edits], texts]),
            None if pairs.groups is None else np.append(pairs.groups, pairs.groups[self.anchor_images[asked_for]]),
        )


class _Chance:
    """Uniform numbers of a draw by their stream, (n,) each."""

    def __init__(self, seed: int, epochs: np.ndarray, anchors: np.ndarray) -> None:
        self._of = seed, epochs, anchors

    def __call__(self, stream: int) -> np.ndarray:
        return uniforms(*self._of, stream)
