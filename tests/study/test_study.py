"""A tiny study end to end, twice; its table elsewhere; what makes a kept row invalid; every arm's mask."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from ledgers import ledger_in
from study_runs import stamps, study

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.evaluate import evaluate
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_records
from repair_hf.study.cells import fill_for
from repair_hf.study.options import StudyEditorOptions
from repair_hf.study.products import UNSELECTED, Products, has_edit, part_of
from repair_hf.study.run import run_study
from repair_hf.training.config import RepairConfig
from tests.study.made_rows import setting

METHODS = ["laclip", "repair-i2t", "repair"]
TINY = ["--size", "tiny", "--seeds", "1", "--methods", *METHODS]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[Path, list[str], dict[Path, int]]:
    """The folder of a tiny study, what each of two runs printed, and when its files were written after the first."""
    folder = tmp_path_factory.mktemp("study")
    shown = [study(*TINY, "--output", str(folder))]
    before = stamps(folder)
    shown.append(study(*TINY, "--output", str(folder)))
    return folder, shown, before


def rows_of(file: Path) -> pd.DataFrame:
    return pq.read_table(file).to_pandas().set_index("method")


def test_a_study_has_a_row_of_each_training_and_tables(tiny):
    folder, shown, _ = tiny
    found = rows_of(folder / "results.parquet")
    assert set(found.index) == {"base", "vanilla", *METHODS} and not list((folder / "cells").glob("*"))
    page = (folder / "study.md").read_text()
    assert "The world is a toy" in page and all(f"| {name} |" in page for name in found.index)
    for name in ("summary", "retrieval", "near_misses", "gains", "cost"):
        assert len(pd.read_csv(folder / f"{name}.csv")) > 1, name
    test = load_pairs(folder / "tiny" / "world", split="test")
    expected = evaluate("world/base", test, resamples=1)["base"]
    table = pd.read_csv(folder / "retrieval.csv").set_index("method")
    for name in ("i2t_R@1", "t2i_R@5", "t2i_MRR"):
        assert table.loc["base", name] == pytest.approx(expected[name])
    assert table.loc["base", "t2i_truth"] == 0
    costs = found.loc["laclip"]
    assert (costs["llm_calls"], costs["images"], costs["dollars"]) == (160, 0, 0)
    made = json.loads((folder / "tiny" / "laclip" / "summary.json").read_text())
    assert (
        made["samples"] + sum(made["dropped"].values()) == made["tried"] == 160 and costs["samples"] == made["samples"]
    )
    assert found.loc["repair", "samples"] == has_edit(load_records(str(folder / "tiny" / "repair"))).sum()
    assert shown[0].count("cell    tiny--repair--") == 1 and "In one table" in shown[0]


def test_what_two_methods_ask_is_paid_once(tiny):
    """`repair-i2t` asks a part of what `repair` asks; both pay from the study's one ledger."""
    with ledger_in(tiny[0]) as ledger:
        runs = dict(ledger.database.execute("SELECT name, calls FROM run").fetchall())
    assert runs["tiny/repair-i2t"] > 0 and runs["tiny/repair"] > 0
    calls = rows_of(tiny[0] / "results.parquet")["llm_calls"]
    assert runs["tiny/repair"] < calls["repair"] == pytest.approx(runs["tiny/repair"] + calls["repair-i2t"], rel=0.1)


def test_a_second_run_makes_nothing_again_and_says_the_same_also_from_python(tiny):
    folder, shown, before = tiny
    assert shown[0].partition("In one table")[2] == shown[1].partition("In one table")[2] != ""
    tables = {each.name: each.table for each in run_study(output=folder, size="tiny", seeds=1, methods=METHODS)}
    assert tables["retrieval"]["method"].tolist() == pd.read_csv(folder / "retrieval.csv")["method"].tolist()
    assert len(before) > 10 and stamps(folder) == before


def test_the_table_needs_the_file_of_results_alone_and_no_key(tiny, tmp_path, capsys):
    kept = ["--results", str(tiny[0] / "results.parquet"), "--table", "--output", str(tmp_path / "table")]
    study(*TINY, *kept)
    assert (tmp_path / "table" / "study.md").read_text() == (tiny[0] / "study.md").read_text()
    assert not (tmp_path / "table" / "tiny").exists()
    more = study(*TINY, *kept, "--methods", "laclip", "negclip")
    assert "not trained yet" in more and "tiny--negclip--" in more
    for words in (["--llm", "openai/gpt-4o"], ["--batch-size", "8"], ["--model", "world/narrow"]):
        assert main(["study", *TINY, *kept, *words]) == 2
        assert "with other options" in capsys.readouterr().err


