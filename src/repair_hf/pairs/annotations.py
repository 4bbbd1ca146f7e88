"""Read a caption JSON of COCO or of Karpathy (`dataset_coco.json`, `dataset_flickr30k.json`).

A row that does not fit the format is collected as a problem and raises no error.
"""

from __future__ import annotations

import os
from pathlib import Path

from repair_hf.pairs.problems import Problems
from repair_hf.pairs.sources import Listing, is_outside, list_files
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import read_json


def read_annotations(file: Path, image_folder: Path, problems: Problems) -> Listing:
    """Read a caption JSON in COCO's or Karpathy's format, recognized by its content."""
    match read_json(file, mend=lambda text: None):
        case {"images": list() as images, "annotations": list() as captions}:
            return _coco(images, captions, image_folder, problems)
        case {"images": [{"sentences": list()}, *_] as images}:
            return _karpathy(images, image_folder, problems)
    raise UserError(
        f"{file} is not a caption JSON: it needs the lists `images` and `annotations` (COCO), or `images` with "
        "`sentences` and `split` (Karpathy)."
    )


def _coco(images: list, captions: list, image_folder: Path, problems: Problems) -> Listing:
    names = _coco_images(images, problems)
    listed = _coco_captions(captions, names, problems)
    files = list_files([(name, image_folder / name) for name in names.values()])
    return Listing(files, list(listed.values()), None, [image_folder])


def _karpathy(images: list, image_folder: Path, problems: Problems) -> Listing:
    """COCO's images lie in their own folders (`filepath`), or all in one folder."""
    named, captions = [], []
    splits: list[str | None] = []
    has_folder = {path: os.path.isdir(image_folder / path) for path in set(map(_filepath, images))}
    for place, image in enumerate(images):
        match image:
            case {"filename": str() as name, "split": str() as split, "sentences": list() as sentences} if name:
                path = _filepath(image)
                if is_outside(name) or is_outside(path):
                    problems.add("outside_folder", f"{path}/{name}")
                    continue
                named.append((name, image_folder / path / name if has_folder[path] else image_folder / name))
                captions.append([each.get("raw") if isinstance(each, dict) else None for each in sentences])
                splits.append(split)
            case _:
                problems.add("malformed_row", f"images[{place}]")
    folders = [image_folder, *(image_folder / path for path in has_folder if not is_outside(path))]
    return Listing(list_files(named), captions, splits, folders)


def _filepath(image: object) -> str:
    path = image.get("filepath") if isinstance(image, dict) else None
    return path if isinstance(path, str) else ""


def _coco_images(images: list, problems: Problems) -> dict[int | str, str]:
    names: dict[int | str, str] = {}
    for place, image in enumerate(images):
        match image:
            case {"id": int() | str() as key, "file_name": str() as name} if name:
                if key in names:
                    problems.add("duplicate_id", f"image {key}")
                elif is_outside(name):
                    problems.add("outside_folder", name)
                else:
                    names[key] = name
            case _:
                problems.add("malformed_row", f"images[{place}]")
    return names


def _coco_captions(annotations: list, names: dict[int | str, str], problems: Problems) -> dict[int | str, list[str]]:
    listed: dict[int | str, list[str]] = {key: [] for key in names}
    seen = set()
    for place, annotation in enumerate(annotations):
        match annotation:
            case {"id": int() | str() as number, "image_id": int() | str() as key, "caption": str() as caption}:
                if number in seen:
                    problems.add("duplicate_id", f"annotation {number}")
                elif key not in listed:
                    problems.add("unknown_image", f"annotation {number} of image {key}")
                else:
                    listed[key].append(caption)
                seen.add(number)
            case _:
                problems.add("malformed_row", f"annotations[{place}]")
    return listed
