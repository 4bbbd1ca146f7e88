"""Read a folder of image files with their captions beside them: in metadata, in a text for each image, or in tars.

img2dataset writes tars, texts or Parquet files, and beside them a Parquet file and `_stats.json` of each shard.
"""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Image, Value, concatenate_datasets, load_dataset

from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import load_table
from repair_hf.runtime.files import REPAIR, intact
from repair_hf.runtime.options import PairsOptions

KINDS = ("jpg", "jpeg", "png", "webp")  # names of files, and of columns of images
SPLITS = ("train", "validation", "val", "dev", "test")


def load_folder(path: Path, captions: list[str], problems: Problems) -> Dataset | DatasetDict | None:
    """Load a folder, or a tar; None if it is of another kind. Of tars, `captions` are read beside the usual texts."""
    if path.suffix == ".tar" or any(path.glob("*.tar")):
        return _tars(path, captions)
    tables = sorted(file for where in ("", "*/") for file in path.glob(f"{where}metadata.*") if file.suffix != ".json")
    if rows := [_metadata(table, table.parent.relative_to(path), problems) for table in tables]:
        return _with_splits(concatenate_datasets(rows))
    if (found := _with_texts(path)) is not None:
        return _with_splits(found)
    if any(path.glob("*_stats.json")):
        return load_dataset("parquet", data_files=sorted(map(str, path.glob("*.parquet"))))
    return None


def _tars(path: Path, captions: list[str]) -> DatasetDict:
    # `datasets` infers columns from the first five samples; the images of others may be of other kinds
    named = [name for name in captions if name != PairsOptions.caption_column]
    texts = dict.fromkeys(("txt", "__key__", *named), Value("string"))
    features = Features(dict.fromkeys(KINDS, Image()) | texts)
    if path.is_dir() and all(file.suffix == ".tar" for file in path.iterdir()):
        return load_dataset("webdataset", data_dir=str(path), features=features)  # with splits by their names
    files = sorted(path.glob("*.tar")) if path.is_dir() else [path]
    return load_dataset("webdataset", data_files=list(map(str, files)), features=features)


def _metadata(table: Path, folder: Path, problems: Problems) -> Dataset:
    """Load the rows of an image folder's metadata, whose file names start in its own folder."""
    rows = load_table(table, problems)
    if "file_name" not in rows.features:
        return rows
    images = [name and (folder / name).as_posix() for name in rows["file_name"][:]]
    return rows.remove_columns("file_name").add_column("image", images)


def _with_texts(folder: Path) -> Dataset | None:
    """List all images of a folder and its folders with the text of the same name, if any has one."""
    texts = {file.with_suffix(""): file for file in folder.rglob("*.txt")}
    images = [file for file in sorted(folder.rglob("*")) if texts and file.suffix[1:].lower() in KINDS]
    if not any(file.with_suffix("") in texts for file in images):
        return None
    captions = [_text(texts.get(file.with_suffix(""))) for file in images]
    return Dataset.from_dict({"image": [file.relative_to(folder).as_posix() for file in images], "caption": captions})


def _text(file: Path | None) -> str | None:
    if file is None:
        return None
    with intact(file, REPAIR):
        return file.read_text(encoding="utf-8-sig")


def _with_splits(rows: Dataset) -> Dataset:
    """Let the folders of images be their splits, if all of them are called so and no column names splits."""
    folders = [(name or "").partition("/")[0] for name in rows["image"][:]] if "image" in rows.features else []
    if "split" in rows.features or not folders or not set(folders) <= set(SPLITS):
        return rows
    return rows.add_column("split", folders)
