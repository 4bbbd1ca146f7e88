"""Draw random false positives, for the ablation without mining."""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.embedder import vectors_folder
from repair_hf.mining.false_positives import FEATURES, with_ids
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.truth import Truth, truth_of

QUERIES_AT_ONCE = 64  # whose candidates are all scored


def random_failures(failures: Dataset, pairs: Pairs, encoder: DualEncoder, seed: int = 0) -> Dataset:
    """Replace each false positive by a wrong answer drawn at random, with its score and rank.

    Args:
        failures: Rows of `mine`. Queries and ground truths stay.
        pairs: The pairs that were mined.
        encoder: The retriever that was mined.
        seed: Seed of the draws.

    Returns:
        Rows of the same columns. The false positives of a query are distinct.
    """
    images, texts = encoder.embed_pairs(pairs, cache_folder=vectors_folder())
    positives, _ = truth_of(pairs)
    rng = np.random.default_rng(seed)
    columns = {name: np.array(failures[name][:]) for name in FEATURES}
    for direction, queries, candidates in (("t2i", texts, images), ("i2t", images, texts)):
        rows = np.flatnonzero(columns["direction"] == direction)
        query = columns["q"][rows]
        drawn = _draw(direction, query, len(candidates), positives, rng)
        columns["fp"][rows] = drawn
        for start in range(0, len(rows), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            scores = np.asarray(queries[query[part]]) @ np.asarray(candidates).T  # (queries, candidates)
            own = np.take_along_axis(scores, drawn[part, None], axis=1)
            columns["fp_score"][rows[part]] = own[:, 0]
            columns["fp_rank"][rows[part]] = 1 + (scores > own).sum(axis=1)
    return with_ids(Dataset.from_dict(columns, features=FEATURES), pairs)


def _draw(
    direction: str, query: np.ndarray, n_candidates: int, positives: Truth, rng: np.random.Generator
) -> np.ndarray:
    """Draw a wrong answer for each query, (P,); those of one query are distinct."""
    drawn = rng.integers(0, n_candidates, len(query))
    while True:  # ends: as many distinct wrong answers of each query were mined
        is_bad = positives.match(drawn, query) if direction == "t2i" else positives.match(query, drawn)
        _, first = np.unique(query * n_candidates + drawn, return_index=True)
        is_bad[np.setdiff1d(np.arange(len(query)), first)] = True  # drawn already
        if not is_bad.any():
            return drawn
        drawn[is_bad] = rng.integers(0, n_candidates, int(is_bad.sum()))
