"""Images that count as one another while mining, against slow loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repair_hf.mining import alike
from repair_hf.mining.alike import alike_images, near_numbers
from repair_hf.pairs.dataset import load_pairs
from tests.mining.embeddings import random_unit


def parts(linked: np.ndarray) -> set[frozenset[int]]:
    """The parts of a graph, by growing each node's part until nothing more is linked to it."""
    found = set()
    for node in range(len(linked)):
        part = {node}
        while (grown := part | set(np.flatnonzero(linked[list(part)].any(0)).tolist())) != part:
            part = grown
        found.add(frozenset(part))
    return found


def sets(numbers: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(numbers == number).tolist()) for number in numbers}


@pytest.mark.parametrize("at_once", [3, 1024])
@pytest.mark.parametrize("least", [0.5, 0.8, 0.95, 1.0])
def test_near_duplicates_are_linked_in_chains(least, at_once, monkeypatch):
    monkeypatch.setattr(alike, "IMAGES_AT_ONCE", at_once)
    vectors = random_unit(np.random.default_rng(0), 40, 4)
    linked = vectors.astype(np.float64) @ vectors.T.astype(np.float64) >= least
    np.fill_diagonal(linked, True)
    assert sets(near_numbers(vectors, least)) == parts(linked)


def test_every_kind_of_likeness_joins_and_is_counted(pairs_folder):
    pairs = load_pairs(pairs_folder, split="all")
    vectors = np.eye(12, dtype=np.float32)
    vectors[6] = vectors[5]
    number, counts = alike_images(pairs, vectors)
    assert sets(number) == sets(np.arange(12)) and counts == {"equal_pixels": 0}
    looks = list(pairs.looks)
    looks[3] = looks[0]  # which equal pixels do not bear out
    named = pairs.images.add_column("group", [*"aabbcc", *map(str, range(6))])
    grouped = replace(pairs, looks=tuple(looks), images=named)
    number, counts = alike_images(grouped, vectors, 0.99)
    assert sets(number) == sets(np.array([0, 0, 1, 1, 2, 2, 2, *range(7, 12)]))
    assert counts == {"equal_pixels": 0, "near_duplicates": 2, "group": 6}
