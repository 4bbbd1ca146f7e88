"""Near misses: failures of a retriever in a split that nothing was trained on, as a test of other retrievers.

The cases are records. Each asks two questions about its query, in each direction:

| key | share of queries that are nearer |
|---|---|
| `near_misses_i2t_truth`, `near_misses_t2i_truth` | to the ground truth than to the false positive |
| `near_misses_i2t_edit`, `near_misses_t2i_edit` | to the edit than to the false positive that it was made from |

A tie is wrong. The first question is about the ground truth of the record: of an image, one of its captions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset

from repair_hf.evaluation.cases import Case, Cases, Metric
from repair_hf.evaluation.pictures import EncodedImages, Photographs
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.dataset import Place, load_records
from repair_hf.records.images import lacks_images, restore_images
from repair_hf.runtime.options import UserError

NAME = "near_misses"
MEASURES = ("truth", "edit")
ROLES = ("gt", "fp", "edit")  # of the candidates of a case, in this order


def load_near_misses(records: Place | Sequence[Place], pairs: Pairs | None = None) -> list[Cases]:
    """Make the cases of records, for each direction that they have.

    Args:
        records: Folders, Hub ids or datasets, as for `load_records`.
        pairs: The pairs that they were made from, for records that were saved without their source images.

    Raises:
        UserError: If there are no records, or an image is missing.

    Example:
        >>> sets = load_near_misses("runs/near-misses")
        >>> [(cases.benchmark, len(cases)) for cases in sets]
        [('near_misses_i2t', 2460), ('near_misses_t2i', 3158)]
    """
    table = load_records(records)
    if lacks_images(table):
        if pairs is None:
            raise UserError("The records were saved without their source images. Give the pairs that they are from.")
        table = restore_images(table, pairs)
    directions = np.asarray(table["direction"])
    return [
        _cases(table.select(np.flatnonzero(directions == direction)), direction)
        for direction in ("i2t", "t2i")
        if (directions == direction).any()
    ]


def _cases(records: Dataset, direction: str) -> Cases:
    if direction == "i2t":  # one picture, three captions
        columns, texts, drawn = ["q_image"], [f"{role}_text" for role in ROLES], "q_id"
    else:
        columns, texts, drawn = [f"{role}_image" for role in ROLES], ["q_text"], "gt_id"
    pictures, picture = _pictures(records, columns)
    rows = records.select_columns(["record_id", drawn, *texts]).to_list()
    cases = [
        Case(row["record_id"], "all", tuple(own), tuple(row[name] for name in texts), row[drawn])
        for row, own in zip(rows, picture, strict=True)
    ]
    metrics = tuple(Metric(measure, measure) for measure in MEASURES)
    return Cases(f"{NAME}_{direction}", cases, Photographs(pictures), _judge, metrics)


def _judge(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return by how much each query is nearer to the truth, and to the edit, than to the false positive."""
    gt, fp, edit = scores.reshape(len(scores), 3).T  # (n, 1, 3) or (n, 3, 1)
    return {"truth": gt - fp, "edit": edit - fp}


def _pictures(records: Dataset, columns: Sequence[str]) -> tuple[EncodedImages, list[list[int]]]:
    """Return the distinct images of some columns, and the images of each record as rows of these."""
    files = EncodedImages(records, columns)
    first: dict[str, int] = {}  # by content, not by id: records may be of several data sets
    places = [first.setdefault(_key(files[place]), place) for place in range(len(files))]
    rows = {place: row for row, place in enumerate(first.values())}
    own = np.array([rows[place] for place in places]).reshape(-1, len(columns))
    return EncodedImages(records, columns, list(rows)), own.tolist()


def _key(file: bytes | Path) -> str:
    return hashlib.sha256(file).hexdigest() if isinstance(file, bytes) else str(file)
