"""Read a contrast set, as `repair-hf contrast` writes it, and judge it.

A row asks two questions of each of its pictures, and of each of its captions:

| key | share of questions that are answered rightly | guessing |
|---|---|---|
| `contrast_caption` | a picture is nearer to its own caption than to the other one | 50% |
| `contrast_picture` | a caption is nearer to its own picture than to the other one | 50% |
| `contrast_text`, `contrast_image` | both pictures, or both captions, are answered rightly, as in Winoground | 25% |
| `contrast_group` | all four are answered rightly | 17% |
| `contrast_caption_Count`, ... | the same for rows in which a detail of this kind is changed | 50% |

A tie is wrong. With two pictures a retriever that ignores them, or the captions, gets 50% and no more: what it prefers
is right once and wrong once. A row of one picture gives `contrast_caption` alone, and there it may prefer a wording.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from datasets import Dataset

from repair_hf.evaluation.benchmark_metrics import judge_winoground
from repair_hf.evaluation.cases import Case, Cases, Metric
from repair_hf.evaluation.pictures import EncodedImages, Photographs, columns_of, load_test_split
from repair_hf.records.columns import KINDS
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import refuse_unfinished

NAME = "contrast"
NAMES = ("id", "kind", "image_id")  # columns of texts beside the captions
SCORES = ("contrast_caption", "contrast_picture")  # guessing gives half
TWO = ("image_0", "image_1"), ("caption_0", "caption_1")
ONE = ("image",), ("caption", "negative_caption")


def load_contrast(source: str) -> Cases:
    """Make the cases of a contrast set: two for each row of two pictures, one for a row of one.

    Args:
        source: Folder of `repair-hf contrast`, or a dataset on the Hub with its columns.

    Raises:
        UserError: If it cannot be loaded, or is no contrast set.

    Example:
        >>> cases = load_contrast("runs/contrast")
        >>> len(cases), cases.metrics[0].name
        (2000, 'caption')
    """
    refuse_unfinished(source)
    dataset = load_test_split(source)
    images, captions = TWO if TWO[0][0] in dataset.column_names else ONE
    rows = columns_of(dataset, source, images, (*captions, *NAMES))
    others = sorted(set(rows["kind"]) - set(KINDS))
    if others:
        raise UserError(
            f"`contrast` {source} is no contrast set: its kinds of changed detail are {', '.join(others[:3])}. Give "
            "the folder of `repair-hf contrast`."
        )
    cases = list(chain.from_iterable(_cases(rows.remove_columns(list(images)), captions, len(images))))
    measures = ("caption", "picture") if len(images) > 1 else ("caption",)
    metrics = [Metric(name, name) for name in (*measures, *(("text", "image", "group") if len(images) > 1 else ()))]
    kinds = [kind for kind in KINDS if kind in rows["kind"]]
    metrics += [Metric(f"{name}_{kind}", name, (kind,)) for name in measures for kind in kinds]
    pictures = Photographs(EncodedImages(rows, images))
    return Cases(NAME, cases, pictures, judge_two if len(images) > 1 else judge_one, tuple(metrics))


def judge_one(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return by how much a picture is nearer to its own caption; `scores` are (n, 1, 2)."""
    return {"caption": scores[:, 0, 0] - scores[:, 0, 1]}


def judge_two(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return the margins of the first picture and of the first caption, and those of Winoground; (n, 2, 2) scores."""
    true = scores[:, 0, 0]
    return {"caption": true - scores[:, 0, 1], "picture": true - scores[:, 1, 0], **judge_winoground(scores)}


def _cases(rows: Dataset, captions: tuple[str, ...], pictures: int) -> list[list[Case]]:
    """Return the cases of each row: the second one asks from the side of the changed pair."""
    cases = []
    for number, row in enumerate(rows.to_list()):
        texts = tuple(row[name] for name in captions)
        places = tuple(range(number * pictures, (number + 1) * pictures))
        first = Case(row["id"], row["kind"], places, texts, row["image_id"])
        second = Case(f"{row['id']}/changed", row["kind"], places[::-1], texts[::-1], row["image_id"])
        cases.append([first, second][:pictures])
    return cases
