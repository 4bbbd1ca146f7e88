"""Grids: for each training pair (anchor), a 3x3 grid filled from the records of its retrieval failures.

For an anchor (I_a, T_a) with the false positives T_hn (a caption, for the query I_a) and I_hn (an image, for T_a):

    slot     1      2           3
    images   I_a    I+(T_hn)    I_hn
    texts    T_a    T_hn        T+(I_hn)

I+(T_hn) is an image that shows what T_hn says; T+(I_hn) is a caption that says what I_hn shows. The anchor's own edits
stay out of slots 2 and 3: they match the anchor, and the loss would push a true pair apart. Slot 2 exists if I_a has a
record, slot 3 if T_a has one. An anchor with neither has no grid.

Off-diagonal cells that are known to be true pairs are masked out of the loss for the same reason. They are common: the
false positive image and caption of an anchor are often a pair themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs, bare_caption
from repair_hf.runtime.options import UserError
from repair_hf.training.draws import uniforms
from repair_hf.training.hyperparameters import Counterparts, Slot1

logger = logging.getLogger(__name__)

SOURCES = ("absent", "anchor", "own_edit", "reciprocal", "other_edit", "annotation")  # origin of a slot's match
ABSENT, ANCHOR, OWN_EDIT, RECIPROCAL, OTHER_EDIT, ANNOTATION = range(6)
COLUMNS = ("record_id", "direction", "q_id", "fp_id", "fp_score", "edit_text", "edit_image")
EDIT = {"t2i": "edit_image", "i2t": "edit_text"}
RECORDS_PER_READ = 1024


class Grids(torch.utils.data.Dataset):
    """A dataset with one row per training caption: the anchor and its grid, as rows of an image and a caption table.

    The image table holds the images of `pairs`, then `edited_images` (None if there are none). The caption table is
    `captions`, those of `pairs` first. A row is requested by (epoch, anchor) and depends on these and `seed` alone: it
    is the same with any number of workers and processes, and after a resume.

    Args:
        pairs: The training pairs.
        records: What `load_records` returns; None trains on the pairs alone. A record without an edit only
            contributes its false positive.
        counterparts: Source of I+(T_hn) and T+(I_hn). `edited`: the edit of the record that mirrors the anchor's (its
            query is T_hn and its false positive I_a; or I_hn and T_a), else of the best-scored other record with that
            query, else the annotation. `reciprocal`: the mirror, else the annotation. `annotation`: no edits.
        slot1: `anchor` keeps the original pair. `mixed` replaces, with equal chance, I_a by the edit of the record
            that gave I_hn, or T_a by the edit of the record that gave T_hn. An edit then meets the false positive that
            it was made from. Without an edit on the chosen side, the original pair stays.
        has_opposites: False leaves out I+(T_hn) and T+(I_hn), so that they are not encoded.
        seed: Seed of the draws.

    Raises:
        UserError: If `records` lack a column, or none of them belongs to `pairs`.
    """

    def __init__(
        self,
        pairs: Pairs,
        records: Dataset | None = None,
        *,
        counterparts: Counterparts = "edited",
        slot1: Slot1 = "anchor",
        has_opposites: bool = True,
        seed: int = 0,
    ) -> None:
        self.anchor_images = np.asarray(pairs.caption_image)  # (M,)
        self.captions: list[str] = pairs.captions["caption"][:]
        self.slot1, self.has_opposites, self.seed, self.has_grids = slot1, has_opposites, seed, records is not None
        self.edited_images: Dataset | None = None
        if records is not None:
            self._index(pairs, records, counterparts)

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
            pairs (images in rows); `sources` (n, 3), numbers of SOURCES. Without records only the first two.
        """
        images = self.anchor_images[anchors]  # (n,)
        drawn = {"anchor_images": images, "anchor_texts": anchors}
        if not self.has_grids:
            return drawn
        chance = [uniforms(self.seed, epochs, anchors, stream) for stream in range(4)]
        i2t = self._i2t.draw(images, chance[0])  # (n,) the record that gives T_hn, or -1
        t2i = self._t2i.draw(anchors, chance[1])  # (n,) the record that gives I_hn, or -1
        grid_images = np.stack([images, self._i2t.opposite[i2t], self._t2i.negatives[t2i]], 1)  # (n, 3)
        grid_texts = np.stack([anchors, self._i2t.negatives[i2t], self._t2i.opposite[t2i]], 1)  # (n, 3)
        sources = np.stack([np.full_like(i2t, ANCHOR), self._i2t.sources[i2t], self._t2i.sources[t2i]], 1)
        annotated = sources[:, 2] == ANNOTATION
        shown = grid_images[annotated, 2]
        picks = (chance[2][annotated] * self._count[shown]).astype(np.int64)
        grid_texts[annotated, 2] = self._by_image[self._start[shown] + picks]
        if self.slot1 == "mixed":
            heads = chance[3] < 0.5
            new_image, new_text = heads & (self._t2i.edits[t2i] >= 0), ~heads & (self._i2t.edits[i2t] >= 0)
            grid_images[new_image, 0] = self._t2i.edits[t2i[new_image]]
            grid_texts[new_text, 0] = self._i2t.edits[i2t[new_text]]
            sources[new_image | new_text, 0] = OWN_EDIT
        matches = self._truth.off_diagonal(grid_images, grid_texts)  # (n, 3, 3)
        # if T_hn is a caption of I_hn, I+(T_hn) and T+(I_hn) match too
        matches[:, 1, 2] |= matches[:, 2, 1]
        if not self.has_opposites:
            matches[:, 1] = matches[:, :, 2] = matches[:, 2, 1] = False  # a negative meets the anchor alone
            grid_images[:, 1] = grid_texts[:, 2] = -1
        return drawn | {"grid_images": grid_images, "grid_texts": grid_texts, "matches": matches, "sources": sources}

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
        for slot, item in ((1, "image"), (2, "caption")) if self.has_opposites else ():
            for source in (RECIPROCAL, OTHER_EDIT, ANNOTATION):
                report[f"{item}_{SOURCES[source]}"] = int((sources[:, slot] == source).sum())
        report["slot1_own_edit"] = int((sources[:, 0] == OWN_EDIT).sum())
        cells = slots * (slots - 1) if self.has_opposites else slots - 1
        return report | {"cells": int(cells.sum()), "cells_known": int(drawn["matches"].sum())}

    def _index(self, pairs: Pairs, records: Dataset, counterparts: Counterparts) -> None:
        if missing := sorted(set(COLUMNS) - set(records.column_names)):
            raise UserError(f"The records lack {missing}; they have {records.column_names}. See `load_records`.")
        n_images, n_captions = len(pairs.images), len(self)
        self._by_image = np.argsort(self.anchor_images, kind="stable")  # (M,) captions grouped by image
        self._count = np.bincount(self.anchor_images, minlength=n_images)  # (N,) captions of each image
        self._start = np.cumsum(self._count) - self._count  # (N,)
        image_rows = {name: row for row, name in enumerate(pairs.images["image_id"][:])}
        caption_rows = {name: row for row, name in enumerate(pairs.captions["caption_id"][:])}
        self._t2i = _Failures(records, "t2i", caption_rows, image_rows, first_edit=n_images)
        self._i2t = _Failures(records, "i2t", image_rows, caption_rows, first_edit=n_captions)
        used = len(self._t2i) + len(self._i2t)
        if used == 0:
            raise UserError(
                f"None of the {len(records)} records names an image and a caption of these pairs. Train on the pairs "
                "(and the split) that the records were mined from."
            )
        if used < len(records):
            logger.warning(
                "%d of %d records name items outside these pairs; left out.", len(records) - used, len(records)
            )
        self._t2i.find_opposites(self._i2t, counterparts)
        self._i2t.find_opposites(self._t2i, counterparts)
        annotated = self._i2t.sources == ANNOTATION  # an image has many captions, drawn each time; a caption one image
        self._i2t.opposite[annotated] = self.anchor_images[self._i2t.negatives[annotated]]
        t2i, i2t = self._t2i, self._i2t
        if t2i.n_edits:
            self.edited_images = records.select(t2i.edited_rows).select_columns("edit_image")
        self.captions += records.select(i2t.edited_rows)["edit_text"][:]
        self._truth = _Truth(
            self.captions,
            np.concatenate([self.anchor_images, t2i.edits[: t2i.n_edits], i2t.queries[: i2t.n_edits]]),
            np.concatenate([np.arange(n_captions), t2i.queries[: t2i.n_edits], i2t.edits[: i2t.n_edits]]),
        )


