"""Folders of images with their captions beside them, as img2dataset, `datasets` and people lay them out."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import unicodedata
from pathlib import Path

import pandas as pd
import PIL.Image
import pytest

from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import kinds, rows_of

COLORS = ["red", "green", "blue", "white", "black", "yellow", "purple", "orange"]


def file_of(color: str, kind: str) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", (8, 8), color).save(file, {"jpg": "JPEG"}.get(kind, kind))
    return file.getvalue()


def shards(folder: Path, form: str) -> None:
    """Write two shards of four pictures each in a form of img2dataset: JPEG first, then PNG and WebP too."""
    folder.mkdir()
    for shard in range(2):
        samples = []
        for k, color in enumerate(COLORS[4 * shard :][:4]):
            kind = "jpg" if shard == 0 else ("png", "webp", "jpg", "png")[k]
            samples.append((f"{shard:05d}{k:04d}", kind, file_of(color, kind), f"a {color} thing"))
        table = {"key": [key for key, *_ in samples], "caption": [text for *_, text in samples], "status": "success"}
        if form == "parquet":
            table["jpg"] = [content for _, _, content, _ in samples]
        elif form == "files":
            (folder / f"{shard:05d}").mkdir()
        pd.DataFrame(table).to_parquet(folder / f"{shard:05d}.parquet")
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps({"count": 4, "successes": 4}))
        with tarfile.open(folder / f"{shard:05d}.tar" if form == "tars" else folder.parent / "other", "w") as tar:
            for key, kind, content, text in samples:
                more = {
                    kind: content,
                    "txt": text.encode(),
                    "json": json.dumps({"caption": text, "key": key}).encode(),
                }
                for end, data in more.items():
                    if form == "files":
                        (folder / f"{shard:05d}" / f"{key}.{end}").write_bytes(data)
                    info = tarfile.TarInfo(f"{key}.{end}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def captions_by_color(source: Path, **options) -> dict[str, list[str]]:
    pairs = load_pairs(source, split="all", strict=True, **options)
    found = {}
    for row, image in enumerate(pairs.images["image"]):
        distance = {
            color: sum(abs(a - b) for a, b in zip(image.getpixel((4, 4)), file_pixel(color), strict=True))
            for color in COLORS
        }
        found[min(distance, key=distance.__getitem__)] = [pairs.captions[k]["caption"] for k in pairs.captions_of(row)]
    return found


def file_pixel(color: str) -> tuple[int, ...]:
    return PIL.Image.new("RGB", (1, 1), color).getpixel((0, 0))


@pytest.mark.parametrize("form", ["tars", "files", "parquet"])
def test_all_forms_of_img2dataset_with_images_of_several_kinds(tmp_path, form):
    shards(tmp_path / "data", form)
    expected = {color: [f"a {color} thing"] for color in COLORS}
    assert captions_by_color(tmp_path / "data") == expected
    if form != "files":
        text = "txt" if form == "tars" else "caption"
        assert captions_by_color(tmp_path / "data", image_column="jpg", caption_column=text) == expected
    if form == "tars":
        assert captions_by_color(tmp_path / "data" / "00001.tar") == {c: expected[c] for c in COLORS[4:]}
        for end in ("json", "parquet"):
            for file in tmp_path.glob(f"data/*.{end}"):
                file.unlink()
            assert captions_by_color(tmp_path / "data") == expected  # in the end tars alone
        (tmp_path / "data" / "00001.tar").rename(tmp_path / "data" / "test-00001.tar")
        (tmp_path / "data" / "00000.tar").rename(tmp_path / "data" / "train-00000.tar")
        (tmp_path / "data" / "README.md").write_text("---\nlicense: mit\n---\n")  # as a dataset of the Hub
        assert len(load_pairs(tmp_path / "data", split="test").images) == 4
        assert captions_by_color(tmp_path / "data") == expected
        (tmp_path / "hub").mkdir()
        (tmp_path / "data").rename(tmp_path / "hub" / "data")
        assert captions_by_color(tmp_path / "hub") == expected
        options = {"image_column": "png", "caption_column": "txt"}
        assert len(load_pairs(tmp_path / "hub", split="all", **options).images) == len(COLORS)


def test_a_text_beside_each_image(folder):
    (folder / "captions.jsonl").unlink()
    for file in folder.glob("*.png"):
        file.with_suffix(".txt").write_text(f"a {file.stem}\n")
    (folder / "red_circle.txt").unlink()
    pairs = load_pairs(folder, split="all")
    assert pairs.captions["caption"][:] == [f"a {Path(name).stem}" for name in pairs.images["image_id"]]
    assert len(pairs.images) == 11 and kinds(pairs) == {"empty_caption": 1, "image_without_captions": 1}


HARD = ["null", "None", "NA", "nan", "12", "007", "1e3", "true", "", '"go" he says', "a, b", "N/A"]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "captions.csv"])
def test_captions_that_look_like_missing_values_or_numbers(pairs_folder, tmp_path, name):
    shutil.copytree(pairs_folder, tmp_path / "data", ignore=shutil.ignore_patterns("*.jsonl"))
    column = "image" if name == "captions.csv" else "file_name"
    table = pd.DataFrame({column: [row["image"] for row in rows_of(pairs_folder)], "caption": HARD})
    if name.endswith("csv"):
        table.to_csv(tmp_path / "data" / name, index=False)
    else:
        table.to_json(tmp_path / "data" / name, orient="records", lines=True)
    pairs = load_pairs(tmp_path / "data" / (name if name == "captions.csv" else ""), split="all")
    assert pairs.captions["caption"][:] == [text for text in HARD if text]
    assert kinds(pairs) == {"empty_caption": 1, "image_without_captions": 1}


def test_a_folder_of_tables_is_read_as_each_of_them(pairs_folder, tmp_path):
    """pandas, which `datasets` takes for them, would lose the captions null, NA and nan, and fail on 12."""
    table = pd.DataFrame({"image": [str(pairs_folder / row["image"]) for row in rows_of(pairs_folder)]})
    table = table.assign(caption=HARD)
    for name, part in (("train.csv", table[3:]), ("test.csv", table[:3])):
        part.to_csv(tmp_path / name, index=False)
    assert load_pairs(tmp_path, split="test").captions["caption"][:] == HARD[:3]
    pairs = load_pairs(tmp_path, split="train")
    assert pairs.captions["caption"][:] == [text for text in HARD[3:] if text]
    assert kinds(pairs) == {"empty_caption": 1, "image_without_captions": 1}


@pytest.mark.parametrize("where", ["beside the folders", "in each folder", "a column of splits"])
def test_metadata_and_folders_of_splits(folder, where):
    rows = rows_of(folder)
    (folder / "captions.jsonl").unlink()
    lines: dict[str, list[str]] = {"": [], "train": [], "test": []}
    for k, row in enumerate(rows):
        split = "test" if k < 3 else "train"
        (folder / split).mkdir(exist_ok=True)
        (folder / row["image"]).rename(folder / split / row["image"])
        line = {"file_name": f"{split}/{row['image']}", "caption": row["captions"][0]}
        if where == "in each folder":
            lines[split].append(json.dumps(line | {"file_name": row["image"]}))
        else:
            lines[""].append(json.dumps(line | ({"split": "ab"[k % 2]} if where == "a column of splits" else {})))
    for split, some in lines.items():
        if some:
            (folder / split / "metadata.jsonl").write_text("\n".join(some))
    if where == "a column of splits":
        assert len(load_pairs(folder, split="a", strict=True).images) == 6
    else:
        assert len(load_pairs(folder, strict=True).images) == 9
        assert load_pairs(folder, split="test").images["image_id"][0] == f"test/{rows[0]['image']}"


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("layout", ["captions.jsonl", "coco.json", "below"])
def test_names_whose_accents_are_encoded_in_another_form(tmp_path, form, other, layout):
    name = "café Ågård.png"
    place = tmp_path / "images" if layout == "below" else tmp_path
    place.mkdir(exist_ok=True)
    (place / unicodedata.normalize(form, name)).write_bytes(file_of("red", "png"))
    name, source = unicodedata.normalize(other, name), tmp_path
    if layout == "coco.json":
        source = tmp_path / layout
        annotations = [{"id": 1, "image_id": 1, "caption": "a"}]
        source.write_text(json.dumps({"images": [{"id": 1, "file_name": name}], "annotations": annotations}))
    else:
        (tmp_path / "captions.jsonl").write_text(json.dumps({"image": name, "captions": ["a"]}))
    assert load_pairs(source, split="all", strict=True, image_folder=tmp_path).images["image_id"][:] == [name]


def test_addresses_of_files_are_paths(folder, pairs_folder):
    """Their ids are relative to the table, as are those of absolute paths."""
    rows = rows_of(folder)
    (folder / "a b#1.png").write_bytes(file_of("orange", "png"))
    names = [(folder / row["image"]).as_uri() for row in rows[:2]] + [str(folder / row["image"]) for row in rows[2:4]]
    names += [(folder / "a b#1.png").as_uri(), str(pairs_folder / rows[5]["image"])]
    (folder / "rows.csv").write_text("\n".join(["image,caption", *(f"{name},a" for name in names)]))
    pairs = load_pairs(folder / "rows.csv", split="all", strict=True)
    expected = [row["image"] for row in rows[:4]] + ["a b#1.png", rows[5]["image"]]
    assert pairs.images["image_id"][:] == expected
    moved = folder.rename(folder.with_name("moved"))
    text = (moved / "rows.csv").read_text().replace(str(folder), str(moved))
    (moved / "rows.csv").write_text(text)
    assert load_pairs(moved / "rows.csv", split="all", strict=True).images["image_id"][:] == expected


def test_a_missing_file_of_a_dataset_is_named_by_its_path(tmp_path):
    from datasets import Dataset, Image

    path = tmp_path / "absent.png"
    path.write_bytes(file_of("red", "png"))
    Dataset.from_dict({"image": [str(path)], "caption": ["a"]}).cast_column("image", Image()).to_parquet(
        tmp_path / "x.parquet"
    )
    path.unlink()
    with pytest.raises(UserError, match=r"images that do not exist: 1 \('train-0000000: /.*absent.png'\)"):
        load_pairs(tmp_path / "x.parquet", split="all")
