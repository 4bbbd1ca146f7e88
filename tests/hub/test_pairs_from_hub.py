"""Pairs of a dataset on the Hub, by configuration and revision."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
from benchmark_files import COLORS, WINO
from datasets import Dataset, Image
from hub_routes import Repo
from PIL import Image as Picture

from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError

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
    for options in ({"pairs_config": "english"}, {"pairs_revision": "v1"}):
        with pytest.raises(UserError, match="only for the Hub"):
            load_pairs(tmp_path, **options)


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