class _Failures:
    """The records of one direction, those with an edit first, then by descending score.

    The arrays that `draw` indexes have one more element at the end, -1 or ABSENT: the values of record -1, "none".
    """

    def __init__(
        self, records: Dataset, direction: str, query_rows: dict[str, int], fp_rows: dict[str, int], first_edit: int
    ) -> None:
        table = records.select_columns([*COLUMNS[:5]]).to_pandas()
        edits = records.select_columns([EDIT[direction]]).with_format("arrow")  # images: not all of them at once
        blocks = edits.iter(RECORDS_PER_READ)
        table["has_edit"] = [has_edit for block in blocks for has_edit in block[0].is_valid().to_pylist()]
        table = table[table["direction"] == direction].assign(
            q=lambda t: t["q_id"].map(query_rows), fp=lambda t: t["fp_id"].map(fp_rows)
        )
        table = table.dropna(subset=["q", "fp"])
        table = table.sort_values(["has_edit", "fp_score", "record_id"], ascending=[False, False, True])
        self.n_edits = int(table["has_edit"].sum())
        self.edited_rows = table.index.to_numpy()[: self.n_edits]  # (n_edits,) in `records`
        self.queries = table["q"].to_numpy(np.int64)  # (n,)
        self.negatives = np.append(table["fp"].to_numpy(np.int64), -1)  # (n + 1,)
        self.edits = np.full(len(table) + 1, -1)  # (n + 1,) in the table of the edits
        self.edits[: self.n_edits] = first_edit + np.arange(self.n_edits)
        self.opposite = np.full(len(table) + 1, -1)  # (n + 1,) in the other table
        self.sources = np.full(len(table) + 1, ABSENT)  # (n + 1,)
        grouped = np.argsort(self.queries, kind="stable")  # (n,) by query, best first
        self._keys, self._grouped = self.queries[grouped], np.append(grouped, -1)

    def __len__(self) -> int:
        return len(self.queries)

    def draw(self, queries: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Draw one of each query's records uniformly; -1 for none."""
        start, stop = np.searchsorted(self._keys, queries), np.searchsorted(self._keys, queries, side="right")
        picks = start + (chance * (stop - start)).astype(np.int64)
        return self._grouped[np.where(stop > start, picks, -1)]

    def find(self, queries: np.ndarray, negatives: np.ndarray) -> np.ndarray:
        """Return the record of each query with the given false positive; -1 for none."""
        pairs = zip(self.queries.tolist()[::-1], self.negatives[:-1].tolist()[::-1], strict=True)
        known = {pair: len(self) - 1 - place for place, pair in enumerate(pairs)}  # the best-scored of duplicates
        return np.array([known.get(pair, -1) for pair in zip(queries.tolist(), negatives.tolist(), strict=True)], int)

    def find_opposites(self, others: _Failures, counterparts: Counterparts) -> None:
        """Choose for each record an edit of the other direction that matches its false positive."""
        queries, negatives = self.negatives[:-1], self.queries
        best = others.draw(queries, np.zeros(len(queries)))  # with an edit, if possible
        found = others.find(queries, negatives), best
        mirror, other = (np.where(others.edits[places] >= 0, places, -1) for places in found)
        if counterparts != "edited":
            other = np.full_like(other, -1)
        if counterparts == "annotation":
            mirror = np.full_like(mirror, -1)
        self.opposite[:-1] = others.edits[np.where(mirror >= 0, mirror, other)]
        self.sources[:-1] = np.select([mirror >= 0, other >= 0], [RECIPROCAL, OTHER_EDIT], ANNOTATION)


class _Truth:
    """The images and captions known to match: by annotation, by an edit's own query, and by equal wording."""

    def __init__(self, captions: Sequence[str], images: np.ndarray, texts: np.ndarray) -> None:
        number: dict[str, int] = {}
        self._wording = np.array([number.setdefault(bare_caption(text), len(number)) for text in captions])
        self._n = len(number)
        self._keys = np.unique(images * self._n + self._wording[texts])  # sorted

    def off_diagonal(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Map (n, 3) images and texts, -1 if absent, to (n, 3, 3) matches outside the diagonal, images in rows."""
        keys = images[:, :, None] * self._n + self._wording[texts][:, None, :]
        known = self._keys[np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)] == keys
        exist = (images >= 0)[:, :, None] & (texts >= 0)[:, None, :]
        return known & exist & ~np.eye(images.shape[1], dtype=bool)
