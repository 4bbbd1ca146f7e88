"""Sources of pairs that the tests write and compare."""

from __future__ import annotations

import json
from pathlib import Path

from datasets import Dataset, Features, Image, List, Value

from repair_hf.pairs.dataset import Pairs


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]


def write(folder: Path, rows: list[dict | str]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


def as_dataset(folder: Path) -> Dataset:
    rows = rows_of(folder)
    columns = {"image": [str(folder / row["image"]) for row in rows], "caption": [row["captions"] for row in rows]}
    return Dataset.from_dict(columns, features=Features({"image": Image(), "caption": List(Value("string"))}))


def content(pairs: Pairs) -> dict[str, list[str]]:
    found = {image_id: [] for image_id in pairs.images["image_id"]}
    for row in pairs.captions:
        found[pairs.images["image_id"][row["image_index"]]].append(row["caption"])
    return found


def kinds(pairs: Pairs) -> dict[str, int]:
    return {problem.kind: problem.count for problem in pairs.problems}
