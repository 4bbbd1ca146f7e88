"""Stream splits of a Hub dataset into the local cache, once: its own files are neither downloaded whole nor kept.

A split is a folder of Arrow files of `ROWS` rows. With each file stands the place in the stream where it ends, so an
interrupted stream goes on from there. All rows are of the commit that was the newest at the first time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import filelock
from datasets import Dataset, DatasetDict, Features, Image, IterableDataset, concatenate_datasets, load_dataset
from datasets.arrow_writer import ArrowWriter
from datasets.features.features import require_decoding
from datasets.utils.file_utils import xopen
from huggingface_hub import HfApi, cached_assets_path
from tqdm import tqdm

from repair_hf.pairs.images import MAX_BYTES
from repair_hf.runtime.hub_access import settle_hub
from repair_hf.runtime.locks import LOCK
from repair_hf.runtime.run_folder import digest, write_atomically

logger = logging.getLogger(__name__)

ROWS, ROWS_IN_MEMORY = 1000, 50
PLACE = "place.json"
START: dict[str, Any] = {"files": 0, "rows": 0, "state": None, "is_end": False}


class Stream:
    """A dataset of the Hub that is streamed into the cache, without columns that open files but the image column.

    Raises:
        Exception: What `datasets` and `huggingface_hub` raise if it cannot be read, see `loading.UNLOADABLE`.
    """

    def __init__(self, source: str, config: str | None, revision: str | None, image: str) -> None:
        self.source, self.config, self.image = source, config, image
        name = digest([source, config, revision, image])
        self.folder = cached_assets_path("repair_hf", "streams", subfolder=name)
        with filelock.FileLock(self.folder / LOCK):
            plan = _read(self.folder / "dataset.json") or self._settle(revision)
        self.commit = plan["commit"]
        self.features = {split: Features.from_dict(columns) for split, columns in plan["splits"].items()}

    def empty(self) -> DatasetDict:
        """Return all splits without their rows, to check the columns before any row is read."""
        splits = self.features.items()
        return DatasetDict({name: Dataset.from_dict({each: [] for each in kinds}, kinds) for name, kinds in splits})

    def rows(self, split: str) -> Dataset:
        """Return the rows of a split, after streaming those that are not in the cache yet."""
        folder = self.folder / digest(split)
        with filelock.FileLock(self.folder / LOCK):
            folder.mkdir(exist_ok=True)
            place = _read(folder / PLACE) or START
            if not place["is_end"]:
                place = self._stream(split, folder, place)
        return concatenate_datasets([Dataset.from_file(str(_file(folder, k))) for k in range(place["files"])])

    def _settle(self, revision: str | None) -> dict[str, Any]:
        settle_hub(self.source)
        self.commit = HfApi().dataset_info(self.source, revision=revision).sha
        splits = {split: stream.features.to_dict() for split, stream in self._open().items()}
        plan = {"commit": self.commit, "splits": splits}
        write_atomically(self.folder / "dataset.json", json.dumps(plan))
        return plan

    def _open(self) -> dict[str, IterableDataset]:
        streams = load_dataset(self.source, self.config, revision=self.commit, streaming=True)
        return {split: self._with_own_columns(stream) for split, stream in streams.items()}

    def _with_own_columns(self, stream: IterableDataset) -> IterableDataset:
        kinds = (stream if stream.features is not None else stream._resolve_features()).features or {}
        stream = stream.select_columns(
            [name for name in kinds if name == self.image or not require_decoding(kinds[name])]
        )
        is_image = isinstance(kinds.get(self.image), Image)
        return stream.cast_column(self.image, Image(decode=False)) if is_image else stream

    def _stream(self, split: str, folder: Path, place: dict[str, Any]) -> dict[str, Any]:
        settle_hub(self.source)
        stream = self._open()[split]
        if place["state"] is not None:
            stream.load_state_dict(place["state"])
        title = f"Streaming {self.source}, {split}"
        rows = iter(tqdm(stream, desc=title, initial=place["rows"], delay=3, disable=None))
        while not place["is_end"]:
            some = map(self._with_bytes, islice(rows, ROWS))
            count = _write(_file(folder, place["files"]), self.features[split], some)
            place = {"files": place["files"] + 1, "rows": place["rows"] + count, "is_end": count < ROWS}
            place["state"] = stream.state_dict()
            write_atomically(folder / PLACE, json.dumps(place))
        named = (self.source, self.commit, f"{place['rows']:,}", split, self.folder)
        logger.info("%s, commit %s: %s rows of %s are in the cache. To read them anew, delete %s.", *named)
        return place

    def _with_bytes(self, row: dict[str, Any]) -> dict[str, Any]:
        """Read an image that is a file of this dataset. Other paths stay: nobody vouches for where they lead."""
        match row.get(self.image):
            case {"bytes": None, "path": str() as path} if path.split("::")[-1].startswith(self._own_files):
                with xopen(path, "rb") as file:
                    return row | {self.image: {"bytes": file.read(MAX_BYTES + 1), "path": None}}
        return row

    @property
    def _own_files(self) -> str:
        return f"hf://datasets/{self.source}@"


def _read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _write(file: Path, features: Features, rows: Iterable[dict[str, Any]]) -> int:
    draft, count = file.with_suffix(".draft"), 0
    with ArrowWriter(path=str(draft), features=features, writer_batch_size=ROWS_IN_MEMORY) as writer:
        for row in rows:
            writer.write(row)
            count += 1
        writer.finalize()
    draft.replace(file)
    return count


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.arrow"
