"""Collections of unit vectors on which the ranking engine is tested."""

import numpy as np


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


def planted(rng: np.random.Generator, noise: float, n_images: int = 300, n_texts: int = 1400, size: int = 32):
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
