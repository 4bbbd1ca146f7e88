"""Recall@K, mean reciprocal rank and median rank, in both directions, over the full ranking.

R@K is the share of queries with any annotated positive among the first K, as in CLIP papers. MRR is the mean of 1/rank
of a query's best-ranked positive, and the median rank is the median of that rank. Ties are ranked pessimistically.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from repair_hf.evaluation.intervals import Draws
from repair_hf.mining.queries import Ranking
from repair_hf.mining.ranking import check_embeddings, rank_both_ways
from repair_hf.pairs.truth import Truth
from repair_hf.records.columns import MODALITIES
from repair_hf.runtime.options import UserError

KS = (1, 5, 10)
DIRECTIONS = tuple(sorted(MODALITIES))  # in the order of every table and column


def evaluate_retrieval(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    caption_image: np.ndarray,
    *,
    ks: Sequence[int] = KS,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Measure retrieval among N images and M captions.

    The processes of a launcher share the work: each must call this with the same vectors, and gets the metrics.

    Args:
        image_embeddings: (N, D) unit vectors, float32.
        text_embeddings: (M, D) unit vectors, float32.
        caption_image: (M,) index of each caption's image.
        ks: The K of each Recall@K.
        device: Where blocks of scores are computed.

    Returns:
        `i2t_R@1`, ..., `i2t_MRR`, `i2t_median_rank`, `t2i_R@1`, ..., `t2i_median_rank`, as fractions; `n_images`,
        `n_texts`.

    Raises:
        UserError: If a vector is zero or not finite, an image has no caption, or shapes do not fit.

    Example:
        >>> found = evaluate_retrieval(np.eye(3, dtype="float32"), np.eye(3, dtype="float32"), np.arange(3), ks=[1])
        >>> found["i2t_R@1"], found["t2i_MRR"], found["n_texts"]
        (1.0, 1.0, 3)
    """
    if not ks or min(ks) < 1:
        raise UserError(f"`ks` must be one or more numbers from 1, got {ks}.")
    rankings = rank_queries(image_embeddings, text_embeddings, caption_image, device=device)
    ranks = {direction: ranking.gt_rank for direction, ranking in rankings.items()}
    return retrieval_metrics(ranks, ks=ks) | {"n_images": len(ranks["i2t"]), "n_texts": len(ranks["t2i"])}


def rank_queries(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    caption_image: np.ndarray,
    *,
    fps: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Ranking]:
    """Rank all captions for each image (`i2t`) and all images for each caption (`t2i`), see `evaluate_retrieval`.

    Only annotated pairs are positives. `fps` is the number of best wrong answers to find for each query.
    """
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    caption_image = np.asarray(caption_image, np.int64)
    check_embeddings(images, texts, caption_image)
    positives = Truth.annotated(caption_image, len(images))
    fps_of: Any = {"fps_of_image": min(fps, len(texts)), "fps_of_caption": min(fps, len(images))}
    rankings = rank_both_ways(images, texts, positives, **fps_of, device=device)
    return dict(zip(DIRECTIONS, rankings, strict=True))


def retrieval_metrics(ranks: Mapping[str, np.ndarray], *, ks: Sequence[int] = KS) -> dict[str, float]:
    """Compute the metrics from the rank of each query's best positive, by direction."""
    metrics: dict[str, float] = {}
    for direction, rank in ranks.items():
        terms = query_values(rank, ks)
        metrics |= {f"{direction}_{name}": float(values.mean()) for name, values in terms.items()}
        metrics[f"{direction}_median_rank"] = float(np.median(rank))
    return metrics


def resample_retrieval(
    ranks: Mapping[str, np.ndarray], caption_image: np.ndarray, draws: Draws, *, ks: Sequence[int] = KS
) -> dict[str, np.ndarray]:
    """Compute the same metrics, (R,) values each, in each resample of the images; `caption_image` is (M,)."""
    samples: dict[str, np.ndarray] = {}
    for direction, rank in ranks.items():
        image = np.arange(len(rank)) if direction == "i2t" else np.asarray(caption_image)
        terms = query_values(rank, ks)
        means = draws.means(np.stack(list(terms.values()), 1), image)  # (R, metrics)
        samples |= {f"{direction}_{name}": values for name, values in zip(terms, means.T, strict=True)}
        samples[f"{direction}_median_rank"] = draws.medians(rank, image)
    return samples


def query_values(rank: np.ndarray, ks: Sequence[int] = KS) -> dict[str, np.ndarray]:
    """Return each query's value, (Q,), of the metrics that are means."""
    return {f"R@{k}": (rank <= k).astype(np.float64) for k in ks} | {"MRR": 1 / rank}


def random_metrics(caption_image: np.ndarray, n_images: int, *, ks: Sequence[int] = KS) -> dict[str, float]:
    """Return what a retriever that ranks at random is expected to score: the same metrics but the median rank.

    Args:
        caption_image: (M,) index of each caption's image.
        n_images: N.
        ks: The K of each Recall@K.

    Example:
        >>> random_metrics(np.array([0, 0, 1, 1]), 2, ks=[1])["t2i_R@1"]
        0.5
    """
    captions = np.bincount(caption_image, minlength=n_images)  # (N,) positives of each image
    positives = {"i2t": (captions, len(caption_image)), "t2i": (np.ones(len(caption_image), int), n_images)}
    metrics: dict[str, float] = {}
    for direction, (counts, n_candidates) in positives.items():
        distinct, queries = np.unique(counts, return_counts=True)
        terms = [_of_random_order(count, n_candidates, ks) for count in distinct]
        for name in terms[0]:
            values = [term[name] for term in terms]
            metrics[f"{direction}_{name}"] = float(np.average(values, weights=queries))
    return metrics


def _of_random_order(n_positives: int, n_candidates: int, ks: Sequence[int]) -> dict[str, float]:
    """Return the expected values of a query: its best positive has rank r if the r - 1 candidates before are none."""
    rank = np.arange(1, n_candidates + 1)
    is_positive = np.minimum(n_positives / (n_candidates - rank + 1), 1.0)  # given that none came before
    none_before = np.concatenate([[1.0], np.cumprod(1 - is_positive)[:-1]])
    chance = is_positive * none_before  # of each rank, (n_candidates,)
    return {name: float(chance @ values) for name, values in query_values(rank, ks).items()}


METRICS = list(retrieval_metrics(dict.fromkeys(DIRECTIONS, np.ones(1))))  # names of the metrics
