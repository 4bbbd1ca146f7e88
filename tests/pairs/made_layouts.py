"""The same photographs and captions in the layouts in which people keep them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

from datasets import Dataset, Image

from tests.pairs.made_sources import rows_of

LAYOUTS = (
    "JSON Lines",
    "CSV",
    "TSV",
    "Parquet",
    "image folder",
    "saved, lists",
    "saved, a row per caption",
    "COCO JSON",
    "JSON Lines table",
)


def lay_out(photos: Path, layout: str, to: Path) -> tuple[Path, dict]:
    """Write the pairs of `photos`, which has a captions.jsonl, in another layout.

    Returns the source, and what `load_pairs` needs to read it.
    """
    rows = rows_of(photos)
    shutil.copytree(photos, to, ignore=shutil.ignore_patterns("*.jsonl"))
    each = [(row["image"], caption) for row in rows for caption in row["captions"]]
    if layout == "JSON Lines":
        shutil.copy(photos / "captions.jsonl", to)
    elif layout in ("CSV", "TSV"):  # a row per caption
        with (to / f"rows.{layout.lower()}").open("w", newline="") as file:
            csv.writer(file, delimiter="\t" if layout == "TSV" else ",").writerows([("image", "caption"), *each])
        return to / f"rows.{layout.lower()}", {}
    elif layout == "Parquet":  # a column per caption
        columns = {f"caption_{k}": [row["captions"][k] for row in rows] for k in range(len(rows[0]["captions"]))}
        Dataset.from_dict({"photo": [row["image"] for row in rows]} | columns).to_parquet(to / "rows.parquet")
        return to / "rows.parquet", {"image_column": "photo", "caption_column": ",".join(columns)}
    elif layout == "image folder":
        lines = [{"file_name": name, "filename": name, "caption": caption} for name, caption in each]
        (to / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    elif layout == "COCO JSON":
        images = [{"id": k, "file_name": row["image"]} for k, row in enumerate(rows)]
        numbers = {image["file_name"]: image["id"] for image in images}
        by_place = sorted(each, key=lambda row: rows[numbers[row[0]]]["captions"].index(row[1]))
        captions = [
            {"id": k, "image_id": numbers[name], "caption": f"{text}\n"} for k, (name, text) in enumerate(by_place)
        ]
        (to / "coco.json").write_text(json.dumps({"images": images, "annotations": captions}))
        return to / "coco.json", {"image_folder": to}
    elif layout == "JSON Lines table":
        shutil.copy(photos / "captions.jsonl", to / "rows.jsonl")
        return to / "rows.jsonl", {"caption_column": "captions"}
    else:
        per_caption = layout.endswith("a row per caption")
        listed = each if per_caption else [(row["image"], row["captions"]) for row in rows]
        names, captions = zip(*listed, strict=True)
        columns = {"image": [str(photos / name) for name in names], "caption": list(captions)}
        columns["cocoid" if per_caption else "image_id"] = list(names)
        Dataset.from_dict(columns).cast_column("image", Image()).save_to_disk(to / "saved")
        return to / "saved", {}
    return to, {}
