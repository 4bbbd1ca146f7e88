"""Forty photographs in all layouts that docs/your-data.md lists: always the same images and captions."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from repair_hf.pairs.dataset import load_pairs
from tests.pairs.made_sources import Rows, as_dataset, captions_by_picture, each, img2dataset, rows_of

FORMS = ("tars", "files", "parquet")  # of img2dataset
Given = tuple[Path | Dataset | DatasetDict, dict]


def lines(values: list) -> str:
    return "\n".join(map(json.dumps, values))


def table(folder: Path, rows: Rows, name: str, write: Callable[[Path], object]) -> Given:
    write(folder / name)
    return (folder if name.startswith(("captions.", "metadata.")) else folder / name), {}


def unquoted(separator: str, rows: Rows, file: Path) -> None:
    texts = [separator.join(row) for row in each(rows).itertuples(index=False)]
    file.write_text("\n".join([separator.join(("image", "caption")), *texts]))


def coco(rows: Rows, file: Path) -> None:
    images = [{"id": k, "file_name": name} for k, (name, _) in enumerate(rows)]
    pairs = [(k, text) for k, (_, texts) in enumerate(rows) for text in texts]
    captions = [{"id": number, "image_id": k, "caption": text} for number, (k, text) in enumerate(pairs)]
    file.write_text(json.dumps({"images": images, "annotations": captions}))


def karpathy(rows: Rows, file: Path) -> None:
    images = [
        {"filename": name, "split": "val", "sentences": [{"raw": text} for text in texts]} for name, texts in rows
    ]
    file.write_text(json.dumps({"images": images}))


def embedded(photos: Path, rows: Rows, kind: str, file: Path) -> None:
    cells = [{"bytes": (photos / name).read_bytes(), "path": name} for name, _ in rows]
    images = cells if kind == "struct" else [cell["bytes"] for cell in cells]
    pd.DataFrame({"image": images, "caption": [texts for _, texts in rows]}).to_parquet(file)


def layouts(photos: Path, rows: Rows, to: Path, url: str) -> dict[str, Callable[[], Given]]:
    """Each layout in which to write the rows, with the photographs in `to`."""
    frame, whole = each(rows), pd.DataFrame(rows, columns=["image", "caption"])
    files = frame.rename(columns={"image": "file_name"})
    texts = whole.assign(caption=[repr(texts) for _, texts in rows])
    dicts = [{"image": name, "captions": texts} for name, texts in rows]
    tables: dict[str, Callable[[Path], object]] = {
        "captions.jsonl": lambda file: file.write_text(lines(dicts)),
        "metadata.jsonl": lambda file: files.to_json(file, orient="records", lines=True),
        "metadata.csv": partial(files.to_csv, index=False),
        "rows.csv": partial(frame.to_csv, index=False),
        "unquoted.tsv": partial(unquoted, "\t", rows),
        "bars.csv": partial(unquoted, "|", rows),
        "semicolons.csv": partial(frame.to_csv, sep=";", index=False),
        "captions.txt": partial(frame.to_csv, index=False),
        "lists.csv": partial(texts.to_csv, index=False),
        "lists.json": lambda file: file.write_text(json.dumps(dicts)),
        "rows.jsonl": lambda file: file.write_text(lines(dicts)),
        "rows.parquet": whole.to_parquet,
        "struct.parquet": partial(embedded, photos, rows, "struct"),
        "bytes.parquet": partial(embedded, photos, rows, "bytes"),
        "urls.csv": lambda file: frame.assign(image=url + "/" + frame["image"]).to_csv(file, index=False),
        "absolute.csv": lambda file: frame.assign(image=f"{photos}/" + frame["image"]).to_csv(file, index=False),
        "coco.json": partial(coco, rows),
        "karpathy.json": partial(karpathy, rows),
    }
    data = as_dataset(photos)
    return {
        **{name: partial(table, to, rows, name, write) for name, write in tables.items()},
        "a saved dataset": lambda: (data.save_to_disk(to / "saved"), (to / "saved", {}))[1],
        "a Dataset": lambda: (data, {}),
        "a DatasetDict": lambda: (DatasetDict({"a": data.select(range(9)), "b": data.select(range(9, 40))}), {}),
        **{
            form: lambda form=form: (img2dataset(photos, form, to / "shards"), {})
            for form in ("tars", "files", "parquet")
        },
    }


NAMES = """captions.jsonl metadata.jsonl metadata.csv rows.csv unquoted.tsv bars.csv semicolons.csv
    captions.txt lists.csv lists.json rows.jsonl rows.parquet struct.parquet bytes.parquet urls.csv absolute.csv
    coco.json karpathy.json""".split()
NAMES += [*FORMS, "a saved dataset", "a Dataset", "a DatasetDict"]


@pytest.fixture(scope="module")
def url(photos):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=photos)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def expected(photos) -> dict[str, list[str]]:
    return captions_by_picture(load_pairs(photos, split="all", strict=True))


@pytest.mark.parametrize("layout", NAMES)
def test_forty_photographs_are_the_same_in_every_layout(photos, expected, url, tmp_path, layout):
    rows = [(row["image"], row["captions"]) for row in rows_of(photos)]
    assert len(expected) == 40 and sum(map(len, expected.values())) == sum(len(texts) for _, texts in rows)
    to = shutil.copytree(photos, tmp_path / "data", ignore=shutil.ignore_patterns("captions.jsonl"))
    made = layouts(photos, rows, to, url)
    assert set(made) == set(NAMES)
    source, options = made[layout]()
    options |= {"image_folder": to} if layout in ("coco.json", "karpathy.json") else {}
    if layout == "captions.txt":
        source = to / layout
    assert captions_by_picture(load_pairs(source, split="all", strict=True, **options)) == expected
