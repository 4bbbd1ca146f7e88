from pathlib import Path

import pytest


@pytest.fixture(params=["clip_folder", "siglip_folder"])
def folder(request) -> Path:
    """Either model with its processor."""
    return request.getfixturevalue(request.param)
