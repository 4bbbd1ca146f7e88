"""Which records of a method are bought first: the orders that `budgets` names beside samples, calls and shares.

The margin of a failure is the score of its false positive minus that of its best positive, both by the base. It is
positive for a query that failed, and negative for one that was answered rightly, with the false positive behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from datasets import Dataset

from repair_hf.runtime.draws import uniforms

DRAW_STREAM, EPOCH = 3, 2**31  # of the draws that choose a share of the data


def drawn(count: int) -> np.ndarray:
    """Return a place for each row, (n,): all orders are equally likely."""
    return uniforms(0, np.full(count, EPOCH), np.arange(count), DRAW_STREAM)


def margins(records: Dataset) -> np.ndarray:
    """Return the margin of each record, (n,)."""
    return np.array(records["fp_score"][:]) - np.array(records["gt_score"][:])


def _one_an_image(records: Dataset) -> np.ndarray:
    """Place a first record of each image before a second of any."""
    chance = drawn(len(records))
    image_of_query = np.where(np.array(records["direction"][:]) == "t2i", records["gt_id"][:], records["q_id"][:])
    seen: dict[str, int] = {}
    turns = np.zeros(len(records))
    for row in chance.argsort(kind="stable"):
        image = str(image_of_query[row])
        turns[row] = seen.get(image, 0)
        seen[image] = seen.get(image, 0) + 1
    return turns + chance


def _only(is_wanted: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Leave out the others: their place is infinite."""
    return np.where(is_wanted, places, np.inf)


PLACES: Mapping[str, Callable[[Dataset], np.ndarray]] = {  # the place of each record, (n,): the lowest comes first
    "worst": lambda records: -margins(records),
    "near-ties": lambda records: np.abs(margins(records)),
    "least": margins,
    "one-an-image": _one_an_image,
    "failed": lambda records: _only(margins(records) > 0, drawn(len(records))),
    "right": lambda records: _only(margins(records) <= 0, drawn(len(records))),
}
