"""Pairs of a dataset on the Hub, by configuration and revision."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
from benchmark_files import COLORS, WINO
from datasets import Dataset, Image
from hub_routes import Repo
from hub_server import Fault
from PIL import Image as Picture

from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import rows_of

README = """---
configs:
- config_name: english
  data_files: english.parquet
- config_name: german
  data_files: german.parquet
---
"""


def test_a_configuration_and_a_revision_are_loaded(client, stranger, pairs_folder, tmp_path):
    names = ["red_circle.png", "blue_circle.png", "red_square.png"]
    columns = {"image": [str(pairs_folder / name) for name in names], "caption": names}
    Dataset.from_dict(columns).cast_column("image", Image()).save_to_disk(tmp_path / "rows")
    client.run(f"""
from datasets import load_from_disk
from huggingface_hub import CommitOperationAdd, HfApi
rows, api = load_from_disk({str(tmp_path / "rows")!r}), HfApi()
api.create_repo("me/photos", repo_type="dataset")
for revision, english in (("v1", [0]), ("v2", [0, 1])):
    parts = {{"README.md": {README!r}.encode()}}
    for name, some in (("english", english), ("german", [2])):
        rows.select(some).to_parquet({str(tmp_path)!r} + "/part.parquet")
        parts[name + ".parquet"] = open({str(tmp_path)!r} + "/part.parquet", "rb").read()
    changes = [CommitOperationAdd(path, content) for path, content in parts.items()]
    api.create_commit("me/photos", changes, commit_message=revision, repo_type="dataset")
    api.create_tag("me/photos", tag=revision, repo_type="dataset")
""")
    loaded = stranger.run("""
from repair_hf.pairs.dataset import load_pairs
asked = ({"pairs_config": "english"}, {"pairs_config": "english", "pairs_revision": "v1"}, {"pairs_config": "german"})
result = [load_pairs("me/photos", split="all", **one).captions["caption"][:] for one in asked]
""")
    assert loaded == [names[:2], names[:1], names[2:]]


def test_a_folder_has_neither(tmp_path):
    for options in ({"pairs_config": "english"}, {"pairs_revision": "v1"}, {"stream": True}):
        with pytest.raises(UserError, match="`pairs_config`, `pairs_revision` and `stream` are for the Hub"):
            load_pairs(tmp_path, **options)


@pytest.fixture(scope="module")
def streamed(hub_of_all_tests, pairs_folder, tmp_path_factory):
    """`me/many`: 12 rows in three files of `train`, one in `test`, which is a second time in the last file."""
    file, rows = tmp_path_factory.mktemp("many") / "part.parquet", rows_of(pairs_folder)
    cells = [{"bytes": (pairs_folder / row["image"]).read_bytes(), "path": None} for row in rows]
    columns = {"image": cells, "caption": [row["captions"] for row in rows], "poster": cells}
    data = Dataset.from_dict(columns).cast_column("image", Image()).cast_column("poster", Image())
    files = {".gitattributes": b""}
    for name, some in {"train-0": range(4), "train-1": range(4, 8), "train-2": range(8, 12), "test-0": [3]}.items():
        data.select(some).to_parquet(file)
        files[f"data/{name}.parquet"] = file.read_bytes()
    hub_of_all_tests.repos["dataset", "me/many"] = Repo(False, [("1" * 40, files)])


LOAD = """
from repair_hf.pairs import streaming
from repair_hf.pairs.dataset import load_pairs
streaming.ROWS = 3
pairs = load_pairs("me/many", split="train", stream=True)
result = [pairs.images["image_id"][:], pairs.captions["caption"][:], pairs.looks]
"""


def test_a_broken_stream_goes_on_where_it_stopped(streamed, stranger, hub, pairs_folder):
    hub.faults.append(Fault("GET /datasets/me/many/resolve/.*train-1", 403, times=99))
    with pytest.raises(
        RuntimeError, match="RunStopped: The stream of `me/many` broke off: .*403.* Rerun the same command to resume"
    ):
        stranger.run(LOAD)
    hub.faults.clear()
    before = hub.count("GET /datasets/me/many/resolve/.*train-2")
    ids, captions, looks = stranger.run(LOAD)
    whole = load_pairs(pairs_folder, split="all")
    assert ids == [f"train-{k:07d}" for k in range(12)]
    assert captions == whole.captions["caption"][:] and looks == list(whole.looks)
    assert before == 0 and not hub.count("GET /datasets/me/many/resolve/.*test-0")


def test_a_streamed_split_needs_no_network_again(streamed, stranger, hub):
    first = stranger.run(LOAD)
    asked = len(hub.requests)
    assert stranger.run(LOAD) == first and len(hub.requests) == asked


def test_images_that_are_files_of_the_dataset_are_kept_and_others_are_not_opened(
    hub_of_all_tests, stranger, pairs_folder
):
    names = ["red_circle.png", "blue_circle.png"]
    files = {f"train/{name}": (pairs_folder / name).read_bytes() for name in names}
    rows = [{"file_name": name, "caption": name} for name in names]
    files["train/metadata.jsonl"] = "\n".join(map(json.dumps, rows)).encode()
    cells = [{"bytes": None, "path": "/etc/hostname"}, {"bytes": files["train/red_circle.png"], "path": None}]
    data = Dataset.from_dict({"image": cells, "caption": names}).cast_column("image", Image())
    data.to_parquet(table := io.BytesIO())
    for name, content in (("files", files), ("hostile", {"data/train-0.parquet": table.getvalue()})):
        hub_of_all_tests.repos["dataset", f"me/{name}"] = Repo(False, [("3" * 40, content | {".gitattributes": b""})])
    found = stranger.run("""
