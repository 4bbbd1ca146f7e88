from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(pairs_folder, tmp_path) -> Path:
    """A copy of `pairs_folder` that a test may change."""
    return shutil.copytree(pairs_folder, tmp_path / "data")
