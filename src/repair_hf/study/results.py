"""The results of a study: one Parquet file with a row per cell, from which alone all tables are made.

| columns | |
|---|---|
| `data`, `method`, `split`, `seed`, `learning_rate`, `epochs`, `fill`, `loss`, `grid_weight`, `budget` | the cell |
| `options`, `content`, `commit` | digests of the options and the data that decide the result; the code |
| `i2t_ranks`, `t2i_ranks` | the rank of each query's best answer, in the order of the pairs |
| `near_i2t`, `near_t2i` | each near miss: 1 if the truth is nearer, plus 2 if the edit is nearer |
| `samples`, `llm_calls`, `images`, `dollars` | all data of the method, with rejects; `share` of them is trained on |
| `samples_encoded`, `steps`, `items`, `seconds` | the training; `items` are images and captions that it encoded |
| `caption_image`, `near_i2t_image`, `near_t2i_image` | of the base alone: the image of each query, for intervals |
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from repair_hf.evaluation.retrieval import DIRECTIONS, retrieval_metrics
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import write_atomically

BASE = "base"
MEASURES = ("truth", "edit")  # bits of a near miss, from the lowest
_LISTS = {name: pa.list_(pa.uint16()) for name in ("i2t_ranks", "t2i_ranks")}
_LISTS |= {name: pa.list_(pa.uint8()) for name in ("near_i2t", "near_t2i")}
_LISTS |= {name: pa.list_(pa.int32()) for name in ("caption_image", "near_i2t_image", "near_t2i_image")}
MOST = 2**16 - 1  # ranks from here on count as one


@dataclass(frozen=True)
class Settings:
    """How a method is trained, and on how much of its data. Only what has an effect is set."""

    learning_rate: float = 0.0
    epochs: float = 0.0  # passes over the training captions
    fill: str = ""  # `edits` or `paper`; empty without records
    loss: str = ""  # `batch`, `grid` or `both`; empty without added pairs
    grid_weight: float = 0.0  # lambda
    budget: str = "all"  # see `parse_budget`


@dataclass(frozen=True)
class Cell:
    """One training run of a method, and the split it is evaluated on."""

    data: str
    method: str  # `base` for the untrained retriever
    split: str
    seed: int = 0
    settings: Settings = Settings()

    @property
    def name(self) -> str:
        """Name of its lock and, without the split, of its folder."""
        return f"{self.run}--{self.split}"

    @property
    def run(self) -> str:
        one = self.settings
        grid = f"--weight{one.grid_weight:g}" if one.grid_weight else ""
        how = "-".join(filter(None, (one.fill, one.loss)))
        budget = "" if one.budget == "all" else f"--{one.budget}"
        name = f"{self.data}--{self.method}--lr{one.learning_rate:g}--epochs{one.epochs:g}--{how}{grid}{budget}"
        return f"{name}--seed{self.seed}"


SCHEMA = pa.schema(
    {
        **{name: pa.string() for name in ("data", "method", "split")},
        "seed": pa.int32(),
        **{each.name: pa.float64() if each.type == "float" else pa.string() for each in fields(Settings)},
        **{name: pa.string() for name in ("options", "content", "commit")},
        **_LISTS,
        **{name: pa.int64() for name in ("samples", "llm_calls", "images", "samples_encoded", "steps")},
        **{
            name: pa.float64()
            for name in ("dollars", "share", "items", "images_per_step", "texts_per_step", "seconds")
        },
    }
)


class Row:
    """A finished cell."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.cell = cell_of(values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @cached_property
    def ranks(self) -> dict[str, np.ndarray]:
        return {way: np.asarray(self.values[f"{way}_ranks"], np.int64) for way in DIRECTIONS}

    @cached_property
    def near(self) -> dict[str, np.ndarray]:
        """Whether each near miss is right, by `i2t_truth` and so on; empty without near misses."""
        found = {way: np.asarray(self.values[f"near_{way}"] or [], np.int64) for way in DIRECTIONS}
        return {
            f"{way}_{measure}": (bits >> place & 1).astype(bool)
            for way, bits in found.items()
            for place, measure in enumerate(MEASURES)
            if len(bits)
        }

    @cached_property
    def metrics(self) -> dict[str, float]:
        """`i2t_R@1` and so on, and the accuracies on near misses, `i2t_truth` and so on."""
        return retrieval_metrics(self.ranks) | {name: float(right.mean()) for name, right in self.near.items()}


class Results:
    """The file of a study's results, and what is read from it. Several processes add rows to it."""

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self._rows: dict[Cell, Row] = {}
        self._read_at = 0
        self.read()

    def __len__(self) -> int:
        return len(self._rows)

    def read(self) -> None:
        """Read what this and other processes have added."""
        if not self.file.is_file() or (now := self.file.stat().st_mtime_ns) == self._read_at:
            return
        self._rows = {row.cell: row for row in map(Row, self._table().to_pylist())}
        self._read_at = now

    def find(self, cell: Cell, *, options: str, content: str | None = None) -> Row | None:
        """Return a finished cell; None if there is none.

        Raises:
            UserError: If it was made with other options, or (if `content` is given) from other data.
        """
        row = self._rows.get(cell)
        if row is None:
            return None
        for name, wanted in (("options", options), ("content", content)):
            if wanted is not None and row[name] != wanted:
                of = "with other options" if name == "options" else "from other data or records"
                raise UserError(
                    f"{self.file} has `{cell.method}` on `{cell.data}` made {of} (digest {row[name]}, now {wanted}). "
                    "Give another --output and --results, or the options that it was made with."
                )
        return row

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row to the file; one of the same cell is replaced."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self.file.with_name(f".{self.file.name}.lock")):
            self.read()
            self._rows[cell_of(row)] = Row(row)
            rows = sorted((each.values for each in self._rows.values()), key=lambda each: cell_of(each).name)
            table = pa.Table.from_pylist([{name: each.get(name) for name in SCHEMA.names} for each in rows], SCHEMA)
            written = io.BytesIO()
            pq.write_table(table, written, compression="zstd", compression_level=19)
            write_atomically(self.file, written.getvalue())
            self._read_at = self.file.stat().st_mtime_ns

    def _table(self) -> pa.Table:
        try:
            return pq.read_table(self.file, schema=SCHEMA)
        except (OSError, pa.ArrowInvalid, pa.ArrowTypeError, KeyError) as error:
            raise UserError(f"{self.file} cannot be read as the results of a study ({error}); delete it.") from error


def cell_of(row: Mapping[str, Any]) -> Cell:
    settings = Settings(**{each.name: row[each.name] for each in fields(Settings)})
    return Cell(row["data"], row["method"], row["split"], row["seed"], settings)


def row_of(cell: Cell, **values: Any) -> dict[str, Any]:
    """Return a row of the file; what is not given is null."""
    known = {"data": cell.data, "method": cell.method, "split": cell.split, "seed": cell.seed}
    found = dict.fromkeys(SCHEMA.names) | known | asdict(cell.settings) | values
    for name in ("i2t_ranks", "t2i_ranks"):
        found[name] = np.minimum(found[name], MOST).tolist()
    return found