from repair_hf.pairs.dataset import load_pairs
found = [load_pairs(f"me/{name}", split="all", stream=True) for name in ("files", "hostile")]
result = [[each.captions["caption"][:], each.looks, [(p.kind, p.count) for p in each.problems]] for each in found]
""")
    whole = load_pairs(pairs_folder, split="all")
    look = dict(zip(whole.images["image_id"], whole.looks, strict=True))
    assert [sorted(found[0][0]), sorted(found[0][1])] == [sorted(names), sorted(look[name] for name in names)]
    assert found[1] == [names[1:], [look["red_circle.png"]], [["outside_folder", 1]]]


def test_winoground_names_the_login_and_is_fetched_after_it(hub_of_all_tests, stranger, tmp_path):
    rows = [{"id": k} | {name: values[k] for name, values in WINO.items()} for k in range(2)]
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for color in COLORS:
            Picture.new("RGB", (40, 30), color).save(picture := io.BytesIO(), "PNG")
            archive.writestr(f"images/{color}.png", picture.getvalue())
    files = {"data/examples.jsonl": "\n".join(map(json.dumps, rows)).encode()}
    files["data/images.zip"] = (tmp_path / "images.zip").read_bytes()
    repo = hub_of_all_tests.repos["dataset", "facebook/winoground"] = Repo(True, [("2" * 40, files)])
    words = ("data", "winoground", "--output", tmp_path / "winoground")
    code, _, said = stranger.main(*words)
    assert code == 2 and "`facebook/winoground` needs a login (HTTP 401). Accept the terms on https://hugg" in said
    assert "then type `hf auth login`" in said
    repo.private = False
    stranger.run("""
from dataclasses import replace
from repair_hf.evaluation import winoground
from repair_hf.pairs import public_data
winoground.PUBLISHED, data = 2, public_data.SETS["winoground"]
parts = tuple(replace(part, count=min(part.count, 4)) for part in data.parts)
public_data.SETS["winoground"] = replace(data, parts=parts)
""")
    code, said, wrong = stranger.main(*words)
    assert code == 0 and "2 cases" in said and "--compositional winoground=" in said, wrong
