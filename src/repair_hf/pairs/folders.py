"""Load a dataset; a folder of image files with their captions beside them: in metadata, in texts, or in tars.

img2dataset writes tars, texts or Parquet files, and beside them a Parquet file and `_stats.json` of each shard.
"""

from __future__ import annotations

from pathlib import Path

from datasets import (
    Dataset,
    DatasetDict,
    Features,
    Image,
    Value,
    concatenate_datasets,
    load_dataset,
    load_dataset_builder,
    load_from_disk,
)
from huggingface_hub import snapshot_download

from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import load_table
from repair_hf.runtime.files import REPAIR, intact
from repair_hf.runtime.hub_access import name_for_datasets
from repair_hf.runtime.options import PairsOptions

KINDS = ("jpg", "jpeg", "png", "webp")  # names of files, and of columns of images
SPLITS = ("train", "validation", "val", "dev", "test")


def load_any(source: str) -> Dataset | DatasetDict:
    """Load a dataset by Hub id, or from a folder of `save_to_disk` or of data files."""
    return load_from_disk(source) if _is_saved(source) else load_dataset(name_for_datasets(source))


def load_folder(path: Path, options: PairsOptions, problems: Problems) -> Dataset | DatasetDict | None:
    """Load a folder, or a tar; None if it is of another kind."""
    beside = {file.suffix for file in path.glob("*")}
    if path.suffix == ".tar" or ".tar" in beside and beside & {".json", ".parquet"}:  # else `datasets` finds the tars
        tars = [path] if path.is_file() else sorted(path.glob("*.tar"))
        return load_dataset("webdataset", data_files=list(map(str, tars)), features=_of_tars(options))
    tables = sorted(file for where in ("", "*/") for file in path.glob(f"{where}metadata.*") if file.suffix != ".json")
    if rows := [_metadata(table, table.parent.relative_to(path), problems) for table in tables]:
        return _with_splits(concatenate_datasets(rows))
    if (found := _with_texts(path)) is not None:
        return _with_splits(found)
    if any(path.glob("*_stats.json")):
        return load_dataset("parquet", data_files=sorted(map(str, path.glob("*.parquet"))))
    return None


def load_pairs_of(options: PairsOptions, problems: Problems) -> Dataset | DatasetDict:
    """Load any dataset of pairs: tables without pandas, which drops captions such as `NA`, and all images of tars."""
    source, config, revision = options.pairs, options.pairs_config, options.pairs_revision
    path, name = Path(source), name_for_datasets(source)
    found = load_folder(path, options, problems) if path.exists() else None
    if found is not None or _is_saved(source):
        return load_any(source) if found is None else found
    builder = load_dataset_builder(name, config, revision=revision)
    files = {str(split): list(map(Path, paths)) for split, paths in (builder.config.data_files or {}).items()}
    if builder.name == "csv" and path.exists():
        tables = {split: [load_table(path, problems) for path in paths] for split, paths in files.items()}
        return DatasetDict({split: concatenate_datasets(each) for split, each in tables.items()})
    names = {path.name for paths in files.values() for path in paths}
    if not path.exists() and "metadata.csv" in names and builder.config.name == "default":
        folder = Path(snapshot_download(source, repo_type="dataset", revision=revision))
        rows = load_folder(folder, options, problems)
        if isinstance(rows, Dataset) and "image" in rows.features:
            images = [name and str(folder / name) for name in rows["image"][:]]
            return rows.remove_columns("image").add_column("image", images).cast_column("image", Image())
    features = _of_tars(options) if builder.name == "webdataset" else None
    return load_dataset(name, config, revision=revision, features=features)


def _is_saved(source: str) -> bool:
    return any((Path(source) / name).is_file() for name in ("dataset_dict.json", "state.json"))


def _of_tars(options: PairsOptions) -> Features:
    # `datasets` infers columns from the first five samples; the images of others may be of other kinds
    images = (*KINDS, options.image_column) if options.image_column != PairsOptions.image_column else KINDS
    captions = options.caption_column.split(",") if options.caption_column != PairsOptions.caption_column else ()
    texts = dict.fromkeys(("__key__", "txt", *(name.strip() for name in captions)), Value("string"))
    return Features(dict.fromkeys(images, Image()) | texts)


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
