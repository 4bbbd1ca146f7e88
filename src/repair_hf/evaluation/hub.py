"""Load a benchmark that is a dataset on the Hub or in a folder: its test split, and its pictures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset, DatasetDict

from repair_hf.pairs.admission import admit_images
from repair_hf.pairs.cells import undecoded
from repair_hf.pairs.sources import UNLOADABLE, load_any
from repair_hf.runtime.options import UserError

EXPORTED = ("id", "kind", "image_id")  # columns that `repair-hf export near-misses` adds


def load_test_rows(source: str, images: Sequence[str], texts: Sequence[str], others: Sequence[str] = ()) -> Dataset:
    """Load columns of the split `test`, or of the only one, of a dataset on the Hub or in a folder.

    `others` may be absent.

    Raises:
        UserError: If the dataset cannot be loaded, or lacks a needed column.
    """
    try:
        loaded = load_any(source)
    except UNLOADABLE as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise UserError(
            f"`{source}` cannot be loaded as a dataset: {reason}. If its terms must be accepted, do so on its page, "
            "and log in with `hf auth login`."
        ) from error
    if isinstance(loaded, DatasetDict):
        if "test" not in loaded and len(loaded) > 1:
            raise UserError(f"`{source}` has the splits {list(loaded)}, and none named test.")
        loaded = loaded["test"] if "test" in loaded else next(iter(loaded.values()))
    if lacking := [name for name in (*images, *texts) if name not in loaded.features]:
        raise UserError(f"`{source}` has the columns {loaded.column_names}; it lacks {', '.join(lacking)}.")
    wanted = [name for name in loaded.column_names if name in (*images, *texts, *others)]
    return admit_images(loaded.select_columns(wanted), source, images, decode=False)


def exported_kinds(rows: Sequence[dict]) -> list[str]:
    """Return the kind of each row of `repair-hf export near-misses`; empty for another dataset."""
    is_export = bool(rows) and all(isinstance(rows[0].get(name), str) for name in EXPORTED)
    return [row["kind"] for row in rows] if is_export else []


class EncodedImages:
    """The image files in some columns of a dataset, ordered by row, then by column; read on access.

    `chosen` keeps those at some places of this order.
    """

    def __init__(
        self, rows: Dataset, columns: Sequence[str], chosen: Sequence[int] | np.ndarray | None = None
    ) -> None:
        self.columns = [undecoded(rows, name)[name] for name in columns]
        self.chosen = np.arange(len(columns) * len(rows)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, place: int) -> bytes | Path:
        row, column = divmod(int(self.chosen[place]), len(self.columns))
        cell = self.columns[column][row]
        return Path(cell["path"]) if cell["bytes"] is None else cell["bytes"]
