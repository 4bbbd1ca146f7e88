from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

WORDS = ['"Stop" reads the sign', "a dog, brown", "None", "it's 12 o'clock", "007", 'he says "go', "[sic] café", "NA"]
WORDS += ["null", "nan", "12", "1e3", "true", "N/A"]


@pytest.fixture
def folder(pairs_folder, tmp_path) -> Path:
    """A copy of `pairs_folder` that a test may change."""
    return shutil.copytree(pairs_folder, tmp_path / "data")


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """Forty JPEG, PNG and WebP files, and a captions.jsonl with one to three captions of each. Only read it."""
    folder, rng, lines = tmp_path_factory.mktemp("photos"), np.random.default_rng(0), []
    for k in range(40):
        smooth = PIL.Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)).resize((64, 48))
        name = f"{k:09d}.{('jpg', 'jpg', 'png', 'webp')[k % 4] if k > 5 else 'jpg'}"
        smooth.save(folder / name)
        words = [WORDS[(k + place) % len(WORDS)] for place in range(k % 3 + 1)]
        captions = [*(f"{word} {k}" for word in words[1:]), words[0]]
        lines.append(json.dumps({"image": name, "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def some_photos(photos, tmp_path_factory) -> Path:
    """The first sixteen of `photos`. Only read it."""
    folder, lines = tmp_path_factory.mktemp("some-photos"), (photos / "captions.jsonl").read_text().splitlines()[:16]
    for line in lines:
        name = json.loads(line)["image"]
        shutil.copy(photos / name, folder / name)
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder
