"""Records: what is saved is what is loaded, whoever loads it; incomplete records raise an error."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset, Features, Value, get_dataset_config_names, load_dataset
from datasets import Image as ImageFeature
from PIL import Image

from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.records import parquet as parquet_module
from repair_hf.records.columns import DROPPED_FEATURES, FEATURES, REASONS
from repair_hf.records.dataset import build, check, load_dropped, load_records, record_id, save_records, summarize
from repair_hf.records.images import lacks_images
from repair_hf.runtime.options import UserError


@pytest.fixture(scope="module")
def pairs(pairs_folder) -> Pairs:
    return load_pairs(pairs_folder, split="all")


def rows_of(pairs: Pairs, edited: Path, count: int = 4) -> list[dict]:
    """Records of both directions, by turns."""
    rows = []
    for place in range(count):
        q, fp = place % len(pairs.images), (place + 1) % len(pairs.images)
        image_ids, captions = pairs.images["image_id"], pairs.captions
        paths = [pairs.images.cast_column("image", ImageFeature(decode=False))[at]["image"] for at in (q, fp)]
        row = {"round": 1, "fp_score": 0.5, "fp_rank": 1, "gt_score": 0.25, "gt_rank": 2, "seed": 0}
        row |= {"edit_similarity": 0.75, "candidate_similarities": [None, 0.75], "candidate": 1}
        row |= {"edit_instruction": f"do {place}"}
        if place % 2:
            caption = captions[2 * fp]
            row |= {"direction": "i2t", "q_id": image_ids[q], "gt_id": f"{image_ids[q]}#0"}
            row |= {"fp_id": caption["caption_id"], "fp_text": caption["caption"], "q_image": paths[0]}
            row |= {
                "gt_text": captions[2 * q]["caption"],
                "edit_text": f"edit {place}",
                "error_types": ["Count", "Object"],
            }
        else:
            row |= {"direction": "t2i", "q_id": f"{image_ids[q]}#1", "gt_id": image_ids[q], "fp_id": image_ids[fp]}
            row |= {
                "q_text": captions[2 * q + 1]["caption"],
                "gt_image": paths[0],
                "fp_image": paths[1],
                "error_types": [],
            }
            row |= {"edit_image": {"bytes": None, "path": str(edited)}}
        rows.append(row | {"record_id": record_id(row, "x")})
    return rows


@pytest.fixture
def edited(tmp_path) -> Path:
    path = tmp_path / "candidates" / "edited.png"
    path.parent.mkdir()
    Image.new("RGB", (8, 8), "purple").save(path)
    return path


@pytest.fixture
def records(pairs, edited, tmp_path) -> Dataset:
    return build(rows_of(pairs, edited), tmp_path / "records.arrow")


@pytest.fixture
def dropped(tmp_path) -> Dataset:
    rows = [{"direction": way, "reason": reason, "q_id": "a", "error_types": []} for way, reason in DROPPED]
    return build(rows, tmp_path / "dropped.arrow", DROPPED_FEATURES)


DROPPED = [("t2i", "gt_invalid"), ("i2t", "no_op"), ("i2t", "fp_too_similar"), ("i2t", "no_op")]


def same(image: Image.Image, other: Image.Image) -> bool:
    return image.convert("RGB").tobytes() == other.convert("RGB").tobytes()


@pytest.fixture
def out(records, dropped, tmp_path) -> Path:
    save_records(tmp_path / "out", records, dropped)
    return tmp_path / "out"


def test_saved_records_stand_on_their_own(out, records, pairs, edited):
    edited.unlink()  # images are inside the Parquet file
    loaded = load_records(out)
    assert loaded.features == FEATURES and loaded["record_id"] == records["record_id"]
    assert same(loaded[0]["edit_image"], Image.new("RGB", (8, 8), "purple"))
    assert same(loaded[0]["gt_image"], pairs.images[0]["image"])
    assert same(loaded[0]["fp_image"], pairs.images[1]["image"])
    assert loaded[1]["edit_image"] is loaded[1]["gt_image"] is None
    assert loaded[1]["candidate_similarities"] == [None, 0.75]
    raw = loaded.cast_column("edit_image", ImageFeature(decode=False))[0]["edit_image"]
    assert raw["path"] == "edited.png"  # not a path of this machine


def test_the_folder_is_a_dataset_with_two_configs_and_a_readme(out, records, tmp_path):
    assert load_dataset(str(out), "records", split="train").to_list() == load_records(out).to_list()
    assert load_dataset(str(out), split="train")["record_id"] == records["record_id"]  # the default
    left = load_dataset(str(out), "dropped", split="train")
    assert list(zip(left["direction"], left["reason"], strict=True)) == DROPPED and left.features == DROPPED_FEATURES
    text = (out / "README.md").read_text()
    assert all(f"| `{name}` | " in text for name in (*FEATURES, *REASONS))
    assert "{" not in text.split("---")[2] and json.dumps(str(tmp_path)) not in text


def test_saving_again_replaces_what_is_loaded(out, records, dropped):
    assert len(load_records(out)) == 4
    save_records(out, records.select([2]), dropped)
    assert load_records(out)["record_id"] == records.select([2])["record_id"]
    assert len(list((out / "records").iterdir())) == 1


def test_records_of_another_folder_of_the_same_name(out, records, dropped, tmp_path):
    """Whatever its README.md names, the records are the folder's own files."""
    readme = (out / "README.md").read_text()
    assert len(load_records(out)) == 4
    save_records(tmp_path / "other" / "out", records.select([1, 2]), dropped.select([0]))
    text = re.sub(r"train-\*-\w+", "train-*", readme)
    for path in ("records/train-*.parquet", "http://127.0.0.1:1/x.parquet", f"{out}/records/*.parquet"):
        for folder in (out, tmp_path / "other" / "out"):
            (folder / "README.md").write_text(text.replace("records/train-*.parquet", path))
        assert len(load_records(out)) == 4 and len(load_records(tmp_path / "other" / "out")) == 2
        assert len(load_dropped(tmp_path / "other" / "out")) == 1


