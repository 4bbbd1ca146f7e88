"""Columns of images and captions in all the types in which datasets and Parquet files hold them."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, Image

from repair_hf.pairs import images
from repair_hf.pairs.dataset import Pairs, load_pairs
from tests.pairs.made_sources import as_dataset, content, rows_of

FILES = {
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "struct": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
    "turned struct": pa.struct({"path": pa.string(), "bytes": pa.large_binary()}),
    "struct of bytes": pa.struct({"bytes": pa.binary()}),
}


@pytest.fixture(scope="module")
def looks(pairs_folder):
    """What identifies the pictures of the folder."""
    return load_pairs(pairs_folder, split="all").looks


@pytest.mark.parametrize(
    ("file", "text"),
    [*((file, pa.string()) for file in FILES), ("binary", pa.large_string()), ("turned struct", pa.string_view())],
)
def test_image_files_and_captions_of_any_type(pairs_folder, looks, tmp_path, file, text):
    rows, kind = rows_of(pairs_folder), FILES[file]
    cells = [{"bytes": (pairs_folder / row["image"]).read_bytes(), "path": row["image"]} for row in rows]
    if pa.types.is_struct(kind):
        cells = [{field.name: cell[field.name] for field in kind} for cell in cells]
    else:
        cells = [cell["bytes"] for cell in cells]
    columns = {"image": pa.array(cells, kind), "filename": [row["image"] for row in rows]}
    columns["caption"] = pa.array([row["captions"][0] for row in rows], text)
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    for source in (tmp_path / "rows.parquet", tmp_path):
        pairs = load_pairs(source, split="all", strict=True)
        assert content(pairs) == {row["image"]: row["captions"][:1] for row in rows}
        assert pairs.looks == looks
    assert content(Pairs.from_dataset(Dataset(pa.table(columns)))) == content(pairs)


def memory_of(load: Callable[[], Pairs]) -> tuple[Pairs, int, int]:
    """Return pairs, the most bytes of Python that loading them took, and the bytes of Arrow that it kept."""
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    pairs = load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return pairs, peak, pa.total_allocated_bytes() - before


@pytest.fixture(scope="module")
def noise() -> Dataset:
    """12 pictures of 480 kB that are in memory; not compressed, as that takes long."""
    cells = []
    for drawn in np.random.default_rng(0).integers(0, 256, (12, 400, 400, 3), dtype=np.uint8):
        PIL.Image.fromarray(drawn).save(file := io.BytesIO(), "png", compress_level=0)
        cells.append({"bytes": file.getvalue(), "path": None})
    columns = {"image": cells, "caption": [f"noise {k}" for k in range(12)]}
    return Dataset.from_dict(columns).cast_column("image", Image())


@pytest.mark.parametrize("form", ["selection", "slice", "added column", "splits"])
def test_a_dataset_in_memory_takes_no_more_memory_than_a_file(tmp_path, noise, form, monkeypatch):
    """`datasets` would copy and pickle a table without a fingerprint, which also fails above 2 GiB."""
    monkeypatch.setattr(images, "THREADS", 1)  # several may decode a picture at the same moment, or may not
    data, size = noise, noise.data.nbytes
    if form == "selection":
        data = data.select([*range(11, 0, -1)])
    elif form == "slice":
        data = data.select(range(2, 10))
    elif form == "added column":
        data = data.add_column("x", list(range(12))).select_columns(["image", "caption"])
    data.save_to_disk(tmp_path / "saved")
    given = DatasetDict({"train": data, "test": data.select([0])}) if form == "splits" else data
    expected, peak, _ = memory_of(lambda: load_pairs(tmp_path / "saved", split="all"))
    found, own_peak, kept = memory_of(lambda: Pairs.from_dataset(given, split="train" if form == "splits" else "all"))
    assert found.looks == expected.looks and found.captions["caption"][:] == expected.captions["caption"][:]
    assert size > 5e6 and kept < 0.1 * size and own_peak < 1.1 * peak


def test_a_dataset_in_memory_keeps_its_order_and_images(pairs_folder):
    data = as_dataset(pairs_folder)
    images = [image.getpixel((24, 20)) for image in Pairs.from_dataset(data.select([7, 2, 2, 9])).images["image"]]
    assert images == [data[row]["image"].getpixel((24, 20)) for row in (7, 2, 9)]
