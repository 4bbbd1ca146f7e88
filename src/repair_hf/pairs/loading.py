"""Load a dataset of the Hub or of a folder with `datasets`, whole or as a stream."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError
from yaml import YAMLError

from repair_hf.pairs.streaming import Stream
from repair_hf.pairs.tables import TABLES
from repair_hf.runtime.disk import is_full
from repair_hf.runtime.hub_access import name_for_datasets
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped

# What `datasets` raises: no such data, no network, a damaged file, a header of README.md that is no YAML, ...
UNLOADABLE = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, YAMLError, DatasetsError)


def load_any(source: str, config: str | None = None, revision: str | None = None) -> Dataset | DatasetDict:
    """Load a dataset by Hub id, or from a folder of `save_to_disk` or of data files."""
    is_saved = any((Path(source) / name).is_file() for name in ("dataset_dict.json", "state.json"))
    return load_from_disk(source) if is_saved else load_dataset(name_for_datasets(source), config, revision=revision)


def load_or_stream(
    source: str, config: str | None, revision: str | None, streamed_image: str | None
) -> tuple[Dataset | DatasetDict, Stream | None]:
    """Load a dataset, or open it as a stream, whose image column is given: its splits are without their rows.

    Raises:
        UserError: If it cannot be loaded.
    """
    folder = Path(source)
    if folder.exists() and (config or revision or streamed_image):
        raise UserError(
            f"`{source}` is on this machine; `pairs_config`, `pairs_revision` and `stream` are for the Hub."
        )
    if folder.is_file():
        raise UserError(
            f"`{source}` is a file; only tables ({', '.join(TABLES)}) and caption JSONs (.json) are read as one. Give "
            "one of these, or the folder of a dataset."
        )
    try:
        stream = None if streamed_image is None else Stream(source, config, revision, streamed_image)
        return load_any(source, config, revision) if stream is None else stream.empty(), stream
    except UNLOADABLE as error:
        here = "" if folder.exists() else "is not a local file or folder, and "
        raise UserError(
            f"`{source}` {here}cannot be loaded as a dataset: {_reason(error)}. Give a folder with captions.jsonl, a "
            "table, a COCO caption JSON, or the Hub id or folder of a dataset."
        ) from error


def stream_rows(stream: Stream, split: str) -> Dataset:
    """Return the rows of a split of a stream.

    Raises:
        RunStopped: If the stream breaks off.
    """
    try:
        return stream.rows(split)
    except UNLOADABLE as error:
        if is_full(error):
            raise
        raise RunStopped(
            f"The stream of `{stream.source}` broke off: {_reason(error)}. Rerun the same command to resume."
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
