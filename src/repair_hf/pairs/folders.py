"""List the data files of a local folder with their splits, and load them; or load a dataset of the Hub.

`datasets` gets the files of a folder by name. Given the folder alone, it leaves out files beside one that names a
split, fetches what a README.md names elsewhere, and takes the cache of another folder of the same name.

img2dataset writes tars, texts or Parquet files, and beside them a Parquet file and `_stats.json` of each shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePath
from typing import Any

import pyarrow.parquet as pq
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
from datasets.data_files import sanitize_patterns
from datasets.exceptions import DatasetsError
from yaml import YAMLError

from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import TEXT_FILE, is_table, load_table
from repair_hf.runtime.files import REPAIR, intact
from repair_hf.runtime.hub_access import name_for_datasets
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.runtime.texts import parse_yaml

KINDS = ("jpg", "jpeg", "png", "webp")  # names of files, and of columns of images
SPLIT_OF_WORD = {"train": "train", "training": "train", "test": "test", "testing": "test", "eval": "test"}
SPLIT_OF_WORD |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
READER = {".parquet": "parquet", ".tar": "webdataset", **dict.fromkeys((".csv", ".tsv", ".jsonl", ".json"), "table")}
_HEADER = re.compile(r"\A---\s*\n(.*?)\n---", re.DOTALL)
Files = Mapping[str, Sequence[Path]]  # by split


# What `datasets` raises: no such data, no network, a damaged file, a header of README.md that is no YAML, ...
UNLOADABLE = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, YAMLError, DatasetsError)


@contextmanager
def loading(source: str | Path, remedy: str, fault: str = "cannot be loaded as a dataset") -> Iterator[None]:
    """Turn what `datasets` raises for an absent or a damaged source into a `UserError` of one line."""
    try:
        yield
    except UserError:
        raise
    except UNLOADABLE as error:
        here = "" if Path(source).exists() else ", and is no folder here"
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise UserError(f"{source} {fault}{here}: {reason}. {remedy}") from error


def load_any(
    source: str,
    problems: Problems,
    *,
    config: str | None = None,
    revision: str | None = None,
    of_tars: Features | None = None,
) -> Dataset | DatasetDict:
    """Load a dataset by Hub id, from a `save_to_disk` folder, or from data files; `of_tars` are features of tars."""
    if any((Path(source) / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return load_from_disk(source)
    if Path(source).exists():
        files = data_files(Path(source), problems) if Path(source).is_dir() else {"train": [Path(source)]}
        return load_files(files, problems, of_tars)
    name = name_for_datasets(source)
    is_of_tars = of_tars and load_dataset_builder(name, config, revision=revision).name == "webdataset"
    return load_dataset(name, config, revision=revision, features=of_tars if is_of_tars else None)


def load_pairs_of(options: PairsOptions, problems: Problems) -> Dataset | DatasetDict:
    """Load a dataset of pairs: a folder of images with their captions beside them, or as `load_any`.

    Raises:
        UserError: If it holds none of them, or of several kinds.
    """
    path = Path(options.pairs)
    metadata = sorted(file for where in ("", "*/") for file in path.glob(f"{where}metadata.*") if is_table(file))
    rows = [_metadata(table, table.parent.relative_to(path), problems) for table in metadata]
    of_images = concatenate_datasets(rows) if rows else _with_texts(path)
    if of_images is None:
        named = {"config": options.pairs_config, "revision": options.pairs_revision}
        return load_any(options.pairs, problems, **named, of_tars=_features_of_tars(options))
    if unread := [file for file in _candidates(path) if file not in metadata]:
        raise UserError(
            f"`{path}` has captions beside its images, and {unread[0].relative_to(path)}, which is not read. Move it "
            "away, or give it as the source."
        )
    return _with_splits(of_images)


def data_files(folder: Path, problems: Problems) -> dict[str, list[Path]]:
    """List the data files of a folder and of the folders in it, by split.

    If a README.md has `configs`, they say which files are data, and of which split. Otherwise all are, and a word in
    the folders or the name says the split, such as `test` in `data/test-00000.parquet`. If only some files have such a
    word, the others are `train`.

    Raises:
        UserError: If there are none, they are of several kinds, or the README.md names others than these.
    """
    names = [file.relative_to(folder) for file in _candidates(folder)]
    declared = _declared(folder, names)
    split_of_name: dict[PurePath, str | None] = {name: split_of(name) for name in names}
    if declared is not None:
        split_of_name = {**declared}
    else:
        lacking = [name for name, split in split_of_name.items() if split is None]
        if 0 < len(lacking) < len(names):
            problems.warnings.append(
                f"The names of {len(lacking)} of {len(names)} files say no split, such as {lacking[0]}; they are read "
                "as `train`."
            )
    if not split_of_name:
        content = "images, and no captions" if _images(folder) else "no data that can be read"
        raise UserError(
            f"`{folder}` has {content}. Put a captions.jsonl, or a text of the same name as each image, beside the "
            "images; or give a folder of Parquet, CSV, JSON Lines or tar files."
        )
    kinds = {READER[name.suffix.lower()]: name for name in split_of_name}
    if len(kinds) > 1:
        raise UserError(
            f"`{folder}` holds data of several kinds: {', '.join(map(str, kinds.values()))}. Give one of them, or a "
            "folder of one kind."
        )
    files: dict[str, list[Path]] = {}
    for name, split in split_of_name.items():
        files.setdefault(split or "train", []).append(folder / name)
    return files


def split_of(name: PurePath) -> str | None:
    """Return the split that a word in the folders or in the stem of a relative path names."""
    parts = (*name.parent.parts, name.stem)
    words = (word for part in parts for word in re.split(r"[\W\d_]+", part.lower()))
    return next((SPLIT_OF_WORD[word] for word in words if word in SPLIT_OF_WORD), None)


def load_files(files: Files, problems: Problems, features: Features | None = None) -> DatasetDict:
    """Load data files of one kind, by split; `features` are those of tars.

    Parquet files without rows are left out: `datasets` cannot load them.
    """
    kind = READER[next(iter(files.values()))[0].suffix.lower()]
    if kind == "table":
        tables = {split: [load_table(path, problems) for path in paths] for split, paths in files.items()}
        return DatasetDict({split: concatenate_datasets(parts) for split, parts in tables.items()})
    if kind == "parquet":
        files = {split: [path for path in paths if pq.read_metadata(path).num_rows] for split, paths in files.items()}
    named = {split: [escape(str(path.absolute())) for path in paths] for split, paths in files.items() if paths}
    if not named:
        return DatasetDict()
    return load_dataset(kind, data_files=named, features=features if kind == "webdataset" else None)


def _candidates(folder: Path) -> list[Path]:
    """List the files that may hold rows, without what img2dataset writes about each shard."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in READER and path.is_file() and not _is_hidden(path.relative_to(folder))
    )
    shards = {path.with_suffix("") for path in files if path.suffix == ".tar"}
    return [
        path
        for path in files
        if path.suffix == ".tar"
        or path.with_suffix("") not in shards
        and not path.with_suffix("").is_dir()
        and (path.suffix.lower() != ".json" or is_table(path))
    ]


