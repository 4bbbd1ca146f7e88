"""`repair-hf evaluate` from the command line: its numbers are the library's, on the split that is asked for."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModel

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.comparison import short_names
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.corpus import build_world


@pytest.fixture
def flags(pairs_folder, clip_folder, tmp_path) -> list[str]:
    return f"evaluate --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'}".split()


def test_writes_what_the_library_measures_once(flags, pairs_folder, clip_folder, tmp_path, capsys):
    assert main(flags) == 0
    pairs = load_pairs(pairs_folder, split="all")
    expected = evaluate_retrieval(*DualEncoder.from_pretrained(clip_folder).embed_pairs(pairs), pairs.caption_image)
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert {name for name in expected if name.startswith(("i2t", "t2i"))} == set(found["intervals"])
    assert all(low <= found[name] <= high for name, (low, high) in found["intervals"].items())
    assert (expected["n_images"], expected["n_texts"]) == (12, 24)
    printed = capsys.readouterr().out
    assert printed.split()[:2] == ["random", clip_folder.name]
    footer = printed[printed.index("In brackets") :].replace("\n", " ")
    assert "12 images, 24 texts" in footer and "split all" in footer and pairs.fingerprint in footer
    assert found["model_digest"] in footer and found["repair_hf"] in footer and "(not a standard benchmark)" in footer
    file = tmp_path / "out" / "metrics.json"
    before = file.stat().st_mtime_ns
    assert main(flags) == 0  # nothing is measured again
    assert (file.stat().st_mtime_ns, capsys.readouterr().out) == (before, printed)


def test_ranks_the_test_split_by_default(flags, pairs_folder, tmp_path):
    del flags[3:5]
    assert main(flags) == 0
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert found["n_images"] == len(load_pairs(pairs_folder, split="test").images) < 12


def test_two_models_are_compared_query_by_query(flags, siglip_folder, clip_folder, tmp_path, capsys):
    """The counts and differences are those of the two models' own ranks."""
    flags.insert(flags.index("--output"), str(siglip_folder))
    assert main([*flags, "--resamples", "50"]) == 0
    out = tmp_path / "out"
    written = json.loads((out / "differences.json").read_text())
    names = [Path(folder).name for folder in (clip_folder, siglip_folder)]
    ranks = [pq.read_table(out / name / "ranks.parquet").to_pandas() for name in names]
    assert written["reference"] == names[0] and list(written["differences"]) == names[1:]
    for way in ("i2t", "t2i"):
        before, now = (table[table["direction"] == way]["gt_rank"].to_numpy() for table in ranks)
        gain = written["differences"][names[1]][f"{way}_R@1"]
        assert gain["difference"] == pytest.approx((now == 1).mean() - (before == 1).mean())
        assert gain["low"] <= gain["difference"] <= gain["high"]
        counts = written["queries"][names[1]][way]
        assert counts["repaired"] == ((before > 1) & (now == 1)).sum()
        assert counts["broken"] == ((before == 1) & (now > 1)).sum()
        assert sum(counts.values()) == len(before)
    printed = capsys.readouterr().out
    assert f"change from {names[0]}" in printed
    random = next(line.split() for line in printed.splitlines() if line.split()[:1] == ["random"])
    assert [float(share) for share in random[1:]] == pytest.approx([100 * 2 / 24, 100 / 12], abs=0.051)


@pytest.mark.parametrize(
    "models, complaint",
    [
        (["x/a", "y/a", "x--a"], "short names are equal"),
        (["runs/a", "runs/a/"], "short names are equal"),
        (["runs/a", "runs/a"], "names runs/a twice"),
    ],
)
def test_models_of_one_name_are_refused(models, complaint):
    with pytest.raises(UserError, match=complaint):
        short_names(models)


def test_a_model_is_not_called_what_the_tables_call_a_random_retriever(flags, clip_folder, tmp_path, capsys):
    shutil.copytree(clip_folder, tmp_path / "random")
    flags[flags.index(str(clip_folder))] = str(tmp_path / "random")
    assert main(flags) == 2
    assert "is `random`, which the tables use" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_image_without_an_embedding_is_named_by_its_id(flags, clip_folder, pairs_folder, tmp_path, capsys):
    model = AutoModel.from_pretrained(clip_folder)
    with torch.no_grad():
        model.visual_projection.weight.zero_()
    broken = shutil.copytree(clip_folder, tmp_path / "broken")
    model.save_pretrained(broken)
    flags[flags.index(str(clip_folder))] = str(broken)
    assert main(flags) == 2
    first = load_pairs(pairs_folder, split="all").images[0]["image_id"]
    assert re.search(rf"12 of 12 vectors .*zero or not finite, first for image {first}\.", capsys.readouterr().err)
    assert not (tmp_path / "out" / "metrics.json").exists() and not (tmp_path / "out" / "ranks.parquet").exists()


WATCH = """
import os, sys

def note(event, names):
    if event == "os.rename":
        with open(os.environ["WATCHED"], "a") as file:
            file.write(os.path.basename(os.fsdecode(names[1])) + "\\n")

if os.environ.get("RANK") == "1":
    open(os.environ["WATCHED"], "a").close()
    sys.addaudithook(note)
"""


@pytest.mark.slow
def test_two_processes_write_and_print_what_one_does(tmp_path, clip_folder):
    """Two models with a compositional set, under `accelerate launch`; the second time nothing is measured.

    Each process has one thread: several add up in another order, and the last bit decides close ranks.
    """
    world = build_world(tmp_path / "world", splits={"test": 20})
    pairs, order = load_pairs(world, split="test"), tmp_path / "order.jsonl"
    rows = [
        {"caption_id": row["caption_id"], "seed": 1, "captions": [row["caption"], row["caption"][::-1]]}
        | {"image_id": pairs.images[int(pairs.caption_image[place])]["image_id"]}
        for place, row in enumerate(pairs.captions)
    ]
    order.write_text("\n".join(map(json.dumps, rows)))
    words = f"--pairs {world} --compositional order={order} --resamples 50 --batch-size 3".split()
    words += ["--model", "world/base", str(clip_folder), "--output"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    alone = [sys.executable, "-m", "repair_hf", "evaluate", *words, str(tmp_path / "one")]
    expected = subprocess.run(alone, env=one_thread, stdout=subprocess.PIPE, text=True, check=True).stdout
    recipe = Path(__file__).parents[2] / "recipes" / "accelerate" / "cpu-2.yaml"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(recipe), "-m", "repair_hf"]
    (tmp_path / "sitecustomize.py").write_text(WATCH)  # notes what the second process writes whole
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    watching = {"PYTHONPATH": paths, "WATCHED": str(tmp_path / "renamed")}
    command = [*launcher, "evaluate", *words, str(tmp_path / "two")]
    for _ in range(2):
        done = subprocess.run(command, env=one_thread | watching, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.replace("/two", "/one") == expected, done.stderr[-3000:]
    assert (tmp_path / "renamed").read_text() == ""  # it was watched, and wrote nothing
    one, two = (
        {path.relative_to(tmp_path / name): path for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("one", "two")
    )
    assert set(one) == set(two)
    for name, path in one.items():
        if name.suffix == ".parquet":
            assert pq.read_table(path).equals(pq.read_table(two[name]))
        elif name.name in ("metrics.json", "differences.json", "summary.json"):
            assert json.loads(path.read_text()) == json.loads(two[name].read_text())
