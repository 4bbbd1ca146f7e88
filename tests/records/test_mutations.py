"""Records from outside, with one or two odd columns or cells: they are read, or an error of one line says why not."""

from __future__ import annotations

import io
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFile
import pyarrow as pa
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import pixels_of
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.columns import FEATURES
from repair_hf.records.dataset import load_dropped, load_records, summarize
from repair_hf.records.images import lacks_images, record_at, restore_images
from repair_hf.records.index import index_failures
from repair_hf.records.triplets import Counterparts, triplets
from repair_hf.runtime.options import UserError
from tests.hostile import damage

CELLS: list[Any] = [None, True, -1, 10**15, 0.5, math.nan, math.inf, "", "12", "\x00", "x" * 5000, b"\xff"]
CELLS += [[], [None], [["a"]], {"a": {"b": None}}, {"bytes": b"", "path": ""}, {"bytes": None, "path": None}]
CELLS += [{"bytes": b"GIF89a", "path": "\x00"}, {"bytes": damage.png(9, 9, 3), "path": None}, {"path": "../x.png"}]
ODD = st.sampled_from(CELLS)
KINDS = ("drop", "replace", "whole", "cell", "cell")


@st.composite
def mutations(draw) -> list[tuple[str, str, Any]]:
    """One or two changes: what to do to which column, with which value."""
    change = st.tuples(st.sampled_from(KINDS), st.sampled_from(sorted(FEATURES)), ODD)
    return draw(st.lists(change, min_size=1, max_size=2))


def changed(table: pa.Table, kind: str, column: str, value: Any) -> pa.Table:
    """Drop a column, fill it with a value of the value's own type or of the column's, or change its first cell."""
    if column not in table.column_names:
        return table
    place, field = table.column_names.index(column), table.field(column)
    if kind == "drop":
        return table.remove_column(place)
    cells = [value] * len(table) if kind in ("replace", "whole") else [value, *table[column].to_pylist()[1:]]
    try:
        found = pa.array(cells, None if kind == "replace" else field.type)
    except (pa.ArrowException, OverflowError):  # a file of this schema cannot hold it
        return table
    return table.set_column(place, field.with_type(found.type) if kind != "replace" else column, found)


@pytest.fixture(scope="module")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")


@pytest.mark.slow
@settings(max_examples=130, deadline=None)
@given(changes=mutations(), keeps_notes=st.booleans())
def test_odd_records_are_read_or_named(records_folder, pairs, changes, keeps_notes):
    """`keeps_notes`: the file still says that it has the features of records."""

    def change(table: pa.Table) -> pa.Table:
        table = pa.concat_tables([table.slice(0, 2), table.slice(len(table) - 2)]).combine_chunks()
        for each in changes:
            table = changed(table, *each)
        return table if keeps_notes else table.replace_schema_metadata(None)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(records_folder, Path(name) / "records"))
        damage.records_table(change)(folder)
        try:
            records = load_records(folder)
            read(records, folder, pairs)
        except UserError as error:
            assert str(error) and "Traceback" not in str(error) and len(str(error)) < 2000


def read(records, folder: Path, pairs) -> None:
    """Read all that the commands read of records."""
    summarize(records, load_dropped(folder))
    lacks_images(records)
    index_failures(records, pairs)
    list(triplets(records, Counterparts(pairs)))
    restored = restore_images(records, pairs)
    for place in range(len(restored)):
        record_at(restored, place)


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
