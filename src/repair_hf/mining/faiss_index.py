"""Rank with an approximate FAISS index, where scoring all pairs would take too long.

The index (IVF) searches the clusters nearest to a query. Scores are exact, and each query's best positive is always
found. Other candidates may be missed. A rank counts only the candidates found, so **ranks of gt and fp are lower
bounds**, and the rank of a gt is at most one more than the pool. An index holds a copy of the candidates' vectors.
"""

from __future__ import annotations

import math
from typing import Any

import faiss
import numpy as np
from datasets.search import FaissIndex  # seen with datasets 5.2

from repair_hf.mining.queries import Queries, Ranking
from repair_hf.mining.ranking import rank_some
from repair_hf.mining.scores import best_keys, exact_scores, keys_of, quietly
from repair_hf.pairs.truth import Truth
from repair_hf.runtime.progress import Progress

AT_ONCE = 2048  # queries searched, and vectors added, together
PROBED = 1 / 16  # share of the clusters that are searched
PER_CLUSTER = 64  # training vectors for each cluster
SAMPLE = 512  # queries whose false positives are also found exactly, for the recall


@quietly()
def rank_by_index(
    direction: str,
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    queries: np.ndarray,
    *,
    fps: int,
    pool: int = 100,
) -> tuple[Ranking, float]:
    """Rank the candidates that an index finds for some queries of one direction; see `rank_some`.

    `pool` false positives are counted for a gt's rank, and at least `fps`.

    Returns:
        The ranking, and the recall: the share of the true best false positives of up to 512 random queries that were
        found.
    """
    is_i2t = direction == "i2t"
    vectors, candidates = (image_embeddings, text_embeddings) if is_i2t else (text_embeddings, image_embeddings)
    built, pool = _build_index(candidates), max(pool, fps)
    found = Queries(len(queries), fps)
    for start in Progress(range(0, len(queries), AT_ONCE), f"Searching {direction}", unit=" blocks", delay=3):
        batch = np.arange(start, min(start + AT_ONCE, len(queries)))
        rows = vectors[queries[batch]]
        place, positive = _positives_of(direction, positives, queries[batch], len(candidates))
        positive_scores = exact_scores(candidates, positive, rows, place)
        found.offer_positives(batch[place], positive, positive_scores)
        row, candidate = _search(built, rows, place, positive, pool)
        keys = keys_of(exact_scores(candidates, candidate, rows, row), candidate)
        best = best_keys(row, keys, len(batch), pool)
        found.ahead[batch] = np.sum(best > found.target[batch, None], axis=1)
        found.keys[batch] = best[:, :fps]
        found.count_positives(batch[place], positive_scores)
    ranking = found.ranking()
    sample = np.sort(np.random.default_rng(0).permutation(len(queries))[:SAMPLE])
    true = rank_some(direction, image_embeddings, text_embeddings, positives, queries[sample], fps=fps).fp
    hits = np.array([np.isin(best, ours) for best, ours in zip(true, ranking.fp[sample], strict=True)])[true >= 0]
    return ranking, float(hits.mean()) if len(hits) else 1.0


def _positives_of(
    direction: str, positives: Truth, queries: np.ndarray, n_candidates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return all positive pairs of some queries, (P,): places in `queries`, and candidates."""
    if direction == "t2i":
        image, place = positives.images_of(queries)
        return place, image
    every_caption = np.arange(n_candidates)
    return positives.select(queries, every_caption).images_of(every_caption)


def _build_index(candidates: np.ndarray) -> FaissIndex:
    count, size = candidates.shape
    clusters = max(1, min(round(4 * math.sqrt(count)), count // PER_CLUSTER))
    index: Any = faiss.index_factory(size, f"IVF{clusters},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(np.ascontiguousarray(candidates[:: max(1, count // (PER_CLUSTER * clusters))]))
    index.nprobe = min(clusters, max(1, round(PROBED * clusters)))
    searchable = FaissIndex(custom_index=index)
    searchable.add_vectors(np.ascontiguousarray(candidates), batch_size=AT_ONCE)
    return searchable


def _search(
    index: FaissIndex, rows: np.ndarray, place: np.ndarray, positive: np.ndarray, pool: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the non-positives that the index finds for some queries: places in `rows`, and candidates, (P,) each."""
    most = int(np.bincount(place, minlength=1).max())  # a query's positives may all be found first
    n_sought = min(pool + most, index.faiss_index.ntotal)
    found = index.search_batch(rows, n_sought).total_indices  # (q, n_sought); -1 where there is none
    query, column = np.nonzero(found >= 0)
    pairs = np.setdiff1d(found[query, column] * len(rows) + query, positive * len(rows) + place)
    candidate, query = np.divmod(pairs, len(rows))
    return query, candidate
