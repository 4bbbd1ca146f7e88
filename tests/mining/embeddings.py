"""Collections of unit vectors on which the ranking is tested, and its comparison with the sorted whole matrix."""

import numpy as np

from repair_hf.mining.ranking import rank_both_ways, rank_by_sorting
from repair_hf.pairs.truth import Truth


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def quantised(rng: np.random.Generator, count: int, size: int = 8) -> np.ndarray:
    """Unit vectors with four entries of +-1/2. Cosines are multiples of 1/4: sums are exact, and many scores tie."""
    vectors = np.zeros((count, size), np.float32)
    for row in vectors:
        row[rng.permutation(size)[:4]] = rng.choice([-0.5, 0.5], 4)
    return vectors


def identical(rng: np.random.Generator, count: int, size: int = 4) -> np.ndarray:
    """One vector for all, so that every score ties."""
    return np.full((count, size), 0.5, np.float32)


def random_unit(rng: np.random.Generator, count: int, size: int = 8) -> np.ndarray:
    return unit(rng.normal(size=(count, size)).astype(np.float32))


def planted(rng: np.random.Generator, noise: float, n_images: int = 300, n_texts: int = 800, size: int = 32):
    """Captions are their image plus noise, in order of image."""
    own = np.sort(np.concatenate([np.arange(n_images), rng.integers(0, n_images, n_texts - n_images)]))
    images = random_unit(rng, n_images, size)
    return images, unit(images[own] + noise * random_unit(rng, n_texts, size)), own


def classes(rng: np.random.Generator):
    """Ten narrow classes, sorted by class."""
    images, texts, own = planted(rng, 0.3)
    centre = random_unit(rng, 10, 32)
    kind = np.arange(len(images)) * 10 // len(images)
    return unit(images + 3 * centre[kind]), unit(texts + 3 * centre[kind[own]]), own


def doubles(rng: np.random.Generator):
    """A third of the captions are identical."""
    images, texts, own = planted(rng, 1.0)
    texts[rng.integers(0, len(texts), len(texts) // 3)] = texts[0]
    return images, texts, own


def cone(rng: np.random.Generator):
    """All in a narrow cone, where float32 hardly separates scores."""
    images, texts, own = planted(rng, 1.0)
    axis = random_unit(rng, 1, 32)
    return unit(axis + 0.01 * images), unit(axis + 0.01 * texts), own


def grid(rng: np.random.Generator):
    """Cosines are multiples of 1/4."""
    _, _, own = planted(rng, 1.0)
    return quantised(rng, 300), quantised(rng, len(own)), own


# Of several panels and blocks, so that cutoffs are guessed.
COLLECTIONS = {
    "good": lambda rng: planted(rng, 1.0),
    "bad": lambda rng: planted(rng, 20.0),
    "classes": classes,
    "doubles": doubles,
    "cone": cone,
    "grid": grid,
}
# Where a change of the computation would show most: scores that float32 hardly separates, and scores that tie.
HARDEST = "cone", "grid"


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
    looks = np.arange(len(images)) if looks is None else looks
    is_positive = looks[own] == looks[:, None]  # (N, M)
    if words is not None:
        is_positive = is_positive @ (words[:, None] == words)  # of booleans: whether any own caption has these words
    assert positives.beyond_annotation == is_positive.sum() - len(own)
    scores = whole_matrix(images, texts)
    assert_equal(i2t, rank_by_sorting(scores, is_positive, k_image))
    assert_equal(t2i, rank_by_sorting(scores.T, is_positive.T, k_caption))