def test_rows_from_other_data_are_an_error(tiny, tmp_path, capsys):
    """The same captions in another order are other data."""
    captions = shutil.copytree(tiny[0] / "tiny" / "world", tmp_path / "tiny" / "world") / "captions.jsonl"
    captions.write_text("\n".join(reversed(captions.read_text().splitlines())) + "\n")
    assert main(["study", *TINY, "--results", str(tiny[0] / "results.parquet"), "--output", str(tmp_path)]) == 2
    assert "from other data or records" in capsys.readouterr().err


def test_every_arm_masks_what_is_known_to_match(tiny):
    """Two captions are worded alike: each fits the other's image, for plain training, repair and baselines alike."""
    found = setting(output=str(tiny[0]))
    products, pairs = Products(found), found.pairs
    captions = pairs.captions["caption"][:]
    one, other = next(
        (a, b)
        for a in range(len(captions))
        for b in range(a)
        if captions[a] == captions[b] and pairs.caption_image[a] != pairs.caption_image[b]
    )
    for name in ("vanilla", "simclr", "laclip", "repair-i2t", "repair", "wo-repair", "hard-neg-only"):
        method = found.methods[name]
        made = products.of(method)
        config = RepairConfig("x", fill=method.fill or None, loss=method.loss)
        truth = fill_for(method, made, found, config).truth
        image = torch.tensor([pairs.caption_image[other]])
        assert truth.known(image, torch.tensor([one])).item(), name


def test_images_that_became_no_sample_can_go_once_the_samples_are_finished(tmp_path):
    found = setting(output=str(tmp_path), editor=StudyEditorOptions(keep_candidates=False))
    method = found.methods["coco-cf"]
    product = Products(found).of(method)["negative"]
    cells = product.data.with_format("arrow")[:]["edit_image"].to_pylist()
    files = {str(path) for path in tmp_path.glob("candidates/*/*.png")}
    assert files == {cell["path"] for cell in cells} and 0 < len(files) < product.images
    left = tmp_path / "candidates" / "left.png"  # as if it had been killed before the last one
    left.write_bytes(b"-")
    (tmp_path / "tiny" / "coco-cf" / UNSELECTED).write_text(json.dumps([str(left), str(tmp_path / "gone.png")]))
    again = Products(found).of(method)["negative"]
    assert not left.exists() and again.data.to_list() == product.data.to_list()
    assert not list(tmp_path.rglob(UNSELECTED))


def test_half_of_the_records_is_half_of_the_edits_and_in_each_larger_part(tiny):
    records = load_records(str(tiny[0] / "tiny" / "repair"))
    parts = [part_of(records, share)["record_id"] for share in (0.25, 0.5, 1.0)]
    count = has_edit(records).sum()
    assert [len(part) for part in parts[:2]] == [round(count / 4), round(count / 2)]
    assert set(parts[0]) < set(parts[1]) < set(parts[2])


def test_what_was_chosen_is_measured_with_the_weights_that_won(tmp_path):
    """One training for both splits; `keep_models` keeps what is reported."""
    words = ["--size", "tiny", "--seeds", "1", "--methods", "vanilla", "--tune", "--learning-rates", "1e-4", "2e-4"]
    study(*words, "--keep-models", "--output", str(tmp_path))
    found = pq.read_table(tmp_path / "results.parquet").to_pandas().query("method == 'vanilla'")
    assert len(found.query("split == 'validation'")) == 4
    (reported,) = found.query("split == 'test'").to_dict("records")
    twin = found.query(f"split == 'validation' and seed == 0 and learning_rate == {reported['learning_rate']}")
    assert twin["seconds"].item() == reported["seconds"] > 0
    (kept,) = (tmp_path / "cells").glob("*")
    assert DualEncoder.from_pretrained(kept) and f"lr{reported['learning_rate']:g}--" in kept.name
    assert "tuning.csv" in {path.name for path in tmp_path.iterdir()}


def test_several_datasets_share_one_ledger_and_one_table(tmp_path):
    sets = json.dumps({"first": {"size": "tiny"}, "second": {"size": "tiny", "max_captions": 2}})
    words = ["--datasets", sets, "--seeds", "1", "--methods", "laclip", "--output", str(tmp_path)]
    shown = study(*words, "--dry-run")
    assert "first, 32 images" in shown and shown.rstrip().endswith(
        "320 answers by world/oracle $0.00 and the time of your machine."
    )
    study(*words)
    table = pd.read_csv(tmp_path / "summary.csv")["method"].tolist()
    for data in ("first", "second"):
        assert {f"{name} on {data}" for name in ("base", "vanilla", "laclip")} <= set(table)
    assert len(list(tmp_path.glob("*/ledger.sqlite"))) == 0 and (tmp_path / "ledger.sqlite").is_file()


