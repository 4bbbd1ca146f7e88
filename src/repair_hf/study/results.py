"""The results of a study: a row per training, blend and split, from which alone all tables are made.

| columns | |
|---|---|
| `data`, `method`, `split`, `seed`, `learning_rate`, `epochs`, `budget`, `blend` | the cell |
| `code`, `commit` | digest of the package's files, and the commit |
| `i2t_ranks`, `t2i_ranks`; `kept_i2t_ranks`, `kept_t2i_ranks` | the rank of each query's best answer, in order |
| `contrast_caption`, `contrast_picture` | whether each case of the contrast set is right |
| `samples`, `llm_calls`, `images`, `edits_trained` | the data, with rejects; the share of its edits that was encoded |
| `steps`, `items_per_step`, `seconds` | the training; items are images and captions encoded |
| `caption_image`, `contrast_image`, `kept_caption_image` | of the base alone: each query's image, for intervals |

Rows are written once, into a file for each training and split. A file that is there is not computed again.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import write_atomically

BASE = "base"
ANCHORS = (BASE, "plain", "repair-batch")  # with seed 0, the methods that every version of the code must score alike
BLENDS = (1.0, 0.8, 0.6)  # weights of the tuned model; the rest is the base's
CONTRAST = ("contrast_caption", "contrast_picture")
RANKED = tuple(f"{kind}{way}" for kind in ("", "kept_") for way in DIRECTIONS)
MOST = 2**16 - 1  # ranks from here on count as one


@dataclass(frozen=True)
class Cell:
    """A training run of a method, blended with the base, and the split it is evaluated on."""

    data: str
    method: str  # `base` for the untrained retriever
    split: str  # `validation` or `test`, whatever the data call it
    seed: int = 0
    learning_rate: float = 0.0
    epochs: float = 0.0  # passes over the training captions
    budget: str = "all"  # see `parse_budget`
    blend: float = 1.0

    @property
    def run(self) -> str:
        """Name of the training: of its lock and of its folder of weights."""
        how = self.data, self.method, f"lr{self.learning_rate:g}", f"epochs{self.epochs:g}", self.budget
        return "--".join([*how, f"seed{self.seed}"])

    @property
    def name(self) -> str:
        """Name of the file of its rows, which has one of each blend."""
        return f"{self.run}--{self.split}"


_TYPES = {"str": pa.string(), "int": pa.int32(), "float": pa.float64()}
SCHEMA = pa.schema(
    {
        **{each.name: _TYPES[str(each.type)] for each in fields(Cell)},
        **dict.fromkeys(("code", "commit"), pa.string()),
        **dict.fromkeys((f"{way}_ranks" for way in RANKED), pa.list_(pa.uint16())),
        **dict.fromkeys(CONTRAST, pa.list_(pa.uint8())),
        **dict.fromkeys(("caption_image", "contrast_image", "kept_caption_image"), pa.list_(pa.int32())),
        **dict.fromkeys(("samples", "llm_calls", "images", "steps"), pa.int64()),
        **dict.fromkeys(("edits_trained", "items_per_step", "seconds"), pa.float64()),
    }
)


class Row:
    """A finished cell: the values of its columns. What is not given is null."""

    def __init__(self, cell: Cell, **values: Any) -> None:
        self.cell = cell
        self.values = dict.fromkeys(SCHEMA.names) | asdict(cell) | values

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def digits(self) -> dict[str, str]:
        """Each measure as tables print it. Machines differ in the last bit of a score: near ties change places."""
        return {name: f"{100 * values.mean():.1f}" for name, values in self.right.items()}

    @cached_property
    def right(self) -> dict[str, np.ndarray]:
        """Whether each query or case is right, (Q,) of 0 and 1: `i2t` and `kept_i2t` are R@1, and so on."""
        found = {way: np.array(self[f"{way}_ranks"]) == 1 for way in RANKED if self[f"{way}_ranks"] is not None}
        found |= {name: np.array(self[name]) == 1 for name in CONTRAST if self[name] is not None}
        return {name: values.astype(float) for name, values in found.items()}

    def images_of(self, metric: str) -> np.ndarray:
        """Return the image of each query or case of the base's row, (Q,)."""
        if metric.endswith("i2t"):
            return np.arange(len(self[f"{metric}_ranks"]))
        column = "contrast_image" if metric in CONTRAST else metric.replace("t2i", "caption_image")
        return np.array(self[column], np.int64)


class Results:
    """The rows of a study's folder. Several processes add files to it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.rows: dict[Cell, Row] = {}
        self._read: set[str] = set()
        self.read()

    def read(self) -> None:
        """Read what this and other processes have added."""
        for path in sorted(self.folder.glob("*.parquet")):
            if path.name not in self._read:
                self.rows |= {row.cell: row for row in load_rows([path])}
                self._read.add(path.name)

    def add(self, rows: Sequence[Row]) -> None:
        """Write the rows of one training on one split."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_rows(rows, self.folder / f"{rows[0].cell.name}.parquet")
        self.read()


def save_rows(rows: Iterable[Row], path: Path) -> None:
    written = io.BytesIO()
    table = pa.Table.from_pylist([row.values for row in rows], SCHEMA)
    pq.write_table(table, written, compression="zstd", compression_level=19)
    write_atomically(path, written.getvalue())


def load_rows(paths: Iterable[str | Path]) -> list[Row]:
    """Read the rows of some files, to be compared in one table. Of equal cells, the one in the later file is taken.

    Raises:
        UserError: If a file is missing or holds something else, or the rows were made by versions of the code that
            score `ANCHORS` differently.
    """
    rows: list[Row] = []
    for path in paths:
        try:
            table = pq.read_table(path, schema=SCHEMA)
        except (OSError, pa.ArrowInvalid, pa.ArrowTypeError, KeyError) as error:
            raise UserError(f"{path} cannot be read as results of a study ({error}).") from error
        columns = [
            column.to_numpy() if pa.types.is_list(column.type) else column.to_pylist()
            for column in table.itercolumns()
        ]
        for values in zip(*columns, strict=True):
            one = dict(zip(SCHEMA.names, values, strict=True))
            rows.append(Row(Cell(**{each.name: one[each.name] for each in fields(Cell)}), **one))
    _check_versions(rows)
    return list({row.cell: row for row in rows}.values())


def _check_versions(rows: Iterable[Row]) -> None:
    """Check that all versions of the code score `ANCHORS` with seed 0 alike, in every digit of the tables."""
    versions: dict[tuple[str, str], dict[Cell, Row]] = {}  # by data and code
    for row in rows:
        anchors = versions.setdefault((row["data"], row["code"]), {})
        if row["method"] in ANCHORS and row["seed"] == 0 and row["budget"] == "all":
            anchors[row.cell] = row
    for (data, one), (other_data, other) in itertools.combinations(versions, 2):
        if data != other_data:
            continue
        first, second = versions[data, one], versions[data, other]
        shared = first.keys() & second.keys()
        unequal = {cell.method for cell in shared if first[cell].digits != second[cell].digits}
        if problem := sorted(unequal) or sorted(set(ANCHORS) - {cell.method for cell in shared}):
            raise UserError(
                f"Rows of the code {one} and {other} cannot stand in one table: `{problem[0]}` with seed 0 differs, "
                "or one of them lacks it. Train it with both, or all rows anew."
            )


@cache
def code_digest() -> str:
    """Digest the package's files of Python: a changed line may make other rows, committed or not."""
    folder, hashed = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        hashed.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return hashed.hexdigest()[:16]
