"""Read a caption JSON of COCO or of Karpathy (`dataset_coco.json`, `dataset_flickr30k.json`).

A row that does not fit the format is collected as a problem and raises no error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import in_memory
from repair_hf.runtime.files import REPAIR, read_json
from repair_hf.runtime.options import UserError

COLUMNS = {"image": pa.string(), "captions": pa.list_(pa.string())}
SPLIT_COLUMNS = {"filename": pa.string(), "split": pa.string()}  # Karpathy's


def load_annotations(file: Path, image_folder: str | None, problems: Problems) -> Dataset:
    """Load a caption JSON as a table of images with their captions; its format is recognized by its content.

    Raises:
        UserError: If there is no such file, no folder of its images, or its format is another.
    """
    if not file.is_file():
        raise UserError(f"`{file}` does not exist; give the path of a caption JSON, COCO's or Karpathy's.")
    if image_folder is None or not Path(image_folder).is_dir():
        raise UserError(f"`image_folder` must be the folder of the images in {file}, got {image_folder}.")
    match read_json(file, needs=None, remedy=REPAIR):
        case {"images": list() as images, "annotations": list() as captions}:
            rows = _coco(images, captions, problems)
            columns = COLUMNS
        case {"images": [{"sentences": list()}, *_] as images}:
            rows = _karpathy(images, Path(image_folder), problems)
            columns = COLUMNS | SPLIT_COLUMNS
        case _:
            raise UserError(
                f"{file} is not a caption JSON: it needs the lists `images` and `annotations` (COCO), or `images` "
                "with `sentences` and `split` (Karpathy)."
            )
    for row in rows:
        if "://" in row["image"] and not row["image"].startswith("file://"):  # these formats name files alone
            row["image"] = os.path.normpath(row["image"])
    return in_memory(pa.Table.from_pylist(rows, pa.schema(columns)))


def _karpathy(images: list, folder: Path, problems: Problems) -> list[dict[str, Any]]:
    """COCO's images lie in their own folders (`filepath`), or all in one folder."""
    rows = []
    has_folder: dict[str, bool] = {}
    for place, image in enumerate(images):
        match image:
            case {"filename": str() as name, "split": str() as split, "sentences": list() as sentences} if name:
                path = image.get("filepath")
                path = path if isinstance(path, str) else ""
                if path not in has_folder:
                    has_folder[path] = os.path.isdir(folder / path)
                texts = [sentence.get("raw") if isinstance(sentence, dict) else None for sentence in sentences]
                captions = [text if isinstance(text, str) else None for text in texts]
                file = os.path.join(path, name) if has_folder[path] else name
                rows.append({"image": file, "captions": captions, "filename": name, "split": split})
            case _:
                problems.add("malformed_row", f"images[{place}]")
    return rows


def _coco(images: list, annotations: list, problems: Problems) -> list[dict[str, Any]]:
    rows: dict[int | str, dict[str, Any]] = {}
    for place, image in enumerate(images):
        match image:
            case {"id": int() | str() as key, "file_name": str() as name} if name:
                if key in rows:
                    problems.add("duplicate_id", f"image {key}")
                else:
                    rows[key] = {"image": name, "captions": []}
            case _:
                problems.add("malformed_row", f"images[{place}]")
    seen = set()
    for place, annotation in enumerate(annotations):
        match annotation:
            case {"id": int() | str() as number, "image_id": int() | str() as key, "caption": str() as caption}:
                if number in seen:
                    problems.add("duplicate_id", f"annotation {number}")
                elif key not in rows:
                    problems.add("unknown_image", f"annotation {number} of image {key}")
                else:
                    rows[key]["captions"].append(caption)
                seen.add(number)
            case _:
                problems.add("malformed_row", f"annotations[{place}]")
    return list(rows.values())
