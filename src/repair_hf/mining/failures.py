"""Read mined failures, and who mined them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from datasets import Dataset

from repair_hf.mining.false_positives import FEATURES
from repair_hf.runtime.files import read_table, read_yaml
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import refuse_unfinished

FILE = "failures.parquet"
REMEDY = "Delete its folder, and make it again with `repair-hf mine`"


def failures_file(place: str | Path) -> Path:
    """Return the Parquet file that a folder of `repair-hf mine` holds, or the file itself.

    Raises:
        UserError: If it does not exist.
    """
    file = Path(place) / FILE if Path(place).is_dir() else Path(place)
    if not file.is_file():
        raise UserError(f"--failures {place}: {file} does not exist. Make it with `repair-hf mine`.")
    return file


def load_failures(place: str | Path) -> Dataset:
    """Read the failures in a folder or file, see `mine_false_positives` for the columns.

    Raises:
        UserError: If the file does not exist, is damaged, or holds no failures.
    """
    refuse_unfinished(place)
    failures = Dataset(read_table(failures_file(place), remedy=REMEDY))
    check_columns(failures)
    return failures


def check_columns(failures: Dataset) -> None:
    """Check that a dataset holds failures.

    Raises:
        UserError: If columns are missing, of another type or empty, or a direction is unknown.
    """
    missing = set(FEATURES) - set(failures.column_names)
    if missing:
        raise UserError(
            f"Failures lack {sorted(missing)}; they have {failures.column_names}. Make them with `repair-hf mine`."
        )
    table = failures.select_columns(list(FEATURES)).with_format("arrow")[:]
    try:
        table = table.cast(FEATURES.arrow_schema)
    except pa.ArrowException as error:
        raise UserError(
            f"Failures have a column of another type: {error}. Make them with `repair-hf mine`."
        ) from error
    directions = set(table["direction"].unique().to_pylist())
    if directions - {"t2i", "i2t"} or any(table[name].null_count for name in ("q", "gt", "fp")):
        raise UserError(
            f"Failures need a `direction` of t2i or i2t, and `q`, `gt` and `fp` in each row; got {directions}, or an "
            "empty cell. Make them with `repair-hf mine`."
        )


def miner_of(place: str | Path) -> str | None:
    """Return the retriever that mined failures as `MODEL@DIGEST`; None if it is not on record."""
    config = failures_file(place).parent / "config.yaml"
    options = read_yaml(config, remedy=REMEDY) if config.is_file() else {}
    return f"{options['model']}@{options['model_digest']}" if {"model", "model_digest"} <= set(options) else None
