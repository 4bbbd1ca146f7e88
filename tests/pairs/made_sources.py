"""Sources of pairs that the tests write and compare."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pandas as pd
from datasets import Dataset, Features, Image, List, Value

from repair_hf.pairs.dataset import Pairs

Rows = list[tuple[str, list[str]]]  # of images: the file and its captions


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


def captions_by_picture(pairs: Pairs) -> dict[str, list[str]]:
    captions = pairs.captions["caption"][:]
    return {look: sorted(captions[k] for k in pairs.captions_of(row)) for row, look in enumerate(pairs.looks)}


def each(rows: Rows) -> pd.DataFrame:
    """A row for each caption."""
    return pd.DataFrame([(name, text) for name, texts in rows for text in texts], columns=["image", "caption"])


def img2dataset(photos: Path, form: str, folder: Path) -> Path:
    """Write the pairs of `photos` into a folder as img2dataset does: tars, files or Parquet, in two shards.

    A sample has one caption, so a photograph with several is in as many samples.
    """
    folder.mkdir()
    names = each([(row["image"], row["captions"]) for row in rows_of(photos)]).itertuples(index=False)
    samples = [
        (f"{k:09d}", Path(name).suffix, (photos / name).read_bytes(), text) for k, (name, text) in enumerate(names)
    ]
    for shard in range(2):
        some, stem = samples[shard::2], folder / f"{shard:05d}"
        columns = {"key": [key for key, *_ in some], "caption": [text for *_, text in some], "status": "success"}
        images = {"jpg": [content for _, _, content, _ in some]} if form == "parquet" else {}
        pd.DataFrame(columns | images).to_parquet(stem.with_suffix(".parquet"))
        (folder / f"{shard:05d}_stats.json").write_text("{}")
        if form == "tars":
            with tarfile.open(stem.with_suffix(".tar"), "w") as tar:
                for key, end, content, text in some:
                    for name, data in ((key + end, content), (f"{key}.txt", text.encode()), (f"{key}.json", b"{}")):
                        info = tarfile.TarInfo(name)
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
        elif form == "files":
            stem.mkdir()
            for key, end, content, text in some:
                (stem / (key + end)).write_bytes(content)
                (stem / f"{key}.txt").write_text(text)
                (stem / f"{key}.json").write_text("{}")
    return folder
