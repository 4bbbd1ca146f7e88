"""Read embeddings that a retriever elsewhere has made: the one door for `repair-hf mine --embeddings`.

The folder holds `images.npy` (N, D) and `captions.npy` (M, D), and `ids.json` with the id of each row:
`{"images": [...], "captions": [...]}`. Rows may be in any order, and there may be more than the pairs need.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repair_hf.encoder.embedder import unit
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import UserError

KINDS = ("images", "captions")
FILES = (*(f"{kind}.npy" for kind in KINDS), "ids.json")


class StoredEmbeddings:
    """The embeddings of some pairs, in the place of a retriever.

    Args:
        folder: Where they are.
        pairs: The pairs to mine.

    Raises:
        UserError: If a file is missing or damaged, rows and ids do not fit, an item of the pairs has no row, or a
            vector is zero or not finite.
    """

    preprocessor = None
    device = torch.device("cpu")

    def __init__(self, folder: str | Path, pairs: Pairs) -> None:
        self.origin = str(folder)
        if missing := [name for name in FILES if not (Path(folder) / name).is_file()]:
            raise UserError(f"`embeddings` {folder} lacks {', '.join(missing)}; it needs {', '.join(FILES)}.")
        ids = _read_ids(Path(folder) / "ids.json")
        wanted = (pairs.images["image_id"][:], pairs.captions["caption_id"][:])
        images, captions = (
            _read_vectors(Path(folder), kind, ids[kind], some) for kind, some in zip(KINDS, wanted, strict=True)
        )
        self.vectors = images, captions
        if images.shape[1] != captions.shape[1]:
            raise UserError(
                f"{folder} holds images of {images.shape[1]} and captions of {captions.shape[1]} dimensions; "
                "embed both with one model."
            )

    @property
    def digest(self) -> str:
        """A digest of the vectors of the pairs, in their order."""
        found = hashlib.sha256()
        for vectors in self.vectors:
            found.update(str(vectors.shape).encode())
            found.update(vectors.tobytes())
        return found.hexdigest()[:16]

    def embed_pairs(self, pairs: Pairs, **_: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of the pairs that they were read for, (N, D) and (M, D) float32, unit length."""
        return self.vectors

    def report_captions(self, captions: Sequence[str]) -> int:
        """Return 0: how captions were truncated is not known here."""
        return 0


def _read_ids(path: Path) -> dict[str, list[str]]:
    found = read_json(path, needs=KINDS, remedy='Write a JSON object {"images": [...], "captions": [...]} of ids')
    for kind in KINDS:
        if not (isinstance(found[kind], list) and all(isinstance(name, str) for name in found[kind])):
            raise UserError(f"{path} holds {kind} that are no list of texts, got {ascii(found[kind])[:80]}.")
        if twice := len(found[kind]) - len(set(found[kind])):
            raise UserError(f"{path} names {twice} {kind} twice; each id needs one row.")
    return found


def _read_vectors(folder: Path, kind: str, ids: list[str], wanted: list[str]) -> np.ndarray:
    """Return the rows of the wanted items, (n, D) float32, unit length."""
    path = folder / f"{kind}.npy"
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({str(error)[:100]}); write it with `numpy.save`.") from error
    if array.ndim != 2 or array.dtype.kind != "f" or len(array) != len(ids):
        raise UserError(
            f"{path} holds {array.dtype} {array.shape}; give floats of shape ({len(ids)}, D), a row for each id."
        )
    rows = {name: row for row, name in enumerate(ids)}
    if missing := [name for name in wanted if name not in rows]:
        raise UserError(
            f"{folder} lacks {len(missing):,} of {len(wanted):,} {kind} of the pairs, first `{missing[0]}`. "
            "Embed these too, or choose the --split that was embedded."
        )
    found = array[[rows[name] for name in wanted]].astype(np.float32)
    return unit(torch.from_numpy(found), [f"{kind[:-1]} {name}" for name in wanted])
