"""Compare the fast ranking with the sorted rows of the whole float64 matrix."""

import numpy as np

from repair_hf.mining.ranking import rank_both_ways, rank_by_sorting
from repair_hf.pairs.truth import Truth


def whole_matrix(images, texts) -> np.ndarray:
    """Exact scores of all pairs, (N, M) float32."""
    return (images.astype(np.float64) @ texts.astype(np.float64).T).astype(np.float32) + np.float32(0)


def assert_equal(found, expected) -> None:
    for name, values in vars(expected).items():
        there = expected.fp >= 0 if name == "fp_rank" else ...  # no rank where there are fewer than k
        np.testing.assert_array_equal(getattr(found, name)[there], values[there], err_msg=name)


def check(images, texts, own, k_image, k_caption, *, block, words=None, looks=None, device="cpu"):
    """Rank, and compare every field of both rankings with sorted rows of the float64 matrix."""
    positives = Truth.annotated(own, len(images), wording=words, image_class=looks)
    ks = {"fps_of_image": k_image, "fps_of_caption": k_caption}
    i2t, t2i = rank_both_ways(images, texts, positives, block=block, device=device, **ks)
    words = np.arange(len(own)) if words is None else words
    own_words = [set(words[own == image]) for image in range(len(images))]
    if looks is not None:
        own_words = [set().union(*(own_words[k] for k in np.flatnonzero(looks == look))) for look in looks]
    is_positive = np.array([[word in mine for word in words] for mine in own_words])  # (N, M)
    assert positives.beyond_annotation == is_positive.sum() - len(own)
    scores = whole_matrix(images, texts)
    assert_equal(i2t, rank_by_sorting(scores, is_positive, k_image))
    assert_equal(t2i, rank_by_sorting(scores.T, is_positive.T, k_caption))
