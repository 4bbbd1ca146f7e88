"""Fast products of vectors, and how far a score of theirs may be from the exact one.

A score of a float32 product differs from the exact score by at most

    (D + 4) u / (1 - (D + 4) u) * max|x| * max|y| + D * 2^-126,   u = 2^-24.

For a sum of D products, added in whatever order, with or without fused operations, |fl(x.y) - x.y| <= g_D
sum|x_d||y_d| with g_n = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 3.1), and
sum|x_d||y_d| <= |x||y| (Cauchy-Schwarz). Rounding the float64 sum adds u|x||y|; the error of that sum and the rounding
of bounds less than two more; each product that underflows less than 2^-126.

oneDNN may round the vectors x, y to x', y' in bfloat16 first, if it is allowed to. This adds at most
|x - x'||y| + |x'||y - y'|, which is measured on the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from repair_hf.mining.panels import ScoreMatrix
from repair_hf.mining.queries import Queries
from repair_hf.mining.scores import decode

AT_ONCE = 1024  # vectors measured together
U32 = 2.0**-24  # half a unit in the last place of 1 in float32
ROUNDING = 1.001  # more than the norms and the bound itself lose, being computed in float32
SAMPLE = (256, 512)  # images and captions on whose scores the doubts are counted
MOST_DOUBTS = 0.01  # an exact score takes as long as about a hundred of a product


class Product(NamedTuple):
    """How blocks of scores are computed."""

    precision: str  # of oneDNN's products on the CPU: "ieee" is float32, "bf16" lets oneDNN choose
    error: float  # eps, the maximal difference of its scores from the exact ones


def choose_product(matrix: ScoreMatrix, i2t: Queries, t2i: Queries) -> Product:
    """Choose the fastest product that leaves few pairs in doubt.

    With bfloat16 allowed, oneDNN takes kernels of its own where the processor has AVX-512 BF16: about twice as fast.
    With AMX these round the vectors to bfloat16; without it they multiply in float32.
    """
    exact = Product("ieee", screen_error(matrix.images, matrix.texts))
    if matrix.device.type != "cpu" or not _has_fast_bfloat16():
        return exact
    with multiplying("bf16"):
        is_rounded = _rounds_to_bfloat16(matrix)
    if not is_rounded:
        return Product("bf16", exact.error)
    rounded = Product("bf16", screen_error(matrix.images, matrix.texts, is_rounded=True))
    return rounded if _doubts(matrix, i2t, t2i, rounded.error) <= MOST_DOUBTS else exact


def screen_error(images: np.ndarray, texts: np.ndarray, *, is_rounded: bool = False) -> float:
    """Return eps, the maximal difference of a product's score from the exact one; `is_rounded` to bfloat16 before."""
    size = images.shape[1]
    growth = (size + 4) * U32 / (1 - (size + 4) * U32)
    image_norm, image_loss = _norms(images)
    text_norm, text_loss = _norms(texts)
    error = growth * (image_norm + image_loss) * (text_norm + text_loss) + size * 2.0**-126
    if is_rounded:
        error += image_loss * text_norm + (image_norm + image_loss) * text_loss
    return ROUNDING * error


@contextmanager
def multiplying(precision: str) -> Iterator[None]:
    """Set the precision of oneDNN's products, and switch off TF32, which a training run may have switched on.

    Both are settings of the process: two threads that rank at once may leave them changed.
    """
    if not hasattr(torch.backends, "fp32_precision"):  # before torch 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    gpu, onednn = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    gpu_before, onednn_before = gpu.fp32_precision, onednn.fp32_precision
    try:
        gpu.fp32_precision = "ieee"
        onednn.fp32_precision = precision
        yield
    finally:
        gpu.fp32_precision = gpu_before
        onednn.fp32_precision = onednn_before


def _has_fast_bfloat16() -> bool:
    if not hasattr(torch.cpu, "get_capabilities") or not hasattr(torch.backends, "fp32_precision"):
        return False  # an older torch
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def _rounds_to_bfloat16(matrix: ScoreMatrix) -> bool:
    """Whether a product of a block and a panel rounds its vectors to bfloat16."""
    number = 1 + 2.0**-9  # bfloat16 rounds it to 1
    block = torch.full(matrix.blocks[0].shape, number)
    panel = torch.full((len(matrix.panels[0]), block.shape[1]), number)
    least = torch.mm(block, panel.T).min() / block.shape[1]
    return bool(least < 1 + 1.5 * 2.0**-9)  # it is 1 + 2^-8 + 2^-18; 1 or 1 + 2^-9 if both or one are rounded


def _doubts(matrix: ScoreMatrix, i2t: Queries, t2i: Queries, eps: float) -> float:
    """Estimate the share of the pairs that must be scored exactly, on some of them."""
    image, caption = (
        np.arange(0, count, -(-count // most))
        for count, most in zip((len(matrix.images), len(matrix.texts)), SAMPLE, strict=True)
    )
    scores = matrix.images[image] @ matrix.texts[caption].T  # (images, captions)
    is_doubt = np.zeros(scores.shape, bool)
    for queries, rows, table, doubt, n_candidates in (
        (i2t, image, scores, is_doubt, len(matrix.texts)),
        (t2i, caption, scores.T, is_doubt.T, len(matrix.images)),
    ):
        target = decode(queries.target[rows])[0][:, None]
        doubt |= np.abs(table - target) <= eps
        if queries.k:
            kth = np.quantile(table, max(0, 1 - queries.k / n_candidates), axis=1, keepdims=True)
            doubt |= table >= kth - 2 * eps
    return float(is_doubt.mean())


def _norms(vectors: np.ndarray) -> tuple[float, float]:
    """Return the greatest norm of vectors, and the greatest norm of what they lose in bfloat16."""
    norm = loss = 0.0
    for start in range(0, len(vectors), AT_ONCE):
        part = torch.from_numpy(vectors[start : start + AT_ONCE])
        norm = max(norm, part.norm(dim=1).max().item())
        loss = max(loss, (part - part.bfloat16().float()).norm(dim=1).max().item())
    return norm, loss
