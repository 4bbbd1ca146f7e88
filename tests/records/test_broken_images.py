"""Images of records are opened when they are loaded, and decoded when they are needed: a broken one is named then."""

from __future__ import annotations

import io
import shutil

import numpy as np
import PIL.Image
import PIL.ImageFile
import pytest
from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import pixels_of
from repair_hf.records.dataset import load_records
from repair_hf.records.images import record_at
from repair_hf.runtime.options import UserError
from tests.hostile import damage


def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.effect_noise((64, 64), 50).save(buffer, kind)
    return buffer.getvalue()


def with_edit(folder, target, content: bytes) -> Dataset:
    """The records of a copy of a folder, the first of which has this edited image."""
    damage.cells("edit_image", [{"bytes": content, "path": "edit.png"}])(shutil.copytree(folder, target))
    return load_records(target)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_what_is_cut_off_is_named_where_it_is_decoded(kind, records_folder, clip_folder, tmp_path):
    records = with_edit(records_folder, tmp_path / "data", picture(kind)[:-300])
    with pytest.raises(UserError, match=f"^The record {records['record_id'][0]} holds an image that cannot be decod"):
        record_at(records, 0)
    preprocessor = DualEncoder.from_pretrained(clip_folder).preprocessor
    with pytest.raises(UserError, match=r"^One of .* of `edit_image`, row 0 .* cannot be decoded"):
        pixels_of(records, "edit_image", preprocessor, cache_images=False)[np.array([0])]
    with pytest.raises(UserError, match="images 0 to 7 cannot be decoded"):
        pixels_of(records.select([0] * 8), "edit_image", preprocessor, cache_images=True)


def test_loading_decodes_nothing(records_folder, monkeypatch):
    loaded = []
    load = PIL.ImageFile.ImageFile.load
    monkeypatch.setattr(PIL.ImageFile.ImageFile, "load", lambda image: loaded.append(image) or load(image))
    records = load_records(records_folder)
    assert not loaded and record_at(records, 0) and loaded
