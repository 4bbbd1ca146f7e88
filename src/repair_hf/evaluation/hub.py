"""Load a benchmark that is a dataset on the Hub or in a folder: its test split, and its pictures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset, DatasetDict, Image
from datasets.exceptions import DatasetsError

from repair_hf.pairs.sources import load_any
from repair_hf.runtime.options import UserError


def load_test_rows(source: str, needed: Sequence[str]) -> Dataset:
    """Load the split `test`, or the only one, of a dataset on the Hub or in a folder.

    Raises:
        UserError: If the dataset cannot be loaded, or lacks a needed column.
    """
    try:
        loaded = load_any(source)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise UserError(
            f"`{source}` cannot be loaded as a dataset: {reason}. If its terms must be accepted, do so on its page, "
            "and log in with `hf auth login`."
        ) from error
    if isinstance(loaded, DatasetDict):
        if "test" not in loaded and len(loaded) > 1:
            raise UserError(f"`{source}` has the splits {list(loaded)}, and none named test.")
        loaded = loaded["test"] if "test" in loaded else next(iter(loaded.values()))
    if lacking := [name for name in needed if name not in loaded.features]:
        raise UserError(f"`{source}` has the columns {loaded.column_names}; it lacks {', '.join(lacking)}.")
    return loaded


class EncodedImages:
    """The image files in some columns of a dataset, ordered by row, then by column; read on access."""

    def __init__(self, rows: Dataset, columns: Sequence[str]) -> None:
        rows = rows.select_columns(list(columns))
        for name in columns:
            rows = rows.cast_column(name, Image(decode=False))
        self.rows, self.columns = rows, list(columns)

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    def __getitem__(self, place: int) -> bytes | Path:
        row, column = divmod(place, len(self.columns))
        value = self.rows[row][self.columns[column]]
        return value["bytes"] or Path(value["path"])
