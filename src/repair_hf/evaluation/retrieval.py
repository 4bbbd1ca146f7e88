"""Recall@K and mean reciprocal rank, in both directions.

In:  unit vectors of images and captions, and each caption's image.
Out: a flat dict. R@K is the share of queries with any annotated positive among their first K (with several captions an
     image this is what CLIP papers report, not the share of its captions that were found). MRR is the mean of 1/rank
     of a query's best-ranked positive. Full ranking; a tie counts against the positive.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repair_hf.options import UserError
from repair_hf.rankings import Positives
from repair_hf.retrieval import check_embeddings, rank_both_ways


def evaluate_retrieval(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    caption_image: np.ndarray,
    *,
    ks: Sequence[int] = (1, 5, 10),
) -> dict[str, float]:
    """Measure retrieval among N images and M captions.

    Args:
        image_embeddings: Unit vectors, float32.
        text_embeddings: Unit vectors, float32.
        caption_image: Index of each caption's image.
        ks: The K of each Recall@K.

    Shape:
        image_embeddings: (N, D). text_embeddings: (M, D). caption_image: (M,).

    Returns:
        `i2t_R@1`, ..., `i2t_MRR`, `t2i_R@1`, ..., `t2i_MRR` as fractions, `n_images`, `n_texts`.

    Raises:
        UserError: If a vector is zero or not finite, an image has no caption, or shapes do not fit.

    Example:
        >>> evaluate_retrieval(np.eye(3, dtype="float32"), np.eye(3, dtype="float32"), np.arange(3), ks=[1])
        {'i2t_R@1': 1.0, 'i2t_MRR': 1.0, 't2i_R@1': 1.0, 't2i_MRR': 1.0, 'n_images': 3, 'n_texts': 3}
    """
    if not ks or min(ks) < 1:
        raise UserError(f"`ks` must be one or more numbers from 1, got {ks}.")
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    caption_image = np.asarray(caption_image, np.int64)
    check_embeddings(images, texts, caption_image)
    rankings = rank_both_ways(images, texts, Positives.of(caption_image, len(images)))
    metrics = {}
    for direction, ranking in zip(("i2t", "t2i"), rankings, strict=True):
        metrics |= {f"{direction}_R@{k}": float((ranking.gt_rank <= k).mean()) for k in ks}
        metrics[f"{direction}_MRR"] = float((1 / ranking.gt_rank).mean())
    return metrics | {"n_images": len(images), "n_texts": len(texts)}
