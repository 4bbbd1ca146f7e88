"""Models of sentence-transformers, and records to export, by their ids on the Hub."""

from __future__ import annotations

import pytest
from datasets import Dataset, Image

pytest.importorskip("sentence_transformers")


@pytest.mark.slow
def test_hub_ids_are_taken_where_folders_are(client, sentence_folders, illustrated_folder, illustrated, tmp_path):
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
