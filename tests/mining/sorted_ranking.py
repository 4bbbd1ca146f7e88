"""The slow reference of the ranking: sort every row of the whole score matrix."""

import numpy as np

from repair_hf.mining.ranking import rank_both_ways
from repair_hf.pairs.truth import Truth


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
    scores = (images.astype(np.float64) @ texts.astype(np.float64).T).astype(np.float32) + np.float32(0)
    for found, table, known, k in ((i2t, scores, is_positive, k_image), (t2i, scores.T, is_positive.T, k_caption)):
        index = np.broadcast_to(np.arange(table.shape[1]), table.shape)
        order = np.lexsort((index, known, -table), axis=1)
        ranked = np.take_along_axis(known, order, axis=1)
        first = ranked.argmax(axis=1)
        np.testing.assert_array_equal(found.gt_rank, 1 + first)
        np.testing.assert_array_equal(found.gt, order[np.arange(len(order)), first])
        np.testing.assert_array_equal(found.gt_score, table[np.arange(len(order)), found.gt])
        place = np.argsort(ranked, axis=1, kind="stable")[:, :k]
        is_there = ~np.take_along_axis(ranked, place, axis=1)  # a query may have fewer than k non-positives
        np.testing.assert_array_equal(found.fp, np.where(is_there, np.take_along_axis(order, place, axis=1), -1))
        np.testing.assert_array_equal(found.fp_rank[is_there], 1 + place[is_there])
        expected = np.where(is_there, np.take_along_axis(table, found.fp, axis=1), -np.inf)
        np.testing.assert_array_equal(found.fp_score, expected)
