"""Read a caption JSON of COCO or of Karpathy (`dataset_coco.json`, `dataset_flickr30k.json`).

A row that does not fit the format is collected as a problem and raises no error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from repair_hf.pairs.cells import equal_cells
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.rows import Listing, Row, image_files, located, name_in
from repair_hf.runtime.files import REPAIR, read_json
from repair_hf.runtime.options import UserError


def read_annotations(file: Path, image_folder: Path, problems: Problems) -> Listing:
    """Read a caption JSON in COCO's or Karpathy's format, recognized by its content."""
    folder = image_folder.absolute()
    match read_json(file, needs=None, remedy=REPAIR):
        case {"images": list() as images, "annotations": list() as captions}:
            return _coco(images, captions, folder, problems)
        case {"images": [{"sentences": list()}, *_] as images}:
            return _karpathy(images, folder, problems)
    raise UserError(
        f"{file} is not a caption JSON: it needs the lists `images` and `annotations` (COCO), or `images` with "
        "`sentences` and `split` (Karpathy)."
    )


def _listing(rows: Sequence[tuple[str, str, list, str | None]]) -> Listing:
    """List rows of an image's name, its file, its captions and its split."""
    images = image_files(file for _, file, _, _ in rows)
    cells = equal_cells(images, "image")
    listed = [
        Row(place, name, cell, captions, split)
        for place, ((name, _, captions, split), cell) in enumerate(zip(rows, cells, strict=True))
    ]
    return Listing(images, listed)


def _karpathy(images: list, folder: Path, problems: Problems) -> Listing:
    """COCO's images lie in their own folders (`filepath`), or all in one folder."""
    rows: list[tuple[str, str, list, str | None]] = []
    has_folder = {path: os.path.isdir(folder / path) for path in set(map(_filepath, images))}
    for place, image in enumerate(images):
        match image:
            case {"filename": str() as name, "split": str() as split, "sentences": list() as sentences} if name:
                path = _filepath(image)
                file = located(folder / path if has_folder[path] else folder, name)
                rows.append(
                    (
                        name_in(folder, name),
                        file,
                        [s.get("raw") if isinstance(s, dict) else None for s in sentences],
                        split,
                    )
                )
            case _:
                problems.add("malformed_row", f"images[{place}]")
    return _listing(rows)


def _filepath(image: object) -> str:
    path = image.get("filepath") if isinstance(image, dict) else None
    return path if isinstance(path, str) else ""


def _coco(images: list, annotations: list, folder: Path, problems: Problems) -> Listing:
    names = _coco_images(images, problems)
    captions: dict[int | str, list[str]] = {key: [] for key in names}
    seen = set()
    for place, annotation in enumerate(annotations):
        match annotation:
            case {"id": int() | str() as number, "image_id": int() | str() as key, "caption": str() as caption}:
                if number in seen:
                    problems.add("duplicate_id", f"annotation {number}")
                elif key not in captions:
                    problems.add("unknown_image", f"annotation {number} of image {key}")
                else:
                    captions[key].append(caption)
                seen.add(number)
            case _:
                problems.add("malformed_row", f"annotations[{place}]")
    return _listing(
        [(name_in(folder, name), located(folder, name), captions[key], None) for key, name in names.items()]
    )


def _coco_images(images: list, problems: Problems) -> dict[int | str, str]:
    names: dict[int | str, str] = {}
    for place, image in enumerate(images):
        match image:
            case {"id": int() | str() as key, "file_name": str() as name} if name:
                if key in names:
                    problems.add("duplicate_id", f"image {key}")
                else:
                    names[key] = name
            case _:
                problems.add("malformed_row", f"images[{place}]")
    return names
