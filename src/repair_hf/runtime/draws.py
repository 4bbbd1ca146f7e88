"""Random numbers that depend on what they are drawn for, and on no state."""

from __future__ import annotations

import numpy as np


def uniforms(seed: int, epoch: np.ndarray, items: np.ndarray, stream: int) -> np.ndarray:
    """Draw one number in [0, 1) per item as a function of the four arguments alone.

    The generator is stateless (the mixing steps of SplitMix64). Each argument is mixed in by itself: if two were added
    first, one seed would draw in its fifth epoch what another draws in its first.

    Shape:
        epoch, items: (n,) integers. Returns (n,) float64.
    """
    state = np.zeros(1, np.uint64)  # seed and stream are mixed in once for all items
    for value in (np.uint64(seed % 2**64), np.uint64(stream), epoch.astype(np.uint64), items.astype(np.uint64)):
        state = _mix(state + value)
    return (state >> np.uint64(11)).astype(np.float64) / 2**53


def _mix(state: np.ndarray) -> np.ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
