"""What the tests of the synthesis share: an encoder, and the pictures of `pairs_folder`."""

from __future__ import annotations

import datasets
import pytest
from small_world import World

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.synthesis.sources import SourceImages


@pytest.fixture(scope="session")
def encoder(clip_folder) -> DualEncoder:
    return DualEncoder.from_pretrained(str(clip_folder))


@pytest.fixture(scope="session")
def sources(pairs_folder) -> SourceImages:
    paths = sorted(map(str, pairs_folder.glob("*.png")))
    return SourceImages(datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image()))


@pytest.fixture(scope="session")
def world(encoder, tmp_path_factory) -> World:
    """Sixteen images; failures of all of them, and of every eighth caption."""
    folder = tmp_path_factory.mktemp("world") / "world"
    return World.build(folder, encoder, 16, keep=lambda row: row["direction"] == "i2t" or row["q"] % 8 == 0)
