"""Read files, ours and those of others. A damaged one is an error of one line, with the file and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import UnreadableText, parse_json, parse_yaml

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

# OSError without a number is pyarrow's, for bytes that cannot be decoded.
_DAMAGED = (
    ValueError, LookupError, TypeError, AttributeError, NotImplementedError, RecursionError, EOFError, OSError,
)  # fmt: skip
RERUN = "Delete its folder, and run the command that made it again"
REPAIR = "Repair the file, or make it again"  # of others


def shipped(folder: str) -> Path:
    """Return a folder that lies at the top of a clone, such as `recipes`, and inside the package once it is built."""
    package = Path(__file__).parents[1]
    return built if (built := package / folder).is_dir() else package.parents[1] / folder


@contextmanager
def intact(path: Path, remedy: str = RERUN) -> Iterator[None]:
    """Turn any failure to read the content of a file into a `UserError` with the remedy.

    A missing file, or one that may not be read, stays an error of the system.
    """
    try:
        yield
    except UserError:
        raise
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())[:160].rstrip(". ")
        raise UserError(f"{path} is damaged ({type(error).__name__}: {reason}). {remedy}.") from error


def read_json(path: str | Path, *, needs: Iterable[str] | None = (), remedy: str = RERUN) -> Any:
    """Read a JSON object that has at least the keys `needs`; None takes any value.

    Raises:
        UserError: If it is damaged.
    """
    with intact(Path(path), remedy):
        value = parse_json(Path(path).read_bytes())
        return value if needs is None else _with_keys(value, needs)


def read_yaml(path: str | Path, *, remedy: str = RERUN) -> dict[str, Any]:
    """Read a YAML file of options, `key: value` lines; an empty one has none."""
    with intact(Path(path), remedy):
        value = parse_yaml(Path(path).read_bytes())
        return {} if value is None else _with_keys(value, ())


def read_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield the number, from 1, and the value of each line of a JSON Lines file; the error in place of a bad line."""
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), start=1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except UnreadableText as error:
                yield number, error


def read_table(path: str | Path, *, needs: Iterable[str] = (), remedy: str = RERUN) -> pyarrow.Table:
    """Read a Parquet file that has at least the columns `needs`."""
    from pyarrow.parquet import read_table

    with intact(Path(path), remedy):
        table = read_table(path)
        if missing := sorted(set(needs) - set(table.column_names)):
            raise KeyError(f"it lacks the columns {missing}, and has {table.column_names}")
        return table


def read_array(path: str | Path, *, shape: tuple[int, ...], dtype: Any, remedy: str) -> np.ndarray:
    """Open a `.npy` file memory-mapped and read-only; it must have this shape and type."""
    import numpy as np  # here, because a help needs no arrays

    with intact(Path(path), remedy):
        array = np.load(path, mmap_mode="r")
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"it holds {array.dtype} {array.shape}, expected {np.dtype(dtype)} {shape}")
        return array


def _with_keys(value: Any, needs: Iterable[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected keys and values, got a {type(value).__name__}")
    if missing := sorted(set(needs) - set(value)):
        raise KeyError(f"it lacks {missing}")
    return value
