"""Failures that people reported: match a table of query, right and wrong item with the pairs, then score and rank."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets

from repair_hf.mining.false_positives import FEATURES
from repair_hf.mining.ranking import are_answers, rank_pairs
from repair_hf.mining.scores import quietly
from repair_hf.pairs.cells import undecoded
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import TABLES, is_table, load_table
from repair_hf.pairs.truth import Truth
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.options import UserError

COLUMNS = ("query", "right", "wrong")
Row = dict[str, Any]


class Unmatched(ValueError):
    """Why a row cannot be matched with the pairs."""


def read_report(file: str, pairs: Pairs) -> tuple[list[Row], list[Row]]:
    """Read a table with the columns `query`, `right` and `wrong`, and look its items up in the pairs.

    The query is a caption, right and wrong are images; or the other way round. A caption goes by its id or text, an
    image by its id, path or file name.

    Returns:
        The matched rows: `row` (from 1) and cells of the table, `direction`, and `q`, `gt` and `fp`, rows of the
        pairs. The others: `row`, cells and a `reason`.

    Raises:
        UserError: If there is no such table, it lacks a column, or no row can be matched.
    """
    if not is_table(file):
        raise UserError(f"`reported` must be a table ({', '.join(TABLES)}) with the columns {COLUMNS}, got {file}.")
    problems, names = Problems(), _Names(pairs)
    table = load_table(Path(file), problems)
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise UserError(f"{file} lacks the columns {missing}; it has {table.column_names}.")
    matched: list[Row] = []
    unmatched: list[Row] = [{"reason": str(problem)} for problem in problems.found()]
    before: dict[tuple, int] = {}
    for number, cells in enumerate(table.select_columns(list(COLUMNS)), 1):
        row = {"row": number} | cells
        try:
            found = names.failure(*("" if cells[name] is None else str(cells[name]).strip() for name in COLUMNS))
            if (first := before.setdefault(tuple(found.values()), number)) < number:
                raise Unmatched(f"row {first} says the same")
            matched.append(row | found)
        except Unmatched as error:
            unmatched.append(row | {"reason": str(error)})
    _require(matched, unmatched, file)
    return matched, unmatched


@quietly()
def score_report(
    matched: list[Row], image_embeddings: np.ndarray, text_embeddings: np.ndarray, positives: Truth
) -> tuple[Dataset, list[Row]]:
    """Score and rank the matched rows of a report.

    Returns:
        Failures, with the columns and the order of `mine_false_positives`; and the rows, with a `reason`, whose wrong
        item is known to answer the query.

    Raises:
        UserError: If that leaves no failure.
    """
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    parts, left_out = [], []
    for direction in ("t2i", "i2t"):
        ours = [row for row in matched if row["direction"] == direction]
        q, gt, fp = (np.array([row[name] for row in ours], np.int64) for name in ("q", "gt", "fp"))
        is_right = are_answers(positives, direction, q, fp)
        reason = {"reason": "`wrong` is known to answer the query"}
        left_out += [row | reason for row, is_known in zip(ours, is_right, strict=True) if is_known]
        q, gt, fp = q[~is_right], gt[~is_right], fp[~is_right]
        columns: dict[str, Any] = {"direction": [direction] * len(q), "q": q, "gt": gt, "fp": fp}
        for role, item in (("fp", fp), ("gt", gt)):
            score, rank = rank_pairs(direction, images, texts, positives, q, item, is_answer=role == "gt")
            columns |= {f"{role}_score": score, f"{role}_rank": rank}
        parts.append(Dataset.from_dict(columns, features=FEATURES).select(np.lexsort((columns["fp_rank"], q))))
    failures = concatenate_datasets(parts)
    _require(failures, left_out, "the report")
    return failures, [{name: row[name] for name in ("row", *COLUMNS, "reason")} for row in left_out]


def _require(found: Any, left_out: list[Row], what: str) -> None:
    if not len(found):
        first = f", the first because {left_out[0]['reason']}" if left_out else ""
        raise UserError(f"No row of {what} can be used{first}. Name items of --pairs by id, path or caption text.")


class _Names:
    """The items of pairs by what people call them, the surest name first."""

    def __init__(self, pairs: Pairs) -> None:
        self.owner: list[int] = pairs.caption_image.tolist()
        ids: list[str] = pairs.images["image_id"][:]
        cells = undecoded(pairs.images, "image").iter(256)
        paths = [cell["path"] or "" for some in cells for cell in some["image"]]
        files = [os.path.basename(path or image_id) for image_id, path in zip(ids, paths, strict=True)]
        self.images = [_rows_by(names) for names in (ids, paths, files)]
        captions = pairs.captions["caption"][:]
        self.captions = [_rows_by(names) for names in (pairs.captions["caption_id"][:], map(bare_caption, captions))]

    def failure(self, query: str, right: str, wrong: str) -> Row:
        """Return direction, q, gt and fp.

        Raises:
            Unmatched: If an item cannot be found, or the items do not make a failure.
        """
        if captions := self._captions(query):
            gt, fp = (self._image(role, name) for role, name in (("right", right), ("wrong", wrong)))
            found = {"direction": "t2i", "q": self._of_image(captions, gt), "gt": gt, "fp": fp}
        else:
            q = self._image("query", query)
            both = [(role, name, self._captions(name)) for role, name in (("right", right), ("wrong", wrong))]
            if lost := [f"`{role}` {ascii(name)}" for role, name, found in both if not found]:
                raise Unmatched(f"{lost[0]} is not a caption of the pairs")
            gt, fp = (self._of_image(found, q) for _, _, found in both)
            found = {"direction": "i2t", "q": q, "gt": gt, "fp": fp}
        if gt == fp:
            raise Unmatched("`right` and `wrong` are the same")
        return found

    def _captions(self, name: str) -> list[int]:
        by_id, by_text = self.captions
        return by_id.get(name) or by_text.get(bare_caption(name)) or []

    def _image(self, role: str, name: str) -> int:
        keys = (name, os.path.abspath(name), os.path.basename(name))
        found = next((rows[key] for rows, key in zip(self.images, keys, strict=True) if key in rows), [])
        if len(found) != 1:
            kinds = "image or caption" if role == "query" else "image"
            what = f"the file name of {len(found)} images" if found else f"not an {kinds} of the pairs"
            raise Unmatched(f"`{role}` {ascii(name)} is {what}")
        return found[0]

    def _of_image(self, captions: list[int], image: int) -> int:
        """Return the caption of an image among captions of equal text; the first if there is none."""
        return next((caption for caption in captions if self.owner[caption] == image), captions[0])


def _rows_by(names: Iterable[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    return rows