def test_a_folder_may_be_called_like_a_reader_of_datasets(records, dropped, tmp_path, monkeypatch):
    save_records(tmp_path / "parquet", records, dropped)
    monkeypatch.chdir(tmp_path)
    assert load_records("parquet")["record_id"] == records["record_id"]
    assert len(load_dropped("parquet")) == len(dropped)


def test_equal_records_give_equal_files(out, dropped, pairs, edited, tmp_path):
    save_records(tmp_path / "two", build(rows_of(pairs, edited), tmp_path / "again.arrow"), dropped)
    folders = out / "records", tmp_path / "two" / "records"
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert one == two


def test_large_records_are_cut_into_files(pairs, edited, dropped, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "_BYTES_PER_FILE", 5_000)
    monkeypatch.setattr(parquet_module, "_ROWS_PER_GROUP", 3)
    records = build(rows_of(pairs, edited, 20), tmp_path / "many.arrow")
    save_records(tmp_path / "out", records, dropped)
    assert len(list((tmp_path / "out" / "records").glob("*.parquet"))) > 1
    assert load_records(tmp_path / "out")["record_id"] == records["record_id"]


def test_no_records_at_all_are_told_as_such(dropped, tmp_path):
    save_records(tmp_path / "none", build([], tmp_path / "empty.arrow"), dropped)
    with pytest.raises(UserError, match="holds no records"):  # `datasets` cannot load a split of no rows
        load_records(tmp_path / "none")
    assert len(load_dataset(str(tmp_path / "none"), "dropped", split="train")) == len(DROPPED)


def test_where_nothing_was_dropped_there_is_no_such_config_and_we_load_no_rows(out, records, dropped, tmp_path):
    save_records(tmp_path / "whole", records, build([], tmp_path / "empty.arrow", DROPPED_FEATURES))
    left = load_dropped(tmp_path / "whole")
    assert len(left) == 0 and left.features == DROPPED_FEATURES
    assert get_dataset_config_names(str(tmp_path / "whole")) == ["records"]
    assert '"dropped", split' not in (tmp_path / "whole" / "README.md").read_text()
    assert load_dropped(out).to_list() == dropped.to_list()
    with pytest.raises(UserError, match="holds no records"):
        load_dropped(tmp_path)


def test_source_images_can_be_left_out_and_joined_back(out, records, dropped, pairs, tmp_path):
    folder = tmp_path / "light"
    save_records(folder, records, dropped, embed_source_images=False)
    bare = load_records(folder)
    assert bare[0]["gt_image"] is bare[0]["fp_image"] is bare[1]["q_image"] is None
    assert bare[0]["edit_image"] is not None
    for row, other in zip(load_records(folder, pairs=pairs), load_records(out), strict=True):
        for cell in ("q_image", "gt_image", "fp_image", "edit_image"):
            assert (row[cell] is None) == (other[cell] is None)
            assert row[cell] is None or same(row[cell], other[cell])
    with pytest.raises(UserError, match="which is not in `pairs`"):
        load_records(folder, pairs=Pairs(pairs.images.select([5]), pairs.captions))


