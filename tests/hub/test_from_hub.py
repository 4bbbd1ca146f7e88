"""What is loaded from the Hub by its id; images that a dataset there names by a path or an address are not opened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Image
from hub_routes import Repo

from tests.hostile import damage

WAYS = ["/etc/hostname", "../secret.png", "file:///etc/hostname", "hf://datasets/a/b/x.png", "absent.png", "link.png"]
WAYS += [f"{kind}{damage.ADDRESS}" for kind in ("http", "https", "ftp", "s3", "zip")]
README = """---
configs:
- config_name: english
  data_files: english.parquet
- config_name: german
  data_files: german.parquet
---
"""
COMMANDS = {
    "show": "show {repo} --output {out}/sheet.html",
    "analyze": "analyze {repo} --output {out}",
    "train": "train --pairs {pairs} --split all --model {clip} --records {repo} --output {out} --use-cpu --dry-run",
}


def upload(hub, name: str, folder: Path) -> None:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.repos["dataset", name] = Repo(False, [(name.encode().hex().ljust(40, "0"), files)])


def nobody_was_asked(hub) -> bool:
    damage.LISTENER.setblocking(False)
    with pytest.raises(BlockingIOError):
        damage.LISTENER.accept()
    return not hub.count(".*(x|link|secret|absent).png")


@pytest.mark.parametrize("column", ["gt_image", pytest.param("edit_image", marks=pytest.mark.slow)])  # read alike
def test_records_on_the_hub_open_no_file(column, hub, client, illustrated_folder, pairs_folder, clip_folder, tmp_path):
    folder, repo = tmp_path / "records", f"you/{column}"
    shutil.copytree(illustrated_folder, folder)
    shutil.copy(pairs_folder / "red_circle.png", folder / "link.png")
    damage.cells(column, [{"bytes": None, "path": path} for path in WAYS])(folder)
    upload(hub, repo, folder)
    for command in COMMANDS.values():
        places = {"repo": repo, "out": tmp_path / "out", "pairs": pairs_folder, "clip": clip_folder}
        code, _, error = client.main(*(word.format(**places) for word in command.split()))
        assert code == 2 and f"{repo}: {len(WAYS)} images of `{column}` cannot be used" in error
        assert not (tmp_path / "out").exists()
    assert nobody_was_asked(hub)


def test_pairs_on_the_hub_open_no_file(hub, client, pairs_folder, tmp_path):
    good = sorted(pairs_folder.glob("*.png"))
    cells = [{"bytes": path.read_bytes(), "path": path.name} for path in good]
    cells += [{"bytes": None, "path": path} for path in WAYS]
    rows = {"image": cells, "caption": [f"caption {k}" for k in range(len(cells))]}
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "data" / "train-0.parquet")
    shutil.copy(good[0], tmp_path / "link.png")
    feature = "- name: image\n    dtype: image\n  - name: caption\n    dtype: string\n"
    (tmp_path / "README.md").write_text(f"---\ndataset_info:\n  features:\n  {feature}---\n")
    upload(hub, "you/pairs", tmp_path)
    code = "from repair_hf.pairs.dataset import load_pairs\npairs = load_pairs('you/pairs', split='all')\n"
    count, problems = client.run(f"{code}result = [len(pairs.images), [[p.kind, p.count] for p in pairs.problems]]")
    assert count == len(good) and sum(number for _, number in problems) == len(WAYS), problems
    assert {kind for kind, _ in problems} <= {"outside_folder", "missing_image"} and nobody_was_asked(hub)


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


@pytest.mark.slow
def test_hub_ids_are_taken_where_folders_are(client, sentence_folders, illustrated_folder, illustrated, tmp_path):
    pytest.importorskip("sentence_transformers")
    pairs = illustrated[0]
    pictures = [image.copy() for image in pairs.images["image"]]  # a copy has no file, so its bytes are stored
    rows = {"image_id": pairs.images["image_id"][:], "image": pictures}
    rows["caption"] = [
        [pairs.captions["caption"][row] for row in pairs.captions_of(k)] for k in range(len(pairs.images))
    ]
    (tmp_path / "pairs").mkdir()
    Dataset.from_dict(rows).cast_column("image", Image()).to_parquet(tmp_path / "pairs" / "train.parquet")
    client.run(f"""
from huggingface_hub import HfApi
api = HfApi()
for name, kind, folder in (
    ("me/embedder", "model", {str(sentence_folders("clip"))!r}),
    ("me/embedded", "dataset", {str(tmp_path / "pairs")!r}),
    ("me/embedded-repair", "dataset", {str(illustrated_folder)!r}),
):
    api.create_repo(name, repo_type=kind)
    api.upload_folder(repo_id=name, folder_path=folder, repo_type=kind)
""")
    pairs_words = ["--pairs", "me/embedded", "--split", "all"]
    code, out, err = client.main("mine", *pairs_words, "--model", "me/embedder", "--output", tmp_path / "failures")
    assert code == 0, err
    words = ["--records", "me/embedded-repair", "--output", tmp_path / "triplets"]
    code, out, err = client.main("export", "triplets", *pairs_words[:2], *words)
    assert code == 0, err
    assert "48 text_to_image, 48 image_to_text" in out
    code, out, err = client.main("train", *pairs_words, "--model", "me/embedder", "--output", tmp_path / "tuned")
    assert (
        code == 2 and "`me/embedder` is a sentence-transformers model." in err and "`repair-hf export triplets`" in err
    )