def test_a_method_without_data_is_left_out_and_the_rest_goes_on(tmp_path):
    words = ["--size", "tiny", "--seeds", "1", "--llm", "world/oracle?rejects_good=1", "--output", str(tmp_path)]
    shown = study(*words, "--methods", "repair-i2t", "laclip")
    assert "left out repair-i2t on tiny: " in shown and "fp_too_similar" in shown
    page = (tmp_path / "study.md").read_text()
    assert "## Left out" in page and "| laclip |" in page and "| repair-i2t |" not in page


def test_methods_are_compared_on_records_that_exist(tiny, tmp_path, monkeypatch, capsys):
    """On somebody's own pairs, by README's command: no LLM, no editor, and nothing is mined."""
    monkeypatch.chdir(tmp_path)
    build = "world build --output made --train 32 --validation 16 --test 24"
    assert main(build.split()) == 0
    Path("made/world.json").unlink()
    base = DualEncoder.from_pretrained("world/base")
    base.model.save_pretrained("base")
    base.preprocessor.processor.save_pretrained("base")
    records = str(tiny[0] / "tiny" / "repair")
    words = f"--pairs made --model base --records {records} --test-split validation --output compare"
    more = "--batch-size 16 --epochs 0.2 --seeds 1"
    shown = study(*words.split(), *more.split(), "--dry-run")
    assert ["all", "together", "0", "0"] in [line.split()[:4] for line in shown.splitlines()]
    assert "Whole price: $0.00." in shown
    assert "A step of plain training takes" in shown and not Path("compare").exists()
    assert main(["study", *words.replace(records, "nowhere").split(), "--dry-run"]) == 2
    assert "nowhere" in capsys.readouterr().err
    study(*words.split(), *more.split())
    found = rows_of(Path("compare/results.parquet"))
    assert set(found.index) == {"base", "vanilla", "repair", "repair-paper"} and set(found["split"]) == {"validation"}
    assert found.loc["repair", "llm_calls"] > found.loc["repair", "samples"] > 0
    assert {path.name for path in Path("compare").iterdir()}.isdisjoint({"ledger.sqlite", "candidates"})


ENDED = ["--methods", "ended", "--swaps", '{"ended": {"editor": "openai/gpt-image-1"}}']


@pytest.mark.parametrize("models", [ENDED, ["--methods", "repair", "--editor", "openai/gpt-image-1"]])
def test_hosted_editors_are_checked_before_anything_is_made(models, tmp_path, capsys, monkeypatch):
    """A provider without a key: that of the study, and that of a swap."""
    words = ["study", "--size", "tiny", *models, "--output", str(tmp_path / "out")]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for more in ([], ["--dry-run"]):
        assert main([*words, *more]) == 2 and "OPENAI_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert main([*words, "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()


def test_methods_without_means_are_named(clip_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main("world build --output mine --train 4 --validation 2 --test 2".split()) == 0
    Path("mine/world.json").unlink()  # somebody's own pictures then
    words = ["--pairs", "mine", "--model", str(clip_folder), "--spacy-model", "world", "--dry-run"]
    shown = study(*words, "--batch-size", "2")
    assert "left out: sugarcrepe (needs `llm`), laclip (needs `llm`), stablerep (needs `editor`)" in shown
    assert "\n negclip " in shown and "\n laclip" not in shown
    for name, says in (("laclip", "needs `llm`"), ("negclop", "Did you mean `negclip` for")):
        assert main(["study", *words, "--methods", name]) == 2 and says in capsys.readouterr().err


@pytest.mark.slow
def test_every_method_runs_end_to_end(tmp_path):
    words = ["--size", "tiny", "--seeds", "1", "--budgets", "all", "samples=20", "--output", str(tmp_path)]
    assert "left out" not in study(*words)
    names = study("--list").split()
    found = pq.read_table(tmp_path / "results.parquet").to_pandas()
    assert set(names) == set(found["method"]) - {"base"}
    halves = found[found["budget"] == "samples=20"]
    assert set(halves["method"]) == set(names) - {"vanilla", "simclr"}
    assert np.allclose(halves["share"] * halves["samples"], 20) or (halves["share"] <= 1).all()
