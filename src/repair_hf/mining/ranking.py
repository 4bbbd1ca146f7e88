"""Rank every caption for every image and every image for every caption: exact, in one pass, in little memory.

In:  unit vectors of images and captions, and which captions answer which images.
Out: for each query of both directions its best-scored positive with its rank, and the best non-positives with theirs.

Mining and evaluation both stand on `rank_both_ways`, so a failure and a miss cannot disagree. What makes ranks well
defined:

- A score is a cosine, summed in float64 and rounded to float32, as `scores` has it. It does not depend on how the matrix
  is cut into blocks, and equal vectors have equal scores.
- The full ranking is in order of score; of equal scores, non-positives stand before positives (a tie counts against
  us: a model that gives everything the same score ranks last), and within each kind the lower index comes first.
- Ranks count from 1 in the full ranking, positives included.

Each block of the N x M matrix is computed once, quickly, and what matters of it is scored exactly (`screening`). Panels of
captions go to as many threads as torch would use, each of which computes on its own; and of several processes each takes its
share of the panels.

Beyond the vectors, which may lie in mapped files, the pass and its result hold some 70 + 44 k bytes for each caption and each
image (k: what is sought for it), 60 MB for each thread, and the pool from which an image's best are taken: 24 bytes for each
pair in it, about 3 k pairs for each image, and 20 for k = 1. So 10 million captions whose best image is sought take 1.1 GB.
Images that fit into 256 MB in float64 are held so, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

from repair_hf.mining.positives import Positives, Ranking
from repair_hf.mining.scores import quietly
from repair_hf.mining.sweep import OnePass
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import Processes

logger = logging.getLogger(__name__)

BLOCK = 2048  # captions of a panel; half as many images of a block of scores, which is 8 MB


def rank_both_ways(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Positives,
    *,
    fps_of_image: int = 0,
    fps_of_caption: int = 0,
    block: int = BLOCK,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    everyone: Processes | None = None,
) -> tuple[Ranking, Ranking]:
    """Rank captions for each image, and images for each caption, by one pass over the blocks of their scores.

    Args:
        image_embeddings: Unit vectors, float32; may be memory-mapped.
        text_embeddings: Unit vectors, float32; may be memory-mapped, and is then read a panel at a time.
        positives: Which captions answer which images.
        fps_of_image: How many false positives to find for each image.
        fps_of_caption: The same for each caption.
        block: How many captions are held against all images at once.
        dtype: In which blocks are screened: by default bfloat16 where the processor multiplies it by itself, else
            float32. The result is the same.
        device: Where blocks are screened. An accelerator holds all images' vectors; selection and exact scores stay
            on the processor, and so does the result.
        everyone: The processes that share the captions out among them; each must call this with the same vectors, and
            gets the whole result.

    Shape:
        image_embeddings: (N, D); text_embeddings: (M, D).

    Returns:
        The rankings of the N images' captions and of the M captions' images.
    """
    device = torch.device(device)
    with _workers() as (workers, n_workers), _whole_float32(), quietly():
        one_pass = OnePass(
            np.asarray(image_embeddings, np.float32),
            np.asarray(text_embeddings, np.float32),
            positives,
            k_image=fps_of_image,
            k_caption=fps_of_caption,
            block=block,
            dtype=dtype or screen_dtype(device),
            device=device,
            everyone=everyone,
        )
        one_pass.score_positives(workers)
        one_pass.look_at_panels(workers, n_workers)
        one_pass.rank_lost(workers, n_workers)
        one_pass.meet()
        return one_pass.rankings(workers)


def check_embeddings(image_embeddings: np.ndarray, text_embeddings: np.ndarray, caption_image: np.ndarray) -> None:
    """Refuse what could only give meaningless ranks.

    Raises:
        UserError: If shapes do not fit, a vector is zero or not finite, or an image has no caption.
    """
    images, texts = image_embeddings, text_embeddings
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1] or not len(images) or not len(texts):
        raise UserError(
            f"Embeddings must be (N, D) and (M, D) with the same D and no zero, got {images.shape} and {texts.shape}."
        )
    for name, vectors in (("image", images), ("text", texts)):
        squares = np.einsum("nd,nd->n", vectors, vectors)  # (n,)
        if (bad := ~(np.isfinite(squares) & (squares > 0))).any():
            raise UserError(
                f"{bad.sum()} of {len(bad)} {name} embeddings are zero or not finite, first row {bad.argmax()}; they cannot be ranked."
            )
        if (off := np.abs(squares - 1) > 1e-2).any():
            logger.warning(
                "%d of %d %s embeddings are not of unit length, so scores are no cosines; divide each by its norm.",
                off.sum(),
                len(off),
                name,
            )
    if caption_image.shape != (len(texts),):
        raise UserError(
            f"`caption_image` must name the image of each of the {len(texts)} captions, got shape {caption_image.shape}."
        )
    if caption_image.min() < 0 or caption_image.max() >= len(images):
        raise UserError(
            f"`caption_image` must lie in [0, {len(images)}), got {caption_image.min()} to {caption_image.max()}."
        )
    if len(bare := np.setdiff1d(np.arange(len(images)), caption_image)):
        raise UserError(f"{len(bare)} of {len(images)} images have no caption, first image {bare[0]}; leave them out.")


def screen_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a processor that multiplies it by itself, else float32: what an accelerator does in bfloat16 has no bound."""
    has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if device.type == "cpu" and has_bfloat16 else torch.float32


@contextmanager
def _workers() -> Iterator[tuple[Executor, int]]:
    """As many threads as torch would use for one product; in each of them, torch uses one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield workers, threads
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _whole_float32() -> Iterator[None]:
    """Without TF32, which a training run may have switched on, and which is beyond the bound of the screen."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
