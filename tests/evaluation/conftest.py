"""Photographs for the benchmarks, and a tiny encoder."""

import pytest
from benchmark_files import COLORS
from PIL import Image

from repair_hf.encoder.dual_encoder import DualEncoder


@pytest.fixture
def photographs(tmp_path):
    """Left half of its color, right half white, so that a cut shows."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for color in COLORS:
        picture = Image.new("RGB", (40, 30), "white")
        picture.paste(color, (0, 0, 20, 30))
        picture.save(folder / f"{color}.png")
    return folder


@pytest.fixture
def encoder(clip_folder):
    return DualEncoder.from_pretrained(clip_folder)
