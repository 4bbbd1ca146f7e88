"""What a stage was made from, item by item: a digest of each image and caption.

A later stage compares them with what it reads. Without this, pictures that changed under the same names would be
repaired, or trained on, with the wrong edits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repair_hf.runtime.files import read_table
from repair_hf.runtime.options import UserError

FILE = "items.parquet"
SHOWN = 3  # items that an error names


@dataclass(frozen=True)
class Items:
    """Digests of images and captions by id: (n,) uint64 each, in the order of the ids."""

    ids: Mapping[str, Any]  # `image` and `caption`: lists of texts, or columns of arrow
    digests: Mapping[str, np.ndarray]

    def save(self, folder: Path) -> None:
        """Write them to a folder."""
        import pyarrow as pa
        from pyarrow.parquet import write_table

        tables = [
            pa.table({"kind": pa.repeat(kind, len(ids)), "id": ids, "digest": self.digests[kind]})
            for kind, ids in self.ids.items()
        ]
        draft = folder / f".{FILE}.tmp"
        write_table(pa.concat_tables(tables, promote_options="permissive"), draft, compression="zstd")
        draft.replace(folder / FILE)


def digest_each(texts: Iterable[str]) -> np.ndarray:
    """Digest texts: (n,) uint64."""
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.fromiter((int.from_bytes(digest, "little") for digest in digests), np.uint64)


def check_items(folder: str | Path, now: Items) -> None:
    """Check that the pairs of a folder have not changed since it was made; items that only one of both has may be.

    A Hub id has no such file and is not checked.

    Raises:
        UserError: If an image or caption has changed; it names the first ones.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return
    table = read_table(path, needs=("kind", "id", "digest"))
    columns = (table[name].to_pylist() for name in ("kind", "id", "digest"))
    before = {(kind, name): digest for kind, name, digest in zip(*columns, strict=True)}
    changed = [
        name
        for kind, ids in now.ids.items()
        for name, digest in zip(map(str, ids), now.digests[kind].tolist(), strict=True)
        if before.get((kind, name), digest) != digest
    ]
    refuse_changed(str(folder), changed)


def refuse_changed(made: str, changed: Sequence[str]) -> None:
    """Raise a `UserError` that names the first of the items in which the pairs differ from what `made` came from."""
    if changed:
        named = ", ".join(changed[:SHOWN]) + (", ..." if len(changed) > SHOWN else "")
        raise UserError(
            f"{made} was made from other pairs: {len(changed):,} images and captions of the same name have another "
            f"content now ({named}). Give the pairs that it was made from, or make it again from these."
        )
