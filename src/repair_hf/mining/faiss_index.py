"""Rank with an approximate FAISS index, where scoring all pairs would take too long.

Scores are exact, and each query's best positive is always found. The index may miss other candidates. A rank counts
only the candidates found, so **ranks of gt and fp are lower bounds**, and the rank of a gt is at most one more than
the pool. An index holds a copy of the candidates' vectors: 4 D bytes each, and with HNSW 256 more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import faiss
import numpy as np
import torch
from tqdm.auto import tqdm

from repair_hf.mining.queries import Ranking, RankingState
from repair_hf.mining.scores import best_directly, best_keys, decode, exact_scores, keys_of, quietly, screen_error
from repair_hf.pairs.truth import Truth, expanded

QUERIES_PER_SEARCH = 2048
PROBED = 1 / 16  # share of IVF's clusters that are searched
PER_CLUSTER = 64  # training vectors for each of IVF's clusters
LINKS, BREADTH = 32, 256  # HNSW's neighbours of a vector, and candidates held while searching
SAMPLE = 512  # queries whose false positives are also found exactly, for the recall


class Index(NamedTuple):
    """A kind of FAISS index, and how thoroughly it is searched.

    Args:
        kind: `ivf` searches the clusters nearest to the query; `hnsw` walks a graph of neighbours.
        effort: Multiplies the part of the index that is searched: more is slower and misses less.
    """

    kind: Literal["ivf", "hnsw"]
    effort: float = 1.0


@quietly()
def rank_by_index(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    index: Index,
    *,
    fps_of_image: int,
    fps_of_caption: int,
    pool: int = 100,
) -> tuple[Ranking, Ranking, dict[str, float]]:
    """Rank the captions that an index finds for each image, and the images it finds for each caption.

    A direction with 0 false positives is not searched. `pool` false positives are counted for a gt's rank, and at
    least those asked for. The other arguments are those of `rank_both_ways`.

    Returns:
        The rankings of the N images' captions and of the M captions' images; and the recall by direction (`i2t`,
        `t2i`): the share of the true best false positives of up to 512 random queries that were found.
    """
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    i2t, t2i = RankingState(len(images), fps_of_image), RankingState(len(texts), fps_of_caption)
    for image, caption, score in _scored_positives(images, texts, positives):
        i2t.offer_positives(image, caption, score)
        t2i.offer_positives(caption, image, score)
    recall, eps = {}, screen_error(images, texts, torch.float32)
    for name, side, queries, candidates in (("i2t", i2t, images, texts), ("t2i", t2i, texts, images)):
        if side.k:
            known = _PositivesByQuery(positives, is_caption=name == "t2i", n_texts=len(texts))
            built = _build_index(candidates, index)
            starts = range(0, len(queries), QUERIES_PER_SEARCH)
            for start in tqdm(starts, desc=f"Searching {name}", delay=3, disable=None):
                some = np.arange(start, min(start + QUERIES_PER_SEARCH, len(queries)))
                keys = _search(built, queries[some], candidates, known, some, max(pool, side.k))
                side.non_positives_ahead[some] = np.sum(decode(keys)[0] >= side.gt_score[some, None], axis=1)
                side.keys[some] = keys[:, : side.k]
            recall[name] = _recall(side, queries, candidates, known, eps)
    for image, caption, score in _scored_positives(images, texts, positives):
        i2t.count_positives(image, i2t.fps_ahead(image, score))
        t2i.count_positives(caption, t2i.fps_ahead(caption, score))
    return i2t.ranking(), t2i.ranking(), recall


class _PositivesByQuery:
    """The positives in order of one direction's queries."""

    def __init__(self, positives: Truth, *, is_caption: bool, n_texts: int) -> None:
        image, caption = positives.images_of(np.arange(n_texts))
        query, candidate = (caption, image) if is_caption else (image, caption)
        order = np.argsort(query, kind="stable")
        self.query, self.candidate = query[order], candidate[order]  # in order of query

    def of(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positive pairs of some queries, (q,), as places in `queries` and candidates."""
        low, high = (np.searchsorted(self.query, queries, side=side) for side in ("left", "right"))
        at, place = expanded(low, high)
        return place, self.candidate[at]


def _scored_positives(
    images: np.ndarray, texts: np.ndarray, positives: Truth
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield all positive pairs, some captions at a time: image, caption and score, (P,) each."""
    for start in range(0, len(texts), QUERIES_PER_SEARCH):
        some = np.arange(start, min(start + QUERIES_PER_SEARCH, len(texts)))
        image, column = positives.images_of(some)
        order = np.argsort(image, kind="stable")
        image, column = image[order], column[order]
        score = exact_scores(images, image, torch.from_numpy(texts[some].astype(np.float64)), column)
        yield image, some[column], score


def _build_index(candidates: np.ndarray, wanted: Index) -> faiss.Index:
    count, size = candidates.shape
    index: Any
    if wanted.kind == "hnsw":
        index = faiss.IndexHNSWFlat(size, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = max(1, round(wanted.effort * BREADTH))
    else:
        clusters = max(1, min(round(4 * math.sqrt(count)), count // PER_CLUSTER))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(size), size, clusters, faiss.METRIC_INNER_PRODUCT)
        index.train(np.ascontiguousarray(candidates[:: max(1, count // (PER_CLUSTER * clusters))]))
        index.nprobe = min(clusters, max(1, round(wanted.effort * PROBED * clusters)))
    for start in range(0, count, QUERIES_PER_SEARCH):
        index.add(np.ascontiguousarray(candidates[start : start + QUERIES_PER_SEARCH]))
    return index


def _search(
    index: faiss.Index,
    vectors: np.ndarray,
    candidates: np.ndarray,
    known: _PositivesByQuery,
    queries: np.ndarray,
    pool: int,
) -> np.ndarray:
    """Return the keys of the best non-positives that the index finds for some queries, (q, pool), best first."""
    place, positive = known.of(queries)
    most = int(np.bincount(place, minlength=1).max())  # a query's positives may all be found first
    _, found = index.search(np.ascontiguousarray(vectors), min(pool + most, len(candidates)))  # (q, c), -1 where none
    query, column = np.nonzero(found >= 0)
    pairs = np.setdiff1d(found[query, column] * len(queries) + query, positive * len(queries) + place)
    candidate, query = np.divmod(pairs, len(queries))  # in order of candidate, which is faster
    score = exact_scores(candidates, candidate, torch.from_numpy(vectors.astype(np.float64)), query)
    return best_keys(query, keys_of(score, candidate), len(queries), pool)


def _recall(
    side: RankingState, queries: np.ndarray, candidates: np.ndarray, known: _PositivesByQuery, eps: float
) -> float:
    """Return the share of the true best false positives of some queries that were found."""
    some = np.sort(np.random.default_rng(0).permutation(len(queries))[:SAMPLE])
    true = best_directly(queries[some], candidates, np.arange(len(candidates)), known.of(some), side.k, eps)
    is_there = decode(true)[1] >= 0
    found = [np.isin(best, mine) for best, mine in zip(true, side.keys[some], strict=True)]
    return float(np.mean(np.array(found)[is_there])) if is_there.any() else 1.0
