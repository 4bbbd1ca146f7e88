"""A user's own failures: a table of queries and wrong answers, from click logs, tickets or lists of negatives."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset

from repair_hf.mining.false_positives import FEATURES
from repair_hf.mining.scores import exact_scores, quietly
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.problems import Problems, quoted
from repair_hf.pairs.sources import folder_of, name_in
from repair_hf.pairs.tables import SEPARATED, load_table
from repair_hf.pairs.truth import Truth
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

COLUMNS = ("query", "wrong")
QUERIES_AT_ONCE = 64
SHOWN = 10  # lines in a message


def find_wrong(
    file: str, pairs: Pairs, images: np.ndarray, texts: np.ndarray, positives: Truth
) -> tuple[Dataset, dict[str, int]]:
    """Score and rank the wrong answers that a table names, as `mine_false_positives` does those that it finds.

    Args:
        file: A table with the columns `query` and `wrong`: one of them a caption, by its text or id, the other an
            image, by its id or path.
        pairs: What they name.
        images: Unit vectors, (N, D) float32.
        texts: Unit vectors, (M, D) float32.
        positives: Known matches; a row with one is left out.

    Returns:
        The failures; and how many rows the table has, how many name nothing in the pairs, and how many are matches.

    Raises:
        UserError: If the table cannot be read, lacks a column, or no row is left.
    """
    table = load_table(Path(file), Problems())
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise UserError(f"{file} lacks the columns {missing}; it has {table.column_names}. Rename its columns.")
    first_line = 2 if Path(file).suffix.lower() in SEPARATED else 1
    names, unknown = _Names(pairs), []
    rows: dict[tuple[str, int, int], None] = {}  # direction, query, wrong answer
    for line, (query, wrong) in enumerate(zip(*(table[name][:] for name in COLUMNS), strict=True), first_line):
        row = names.find(query, wrong)
        if row is None:
            unknown.append(f"line {line} ({quoted(str(query))}, {quoted(str(wrong))})")
        else:
            rows[row] = None
    if unknown:
        listed = "; ".join(unknown[:SHOWN]) + "; ..." * (len(unknown) > SHOWN)
        logger.warning("%s: %d rows do not name a caption and an image of the pairs: %s.", file, len(unknown), listed)
    parts, matches = [], 0
    for direction in ("t2i", "i2t"):
        own = np.array([row[1:] for row in rows if row[0] == direction], np.int64).reshape(-1, 2)
        of_images, of_texts = (own[:, 1], own[:, 0]) if direction == "t2i" else (own[:, 0], own[:, 1])
        is_match = positives.match(of_images, of_texts)
        matches += int(is_match.sum())
        parts.append(_rank(direction, own[~is_match], images, texts, positives))
    failures = Dataset(pa.concat_tables(parts))
    if not len(failures):
        raise UserError(
            f"{file} names no wrong answer: of {len(table):,} rows {len(unknown):,} name nothing in the pairs, and "
            f"{matches:,} are known matches. Give texts, ids or paths of these pairs."
        )
    return failures, {"rows": len(table), "unknown": len(unknown), "known_matches": matches}


class _Names:
    """Images by id and path, and captions by id and wording."""

    def __init__(self, pairs: Pairs) -> None:
        self.folder = folder_of(pairs.source)
        self.images = {name: row for row, name in enumerate(pairs.images["image_id"][:])}
        self.captions = {name: row for row, name in enumerate(pairs.captions["caption_id"][:])}
        self.texts: dict[str, int] = {}
        for row, text in enumerate(pairs.captions["caption"][:]):
            self.texts.setdefault(bare_caption(text), row)

    def find(self, query: Any, wrong: Any) -> tuple[str, int, int] | None:
        """Return the direction and both rows, if one cell names an image and the other a caption."""
        if not isinstance(query, str) or not isinstance(wrong, str):
            return None
        image, caption = self._image(wrong), self._caption(query)
        if image is not None and caption is not None:
            return "t2i", caption, image
        image, caption = self._image(query), self._caption(wrong)
        return None if image is None or caption is None else ("i2t", image, caption)

    def _image(self, name: str) -> int | None:
        found = self.images.get(name)
        return self.images.get(name_in(self.folder, name)) if found is None else found

    def _caption(self, text: str) -> int | None:
        found = self.captions.get(text)
        return self.texts.get(bare_caption(text)) if found is None else found


@quietly()
def _rank(direction: str, rows: np.ndarray, images: np.ndarray, texts: np.ndarray, positives: Truth) -> pa.Table:
    """Rank each wrong answer, and the best positive of its query, among all candidates, as `rank_by_sorting` defines.

    Shape:
        rows: (R, 2) query and wrong answer.
    """
    queries, of_query = np.unique(rows[:, 0], return_inverse=True)
    vectors, candidates = (texts, images) if direction == "t2i" else (images, texts)
    found: list[dict[str, Any]] = []
    everything = np.arange(len(candidates))
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        block = queries[start : start + QUERIES_AT_ONCE]  # (B,)
        shape = len(block), len(candidates)
        pairs = np.repeat(block, shape[1]), np.tile(everything, shape[0])
        scores = exact_scores(vectors, pairs[0], candidates, pairs[1]).reshape(shape)  # (B, C)
        both = (everything, block) if direction == "t2i" else (block, everything)
        known = positives.known(*map(torch.from_numpy, both)).numpy()
        is_positive = known.T if direction == "t2i" else known  # (B, C)
        for place in np.flatnonzero((of_query >= start) & (of_query < start + len(block))):
            own = of_query[place] - start
            found.append(_ranked(int(rows[place, 0]), int(rows[place, 1]), scores[own], is_positive[own]))
    found.sort(key=lambda row: (row["q"], row["fp_rank"]))
    return pa.Table.from_pylist([{"direction": direction} | row for row in found], FEATURES.arrow_schema)


def _ranked(query: int, wrong: int, scores: np.ndarray, is_positive: np.ndarray) -> dict[str, Any]:
    """Return a failure of these scores, (C,). Of equal scores, non-positives rank first, then the lower index."""
    gt = int(np.where(is_positive, scores, -np.inf).argmax())
    ties = (scores == scores[wrong]) & ~is_positive
    return {
        "q": query,
        "gt": gt,
        "fp": wrong,
        "fp_score": float(scores[wrong]),
        "fp_rank": 1 + int((scores > scores[wrong]).sum() + ties[:wrong].sum()),
        "gt_score": float(scores[gt]),
        "gt_rank": 1 + int((scores > scores[gt]).sum() + ((scores == scores[gt]) & ~is_positive).sum()),
    }