@pytest.mark.parametrize("path", ["no/such-records", "/no/such/folder", "here"])
def test_a_place_without_records_is_the_users_mistake(path, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match="holds no records.*repair-hf synthesize"):
        load_records(tmp_path if path == "here" else path)


def without(column: str):
    return lambda records: records.map(lambda row: {column: None}, features=FEATURES)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda r: r.remove_columns(["fp_id", "edit_text"]), r"lack the columns \['fp_id', 'edit_text'\]"),
        (lambda r: r.cast_column("seed", Value("string")), "other types.*seed"),
        (lambda r: r.map(lambda row: {"direction": "both"}), r"`direction` of \['both'\]"),
        (without("edit_text"), "2 i2t records have no `edit_text`, such as row 1"),
        (without("edit_image"), "2 t2i records have no `edit_image`, such as row 0"),
        (without("q_id"), "have no `q_id`"),
    ],
)
def test_says_what_is_missing(records, spoil, complaint):
    check(records)
    with pytest.raises(UserError, match=complaint):
        check(spoil(records))


def test_an_id_names_the_content():
    row = {"direction": "i2t", "q_id": "a", "gt_id": "a#0", "fp_id": "b#1"}
    row |= {"gt_text": "x", "fp_text": "y", "edit_instruction": "z"}
    first = record_id(row, "an edit")
    assert record_id(dict(reversed(row.items())) | {"fp_score": 0.3, "llm": "other"}, "an edit") == first
    changes = [record_id(row | {key: "other"}, "an edit") for key in row]
    assert len({first, record_id(row, "another"), *changes}) == len(row) + 2


def test_summarizes_by_direction(records, dropped):
    found = summarize(records, dropped)
    t2i = {"mined": 3, "kept": 2, "dropped": {"gt_invalid": 1}, "error_types": {}, "edit_similarity": 0.75}
    assert found["t2i"] == t2i
    assert found["i2t"]["mined"] == 5 and found["i2t"]["dropped"] == {"fp_too_similar": 1, "no_op": 2}
    assert found["i2t"]["error_types"] == {"Count": 1.0, "Object": 1.0}
    for similarities, mean in (([None, None, 0.5, 0.5], 0.5), ([None] * 4, None)):  # what is not there is not averaged
        some = records.map(lambda row, at: {"edit_similarity": similarities[at]}, with_indices=True, features=FEATURES)  # noqa: B023
        assert summarize(some, dropped)["t2i"]["edit_similarity"] == mean
    empty = {"mined": 0, "kept": 0, "dropped": {}, "error_types": {}, "edit_similarity": None}
    assert summarize(records.select([]), dropped.select([])) == {"t2i": empty, "i2t": empty}


def test_to_see_what_is_missing_copies_no_picture():
    picture = {"bytes": bytes(1_000_000), "path": None}
    rows = [{"direction": "i2t", "q_image": picture}] * 8 + [{"direction": "t2i", "gt_image": picture}]
    features = {"direction": Value("string"), **{f"{role}_image": ImageFeature() for role in ("q", "gt", "fp")}}
    cells = {name: [row.get(name) for row in rows] for name in features}
    records = Dataset.from_dict(cells, features=Features(features))
    pool = pa.proxy_memory_pool(before := pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert lacks_images(records)  # the false positive of the last one
        assert not lacks_images(records.select(range(8)))
    finally:
        pa.set_memory_pool(before)
    assert (pool.max_memory() or 0) < 1_000_000


def test_a_table_of_absolute_paths_whose_folder_moves(pairs_folder, tmp_path, illustrated):
    """No path of this machine stands in the ids, and the records stay the same."""
    rows = [json.loads(line) for line in (pairs_folder / "captions.jsonl").read_text().splitlines()]
    found = []
    for name in ("here", "there"):
        shutil.copytree(pairs_folder, tmp_path / name)
        lines = [json.dumps(row | {"image": str(tmp_path / name / row["image"])}) for row in rows]
        (tmp_path / name / "captions.jsonl").write_text("\n".join(lines))
        found.append(load_pairs(tmp_path / name, split="all"))
        if name == "here":
            save_records(tmp_path / "records", illustrated[1], illustrated[1].select([]))
            shutil.rmtree(tmp_path / name)
    assert found[0].images["image_id"][:] == found[1].images["image_id"][:] == [row["image"] for row in rows]
    assert len(load_records(tmp_path / "records", pairs=found[1])) == len(illustrated[1])
