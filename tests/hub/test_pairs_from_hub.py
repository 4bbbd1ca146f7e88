"""Pairs of a dataset on the Hub, by configuration and revision."""

from __future__ import annotations

from datasets import Dataset, Image

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
api.create_repo("me/pairs-of-two-languages", repo_type="dataset")
for revision, english in (("v1", [0]), ("v2", [0, 1])):
    parts = {{"README.md": {README!r}.encode()}}
    for name, some in (("english", english), ("german", [2])):
        rows.select(some).to_parquet({str(tmp_path)!r} + "/part.parquet")
        parts[name + ".parquet"] = open({str(tmp_path)!r} + "/part.parquet", "rb").read()
    changes = [CommitOperationAdd(path, content) for path, content in parts.items()]
    api.create_commit("me/pairs-of-two-languages", changes, commit_message=revision, repo_type="dataset")
    api.create_tag("me/pairs-of-two-languages", tag=revision, repo_type="dataset")
""")
    loaded = stranger("""
from repair_hf.pairs.dataset import load_pairs
asked = ({"pairs_config": "english"}, {"pairs_config": "english", "pairs_revision": "v1"}, {"pairs_config": "german"})
result = [load_pairs("me/pairs-of-two-languages", split="all", **one).captions["caption"][:] for one in asked]
""")
    assert loaded == [names[:2], names[:1], names[2:]]
