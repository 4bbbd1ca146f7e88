"""The files of candidate images: their names and formats, what stands for one that is not there, and taking them over.

| file | means |
|---|---|
| `NAME.png`, `.webp` or `.jpg` | the candidate; written atomically, so a file that exists is complete |
| `NAME.none` | an editor on this machine made no image |
| `NAME.lost` | the candidate was not selected, and is deleted; holds its similarity and the retriever that selected |
| `NAME.broken` | a disk damaged it |
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.pairs.images import UNDECODABLE, open_image
from repair_hf.runtime.files import read_json
from repair_hf.runtime.run_folder import digest, write_atomically, write_json

FOLDER = "candidates"  # beside the ledger
SUFFIXES = {"png": ".png", "webp": ".webp", "jpeg": ".jpg"}  # by the option `editor_format`
SMALLEST = 16  # pixels of a side
QUALITY = 85  # of a JPEG: about a sixth of the bytes of a PNG


def candidate_files(folder: Path, count: int, made_from: Mapping[str, Any], suffix: str = ".png") -> list[Path]:
    """Return the paths of the candidates of an edit. Those that exist may have another suffix.

    `made_from` has the `editor`, the SHA-256 of the `source`'s file, the `instruction` and the `seed`.
    """
    names = [digest({**made_from, "candidate": m}) for m in range(count)]
    places = [folder / name[:2] / f"{name}{suffix}" for name in names]
    return [next(filter(Path.is_file, map(place.with_suffix, SUFFIXES.values())), place) for place in places]


def save_candidate(path: Path, image: Image.Image | None) -> str | None:
    """Write a candidate in the format of its suffix, PNG and WebP without loss; or return why the image is none."""
    if image is None:
        return "no image that can be read"
    if min(image.size) < SMALLEST:
        return f"an image of {image.width} x {image.height} pixels"
    if not image.getbbox():  # by a safety checker, or because numbers overflowed in half precision
        return "a black image"
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    if path.suffix == ".jpg":
        image.convert("RGB").save(buffer, "JPEG", quality=QUALITY)
    elif path.suffix == ".webp":
        image.save(buffer, "WEBP", lossless=True, exact=True)
    else:
        notes = PngInfo()
        for key, value in image.info.items():
            if isinstance(value, str):
                notes.add_itxt(str(key), value)
        image.save(buffer, "PNG", pnginfo=notes, compress_level=3)  # a third of the time of level 6, 5% more bytes
    write_atomically(path, buffer.getvalue())
    return None


def is_damaged(path: Path) -> bool:
    """Return whether a candidate's file can no longer be read."""
    try:
        with open_image(path.read_bytes()) as image:
            image.verify() if image.format == "PNG" else image.load()  # a PNG has checksums
    except UNDECODABLE:
        return True
    return False


def refusal_file(path: Path) -> Path:
    """The file that stands for a candidate that the editor did not make."""
    return path.with_suffix(".none")


def let_go(path: Path, similarity: float | None, retriever: str) -> None:
    """Delete a candidate that was not selected, after writing what stands for it."""
    write_json(path.with_suffix(".lost"), {"retriever": retriever, "similarity": similarity})
    path.unlink()


def was_let_go(path: Path, retriever: str) -> bool:
    """Return whether a candidate is deleted, and it was this retriever that did not select it."""
    return not path.is_file() and path.with_suffix(".lost").is_file() and _lost(path)["retriever"] == retriever


def lost_similarity(path: Path) -> float | None:
    """Return the similarity of a deleted candidate to the false positive; None if it had changed nothing."""
    return _lost(path)["similarity"]


def _lost(path: Path) -> dict[str, Any]:
    remedy = "Delete it, and run the same command again"
    return read_json(path.with_suffix(".lost"), needs=("retriever", "similarity"), remedy=remedy)


def link_candidates(source: Path, target: Path) -> None:
    """Take over the candidate images of another folder; without hard links they are copied."""
    if (source / FOLDER).is_dir():
        shutil.copytree(source / FOLDER, target / FOLDER, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    if os.path.exists(target):  # another folder has the same image
        return
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without hard links
        draft = f"{target}.tmp"
        shutil.copyfile(source, draft)
        os.replace(draft, target)  # a copy is whole or absent