def _is_hidden(name: PurePath) -> bool:
    return any(part.startswith((".", "__")) for part in name.parts)


def _declared(folder: Path, names: Sequence[PurePath]) -> dict[PurePath, str] | None:
    """Return the files that the README.md names, with their splits; None if it names none."""
    configs = _configs(folder / "README.md")
    if len(configs) > 1:
        raise UserError(
            f"`{folder}` holds several datasets: {', '.join(str(one.get('config_name')) for one in configs)}. Give "
            "the files or the folder of one of them."
        )
    if not configs:
        return None
    start = f"{configs[0]['data_dir']}/" if configs[0].get("data_dir") else ""
    patterns = sanitize_patterns(configs[0].get("data_files") or "**")
    declared: dict[PurePath, str] = {}
    for split, pattern in ((split, f"{start}{one}") for split, some in patterns.items() for one in some):
        members = [name for name in names if _matches(name.as_posix(), pattern.removeprefix("./"))]
        if not members:
            raise UserError(
                f"{folder / 'README.md'} names `{pattern}`, which is no data file of this folder. Correct its "
                "`configs`, or delete them."
            )
        declared |= dict.fromkeys(members, split)
    return declared


def _configs(readme: Path) -> list[dict[str, Any]]:
    """Return the configurations that name data files in the header of a README.md."""
    if not readme.is_file():
        return []
    with intact(readme, REPAIR):
        header = _HEADER.match(readme.read_text(encoding="utf-8"))
        values = parse_yaml(header[1]) if header else None
        configs = values.get("configs") if isinstance(values, dict) else None
        return [one for one in configs or () if one.keys() & {"data_files", "data_dir"}]


def _matches(name: str, pattern: str) -> bool:
    """Match a relative path; `*` matches no slash, `**` does."""
    return ("**" in pattern or name.count("/") == pattern.count("/")) and fnmatchcase(name, pattern)


def _features_of_tars(options: PairsOptions) -> Features:
    # `datasets` infers columns from the first five samples; the images of others may be of other kinds
    images = (*KINDS, options.image_column) if options.image_column != PairsOptions.image_column else KINDS
    captions = options.caption_column.split(",") if options.caption_column != PairsOptions.caption_column else ()
    texts = dict.fromkeys(("__key__", TEXT_FILE, *(name.strip() for name in captions)), Value("string"))
    return Features(dict.fromkeys(images, Image()) | texts)


def _metadata(table: Path, folder: Path, problems: Problems) -> Dataset:
    """Load the rows of an image folder's metadata, whose file names start in its own folder."""
    rows = load_table(table, problems)
    if "file_name" not in rows.features:
        return rows
    images = [name and (folder / name).as_posix() for name in rows["file_name"][:]]
    return rows.remove_columns("file_name").add_column("image", images)


def _images(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.suffix[1:].lower() in KINDS]


def _with_texts(folder: Path) -> Dataset | None:
    """List all images of a folder and its folders with the text of the same name, if any has one."""
    texts = {file.with_suffix(""): file for file in folder.rglob("*.txt")}
    images = _images(folder) if texts else []
    if not any(file.with_suffix("") in texts for file in images):
        return None
    captions = [_text(texts.get(file.with_suffix(""))) for file in images]
    names = [file.relative_to(folder).as_posix() for file in images]
    return Dataset.from_dict({"image": names, TEXT_FILE: captions})


def _text(file: Path | None) -> str | None:
    if file is None:
        return None
    with intact(file, REPAIR):
        return file.read_text(encoding="utf-8-sig")


def _with_splits(rows: Dataset) -> Dataset:
    """Let the folders of images name their splits, as `data_files` does, unless a column names them."""
    if "split" in rows.features or "image" not in rows.features:
        return rows
    splits = [split_of(PurePath(name).parent / "_") if name else None for name in rows["image"][:]]
    return rows.add_column("split", [split or "train" for split in splits]) if any(splits) else rows
