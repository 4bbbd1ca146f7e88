"""Forty photographs in all layouts that docs/your-data.md lists: always the same images and captions."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import PIL.Image
import pytest
from datasets import Dataset, DatasetDict, Image

from repair_hf.pairs.dataset import Pairs, load_pairs

Rows = list[tuple[str, list[str]]]
Given = tuple[Path | Dataset | DatasetDict, dict]
WORDS = ['"Stop" reads the sign', "a dog, brown", "None", "it's 12 o'clock", "007", 'he says "go', "[sic] café", "NA"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> tuple[Path, Rows]:
    """A folder of forty JPEG, PNG and WebP files, and the captions of each: one to three."""
    folder, rng, rows = tmp_path_factory.mktemp("photos"), np.random.default_rng(0), []
    for k in range(40):
        smooth = PIL.Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)).resize((64, 48))
        name = f"{k:09d}.{('jpg', 'jpg', 'png', 'webp')[k % 4] if k > 5 else 'jpg'}"
        smooth.save(folder / name)
        rows.append((name, [f"{WORDS[(k + place) % 8]} {k}" for place in range(k % 3)] + [WORDS[k % 8]]))
    return folder, rows


def each(rows: Rows) -> pd.DataFrame:
    return pd.DataFrame([(name, text) for name, texts in rows for text in texts], columns=["image", "caption"])


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


def as_dataset(photos: Path, rows: Rows) -> Dataset:
    columns = {"image": [str(photos / name) for name, _ in rows], "caption": [texts for _, texts in rows]}
    return Dataset.from_dict(columns).cast_column("image", Image())


def img2dataset(photos: Path, rows: Rows, form: str, folder: Path) -> Given:
    """A sample has one caption, so a photograph with several is in as many samples."""
    folder.mkdir()
    names = each(rows).itertuples(index=False)
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
    return folder, {}


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
        "quoted.tsv": partial(frame.to_csv, sep="\t", index=False),
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
    data = as_dataset(photos, rows)
    return {
        **{name: partial(table, to, rows, name, write) for name, write in tables.items()},
        "a saved dataset": lambda: (data.save_to_disk(to / "saved"), (to / "saved", {}))[1],
        "a Dataset": lambda: (data, {}),
        "a DatasetDict": lambda: (DatasetDict({"a": data.select(range(9)), "b": data.select(range(9, 40))}), {}),
        **{form: partial(img2dataset, photos, rows, form, to / "shards") for form in ("tars", "files", "parquet")},
    }


NAMES = """captions.jsonl metadata.jsonl metadata.csv rows.csv quoted.tsv unquoted.tsv bars.csv semicolons.csv
    captions.txt lists.csv lists.json rows.jsonl rows.parquet struct.parquet bytes.parquet urls.csv absolute.csv
    coco.json karpathy.json tars files parquet""".split()
NAMES += ["a saved dataset", "a Dataset", "a DatasetDict"]


@pytest.fixture(scope="module")
def url(photos):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=photos[0])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def captions_by_picture(pairs: Pairs) -> dict[str, list[str]]:
    captions = pairs.captions["caption"][:]
    return {look: sorted(captions[k] for k in pairs.captions_of(row)) for row, look in enumerate(pairs.looks)}


@pytest.mark.parametrize("layout", NAMES)
def test_forty_photographs_are_the_same_in_every_layout(photos, url, tmp_path, layout):
    folder, rows = photos
    to = shutil.copytree(folder, tmp_path / "data")
    made = layouts(folder, rows, to, url)
    assert set(made) == set(NAMES)
    source, options = made[layout]()
    options |= {"image_folder": to} if layout in ("coco.json", "karpathy.json") else {}
    if layout == "captions.txt":
        source = to / layout
    pairs = load_pairs(source, split="all", strict=True, **options)
    shutil.rmtree(to / "shards", ignore_errors=True)
    for file in to.iterdir():
        if file.name in NAMES:
            file.unlink()
    (to / "captions.jsonl").write_text(lines([{"image": name, "captions": texts} for name, texts in rows]))
    expected = captions_by_picture(load_pairs(to, split="all", strict=True))
    assert len(expected) == 40 and sum(map(len, expected.values())) == sum(len(texts) for _, texts in rows)
    assert captions_by_picture(pairs) == expected
