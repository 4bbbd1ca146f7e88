"""What the benches of ranking share: vectors to rank, and what a piece of work takes.

In:  how many images and captions; a function.
Out: unit vectors of random directions; seconds by the clock and of work, and memory.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil  # comes with accelerate

NOISE = 3.0  # norm of what a caption has beyond its image: a cosine of about 0.32 between them


@dataclass(frozen=True)
class Took:
    """What a piece of work took: seconds by the clock, seconds that its threads were at work, and the most bytes that the process grew by."""

    seconds: float
    busy: float
    memory: int


@dataclass(frozen=True)
class Vectors:
    """Unit vectors of images and captions, and each caption's image."""

    images: np.ndarray
    texts: np.ndarray
    image_of: np.ndarray

    @classmethod
    def random(cls, images: int, texts: int, dim: int) -> Vectors:
        """Each caption lies near its image, so most positives stand first, as a good retriever's do; images share the captions out."""
        rng = np.random.default_rng(0)
        image_of = np.arange(texts) % images
        of_images = _unit(rng.standard_normal((images, dim), np.float32))
        of_texts = rng.standard_normal((texts, dim), np.float32)
        of_texts *= NOISE / np.sqrt(dim)
        of_texts += of_images[image_of]
        return cls(of_images, _unit(of_texts), image_of)


def timed(work: Callable[[], object]) -> Took:
    """Do it, and look at the process's memory 100 times a second."""
    gc.collect()
    process, is_done = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        start, began = time.perf_counter(), time.process_time()
        work()
        seconds, busy = time.perf_counter() - start, time.process_time() - began
    finally:
        is_done.set()
        watcher.join()
    return Took(seconds, busy, peak - before)


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors
