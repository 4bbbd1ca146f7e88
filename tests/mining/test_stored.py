"""`repair-hf mine --embeddings`: the failures of the model that made them; what does not fit is one line."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from datasets import Dataset

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.pairs.dataset import load_pairs


@pytest.fixture(scope="module")
def stored(clip_folder, pairs_folder, tmp_path_factory):
    """The vectors of all pairs and of one more image, shuffled, of any length, in double precision."""
    folder, pairs = tmp_path_factory.mktemp("stored"), load_pairs(pairs_folder, split="all")
    images, captions = DualEncoder.from_pretrained(clip_folder).embed_pairs(pairs)
    ids = {"images": [*pairs.images["image_id"], "another.png"], "captions": list(pairs.captions["caption_id"])}
    rng = np.random.default_rng(0)
    for kind, vectors in (("images", np.concatenate([images, images[:1]])), ("captions", captions)):
        order = rng.permutation(len(vectors))
        ids[kind] = [ids[kind][row] for row in order]
        np.save(folder / f"{kind}.npy", vectors[order].astype(np.float64) * rng.uniform(0.5, 9, (len(order), 1)))
    (folder / "ids.json").write_text(json.dumps(ids))
    return folder


@pytest.fixture
def flags(pairs_folder, tmp_path):
    return ["mine", "--pairs", str(pairs_folder), "--split", "all", "--output", str(tmp_path / "out")]


def mined(folder) -> list[dict]:
    return Dataset.from_parquet(str(folder / "failures.parquet"), cache_dir=str(folder / "cache")).to_list()


def test_the_failures_are_those_of_the_model(flags, stored, clip_folder, pairs_folder, tmp_path, capsys):
    assert main([*flags, "--embeddings", str(stored)]) == 0
    said = capsys.readouterr().out
    assert "--model ... --any-model" in said
    assert main([*flags[:-1], str(tmp_path / "other"), "--model", str(clip_folder)]) == 0
    found, wanted = mined(tmp_path / "out"), mined(tmp_path / "other")
    assert len(found) == len(wanted) and found == [pytest.approx(row, abs=1e-6) for row in wanted]
    repair = ["synthesize", "--pairs", str(pairs_folder), "--split", "all", "--failures", str(tmp_path / "out")]
    repair += ["--model", str(clip_folder), "--llm", "world/oracle", "--editor", "world", "--output", "x", "--dry-run"]
    assert main(repair) == 2  # made with other vectors, for all that is known
    assert f"were made with {stored}@" in capsys.readouterr().err


def save(kind: str, array: np.ndarray):
    return lambda folder: np.save(folder / f"{kind}.npy", array, allow_pickle=True)


def rename(old: str, new: str):
    return lambda folder: (folder / "ids.json").write_text((folder / "ids.json").read_text().replace(old, new))


def ids(text: str):
    return lambda folder: (folder / "ids.json").write_text(text)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "captions.npy").unlink(), "lacks captions.npy; it needs images.npy, captions.npy, "),
        (save("images", np.ones((13, 4, 2))), "images.npy holds float64 (13, 4, 2); give floats of shape (13, D)"),
        (save("images", np.ones((13, 8), int)), "images.npy holds int64 (13, 8); give floats"),
        (save("images", np.ones((13, 9))), "holds images of 9 and captions of 8 dimensions; embed"),
        (save("images", np.array([{}] * 13)), "images.npy cannot be read (Array can't be memory-mapped"),
        (save("captions", np.zeros((24, 8))), "24 of 24 vectors are zero or not finite, first for caption red_c"),
        (rename('"red_circle.png#1"', '"x"'), "lacks 1 of 24 captions of the pairs, first `red_circle.png#1`."),
        (rename('"another.png"', '"red_circle.png"'), "ids.json names 1 images twice; each id needs one row."),
        (ids('{"images": []}'), "ids.json is damaged (KeyError: \"it lacks ['captions']\"). Write a JSON object"),
        (ids('{"images": [], "captions": [1]}'), "ids.json holds captions that are no list of texts, got [1]."),
    ],
)
def test_what_does_not_fit_is_one_line(damage, said, flags, stored, tmp_path, capsys):
    folder = shutil.copytree(stored, tmp_path / "stored")
    damage(folder)
    assert main([*flags, "--embeddings", str(folder)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --model, or --embeddings in its place"),
        (["--model", "world/base", "--embeddings", "x"], "give --model, or --embeddings in its place"),
        (["--embeddings", "x", "--precision", "bf16"], "replaces the model, so leave out ['precision']"),
    ],
)
def test_model_or_embeddings(words, said, flags, capsys):
    assert main([*flags, *words]) == 2
    assert said in capsys.readouterr().err
