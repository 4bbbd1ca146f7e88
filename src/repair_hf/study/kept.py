"""Finished cells as small JSON files, to be kept beside a recipe.

A study goes on with them on another machine, and `study --table` rebuilds the tables from them alone. A file holds the
figures of a cell, the commit that made it, a digest of all options that decide the result and, for the reported split,
the rank of each query's best answer. It holds no weights.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from repair_hf.evaluation.ranks import COLUMNS, load_ranks, ranks_by_direction, save_ranks
from repair_hf.runtime.own_files import read_json
from repair_hf.runtime.run_folder import versions, write_atomically

FIELDS = ("options", "commit", "summary", "ranks")


@dataclass(frozen=True)
class KeptCells:
    """A folder of kept cells; None keeps nothing."""

    folder: Path | None = None
    only: bool = False  # whether nothing is trained: a cell that is not kept leaves its method out

    def keep(self, name: str, options: str, folder: Path, summary: Mapping[str, Any], *, with_ranks: bool) -> None:
        """Write a finished cell. `options` is the digest of what decides its result; `folder` holds its ranks."""
        if self.folder is None or self.find(name, None, options) is not None:
            return
        ranks = ranks_by_direction(load_ranks(folder)) if with_ranks else {}
        found = {
            "options": options,
            "commit": versions()["commit"],
            "summary": summary,
            "ranks": {side: _packed(some) for side, some in ranks.items()},
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(name), json.dumps(found, indent=1) + "\n")

    def find(self, name: str, folder: Path | None, options: str | None = None) -> dict[str, Any] | None:
        """Return the summary of a kept cell and write its ranks to a folder, if given; None if it is not kept.

        With `options`, a cell of another digest counts as not kept.
        """
        if self.folder is None or not self._file(name).is_file():
            return None
        found = read_json(self._file(name), needs=FIELDS)
        if options not in (None, found["options"]):
            return None
        if folder is not None:
            _write_ranks(found["ranks"], folder)
        return found["summary"]

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.json"


def _write_ranks(packed: Mapping[str, str], folder: Path) -> None:
    if not packed:
        return
    folder.mkdir(parents=True, exist_ok=True)
    ranks = {side: np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2") for side, text in packed.items()}
    sides = np.concatenate([np.full(len(some), side) for side, some in ranks.items()])
    known = {"direction": sides, "gt_rank": np.concatenate(list(ranks.values())).astype(np.int64)}
    save_ranks(pa.table(dict.fromkeys(COLUMNS, [None] * len(sides)) | known), folder)


def _packed(ranks: np.ndarray) -> str:
    """Encode ranks, those from 65,535 on as one."""
    return base64.b64encode(zlib.compress(np.minimum(ranks, 2**16 - 1).astype("<u2").tobytes(), 9)).decode()
