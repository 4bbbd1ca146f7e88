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
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from repair_hf.evaluation.retrieval import DIRECTIONS, query_values, retrieval_metrics
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import write_atomically

BASE = "base"
MEASURES = ("truth", "edit")  # bits of a near miss, from the lowest
SCORED = ("i2t_R@1", "t2i_R@1", "i2t_truth", "t2i_truth")  # both measures, in both directions
MOST = 2**16 - 1  # ranks from here on count as one


@dataclass(frozen=True)
class Cell:
    """One training run of a method, and the split it is evaluated on. Only settings that have an effect are set."""

    data: str
    method: str  # `base` for the untrained retriever
    split: str
    seed: int = 0
    learning_rate: float = 0.0
    epochs: float = 0.0  # passes over the training captions
    fill: str = ""  # `edits` or `paper`; empty without records
    loss: str = ""  # `batch`, `grid` or `both`; empty without added pairs
    grid_weight: float = 0.0  # lambda
    budget: str = "all"  # see `parse_budget`

    @property
    def name(self) -> str:
        """Name of its row."""
        return f"{self.run}--{self.split}"

    @property
    def run(self) -> str:
        """Name of its lock and of its folder of weights."""
        grid = f"--weight{self.grid_weight:g}" if self.grid_weight else ""
        how = "-".join(filter(None, (self.fill, self.loss)))
        budget = "" if self.budget == "all" else f"--{self.budget}"
        name = f"{self.data}--{self.method}--lr{self.learning_rate:g}--epochs{self.epochs:g}--{how}{grid}{budget}"
        return f"{name}--seed{self.seed}"


_TYPES = {"str": pa.string(), "int": pa.int32(), "float": pa.float64()}
SCHEMA = pa.schema(
    {
        **{each.name: _TYPES[str(each.type)] for each in fields(Cell)},
        **dict.fromkeys(("options", "content", "commit"), pa.string()),
        **dict.fromkeys(("i2t_ranks", "t2i_ranks"), pa.list_(pa.uint16())),
        **dict.fromkeys(("near_i2t", "near_t2i"), pa.list_(pa.uint8())),
        **dict.fromkeys(("caption_image", "near_i2t_image", "near_t2i_image"), pa.list_(pa.int32())),
        **dict.fromkeys(("samples", "llm_calls", "images", "samples_encoded", "steps"), pa.int64()),
        **dict.fromkeys(("dollars", "share", "items", "images_per_step", "texts_per_step", "seconds"), pa.float64()),
    }
)


class Row:
    """A finished cell: the values of its columns. What is not given is null."""

    def __init__(self, cell: Cell, **values: Any) -> None:
        self.cell = cell
        self.values = dict.fromkeys(SCHEMA.names) | asdict(cell) | values

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @cached_property
    def ranks(self) -> dict[str, np.ndarray]:
        return {way: np.asarray(self[f"{way}_ranks"], np.int64) for way in DIRECTIONS}

    @cached_property
    def queries(self) -> dict[str, np.ndarray]:
        """Each query's value, (Q,), of the metrics that are means: `i2t_R@1` and so on, and those of near misses."""
        kinds = {way: query_values(self.ranks[way]) for way in DIRECTIONS}
        found = {f"{way}_{name}": values for way, each in kinds.items() for name, values in each.items()}
        for way in DIRECTIONS:
            bits = np.array(self[f"near_{way}"] or [], np.int64)
            for place, name in enumerate(MEASURES if len(bits) else ()):
                found[f"{way}_{name}"] = (bits >> place & 1).astype(float)
        return found

    @cached_property
    def metrics(self) -> dict[str, float]:
        """`i2t_R@1` and so on, and the accuracies on near misses, `i2t_truth` and so on."""
        return retrieval_metrics(self.ranks) | {name: float(each.mean()) for name, each in self.queries.items()}


class Results:
    """The file of a study's results, and what is read from it. Several processes add rows to it."""

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self.rows: dict[Cell, Row] = {}
        self._read_at = 0
        self.read()

    def read(self) -> None:
        """Read what this and other processes have added."""
        if not self.file.is_file() or (now := self.file.stat().st_mtime_ns) == self._read_at:
            return
        try:
            table = pq.read_table(self.file, schema=SCHEMA)
        except (OSError, pa.ArrowInvalid, pa.ArrowTypeError, KeyError) as error:
            raise UserError(f"{self.file} cannot be read as the results of a study ({error}); delete it.") from error
        rows = [Row(Cell(**{each.name: one[each.name] for each in fields(Cell)}), **one) for one in table.to_pylist()]
        self.rows, self._read_at = {row.cell: row for row in rows}, now

    def add(self, row: Row) -> None:
        """Add a row to the file; one of the same cell is replaced."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self.file.with_name(f".{self.file.name}.lock")):
            self.read()
            self.rows[row.cell] = row
            rows = sorted(self.rows.values(), key=lambda each: each.cell.name)
            written = io.BytesIO()
            table = pa.Table.from_pylist([each.values for each in rows], SCHEMA)
            pq.write_table(table, written, compression="zstd", compression_level=19)
            write_atomically(self.file, written.getvalue())
            self._read_at = self.file.stat().st_mtime_ns
