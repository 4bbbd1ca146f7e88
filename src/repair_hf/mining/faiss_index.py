"""Rank with an approximate FAISS index, where scoring all pairs would take too long.

Scores are exact, and each query's best positive is always found. The index may miss other candidates. A rank counts
only the candidates found, so **ranks of gt and fp are lower bounds**, and the rank of a gt is at most one more than
the pool. An index holds a copy of the candidates' vectors: 4 D bytes each, and with HNSW 256 more.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import faiss
import numpy as np
from datasets.search import FaissIndex  # seen with datasets 5.2

from repair_hf.mining.queries import Queries, Ranking
from repair_hf.mining.ranking import positives_of, rank_some, sides
from repair_hf.mining.scores import best_keys, exact_scores, keys_of, quietly
from repair_hf.pairs.truth import Truth
from repair_hf.runtime.progress import Progress

QUERIES_PER_SEARCH = 2048
PROBED = 1 / 16  # share of IVF's clusters that are searched
PER_CLUSTER = 64  # training vectors for each of IVF's clusters
LINKS, BREADTH = 32, 256  # HNSW's neighbours of a vector, and candidates held while searching
Index = Literal["ivf", "hnsw"]  # `ivf` searches the clusters nearest to the query, `hnsw` walks a graph of neighbours
SAMPLE = 512  # queries whose false positives are also found exactly, for the recall


@quietly()
def rank_by_index(
    direction: str,
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    queries: np.ndarray,
    index: Index,
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
    vectors, candidates = sides(direction, image_embeddings, text_embeddings)
    found, pool = Queries(len(queries), fps), max(pool, fps)
    place, positive = positives_of(direction, positives, queries)
    order = np.argsort(place, kind="stable")
    place, positive = place[order], positive[order]
    built = _build_index(candidates, index)
    starts = range(0, len(queries), QUERIES_PER_SEARCH)
    for start in Progress(starts, f"Searching {direction}", unit=" blocks", delay=3):
        some = np.arange(start, min(start + QUERIES_PER_SEARCH, len(queries)))
        known = slice(*np.searchsorted(place, [start, start + len(some)]))
        rows, of_known = vectors[queries[some]], place[known] - start
        score = exact_scores(candidates, positive[known], rows, of_known)
        found.offer_positives(place[known], positive[known], score)
        row, candidate = _search(built, rows, of_known, positive[known], pool)
        keys = keys_of(exact_scores(candidates, candidate, rows, row), candidate)
        best = best_keys(row, keys, len(some), pool)
        found.ahead[some], found.keys[some] = np.sum(best > found.target[some, None], axis=1), best[:, :fps]
        found.count_positives(place[known], score)
    some = np.sort(np.random.default_rng(0).permutation(len(queries))[:SAMPLE])
    true = rank_some(direction, image_embeddings, text_embeddings, positives, queries[some], fps=fps).fp
    ranking = found.ranking()
    hits = np.array([np.isin(best, ours) for best, ours in zip(true, ranking.fp[some], strict=True)])[true >= 0]
    return ranking, float(hits.mean()) if len(hits) else 1.0


def _build_index(candidates: np.ndarray, kind: Index) -> FaissIndex:
    count, size = candidates.shape
    clusters = max(1, min(round(4 * math.sqrt(count)), count // PER_CLUSTER))
    layout = f"HNSW{LINKS},Flat" if kind == "hnsw" else f"IVF{clusters},Flat"
    index: Any = faiss.index_factory(size, layout, faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efSearch = BREADTH
    else:
        index.train(np.ascontiguousarray(candidates[:: max(1, count // (PER_CLUSTER * clusters))]))
        index.nprobe = min(clusters, max(1, round(PROBED * clusters)))
    found = FaissIndex(custom_index=index)
    found.add_vectors(np.ascontiguousarray(candidates), batch_size=QUERIES_PER_SEARCH)
    return found


def _search(
    index: FaissIndex, rows: np.ndarray, place: np.ndarray, positive: np.ndarray, pool: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the non-positives that the index finds for some queries: places in `rows`, and candidates, (P,) each."""
    most = int(np.bincount(place, minlength=1).max())  # a query's positives may all be found first
    found = index.search_batch(
        rows, min(pool + most, index.faiss_index.ntotal)
    ).total_indices  # -1 where there is none
    query, column = np.nonzero(found >= 0)
    pairs = np.setdiff1d(found[query, column] * len(rows) + query, positive * len(rows) + place)
    candidate, query = np.divmod(pairs, len(rows))
    return query, candidate
