"""A tiny study end to end; its table elsewhere; what makes a kept row invalid; every method's mask."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from ledgers import ledger_in
from study_runs import stamps, study

from repair_hf.cli.main import main
from repair_hf.encoder.blend import blend
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.contrast import load_contrast
from repair_hf.evaluation.judging import evaluate_compositional
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import NoRecords, load_records
from repair_hf.study.cells import config_of, fill_for
from repair_hf.study.methods import METHODS, REPAIR, WO_FAILURE
from repair_hf.study.options import SIZES, StudyLLMOptions
from repair_hf.study.products import Products, has_edit
from repair_hf.study.results import BASE, Cell
from repair_hf.study.run import run_study
from tests.study.made_rows import setting

# A baseline, and records in both fills, one with a loss of the study's own, on a part of its records. Plain training
# is always added; the slow trial trains all methods.
WANTED, IN_PART = "coco-cf repair-batch".split(), "hard-neg-only"
IMAGES = 13  # to train on, with five captions each, of which two of different images are worded alike
TINY = ["--size", "tiny", "--seeds", "1", "--methods", *WANTED]


@pytest.fixture(scope="module", autouse=True)
def _size() -> Iterator[None]:
    """A world of less than half the tiny size, so that a cell takes a moment."""
    with pytest.MonkeyPatch.context() as patch:
        world = {"train": IMAGES, "validation": 4, "test": 6}
        patch.setitem(SIZES, "tiny", replace(SIZES["tiny"], world=world, kept=3, batch_size=6))
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a tiny study, and what the command printed."""
    folder = tmp_path_factory.mktemp("study")
    budgets = json.dumps({"samples=5": [IN_PART]})
    return folder, study(*TINY, "--keep-models", "--budgets", budgets, "--output", str(folder))


@pytest.fixture(scope="module")
def products(tiny) -> Products:
    return Products(setting(output=str(tiny[0])))


def rows_of(file: Path) -> pd.DataFrame:
    return pq.read_table(file).to_pandas()


def test_each_training_takes_two_steps_and_a_study_has_its_rows_and_tables(tiny):
    """Every training has a row of each blend."""
    folder, shown = tiny
    found = rows_of(folder / "results.parquet")
    assert "left out" not in shown and set(found["method"]) == {BASE, "plain", *WANTED, IN_PART}
    assert (found[found["method"] != BASE]["steps"] == 2).all()
    parts = found.query("budget == 'samples=5' and blend == 1")
    assert parts["method"].tolist() == [IN_PART] and parts["samples"].tolist() == [5]
    assert (parts["edits_trained"] > 0).all()
    whole = found.query("budget == 'all'")
    assert len(found["code"].unique()) == 1 and set(found["split"]) == {"test"}
    page = (folder / "study.md").read_text()
    assert "The world is a toy" in page and all(f"| {name} |" in page for name in (BASE, "plain", *WANTED))
    for name in ("summary", "methods", "blends", "pairs"):
        assert len(pd.read_csv(folder / f"{name}.csv")) > 1, name
    costs = whole[whole["method"] == "coco-cf"].iloc[0]
    maker = METHODS["coco-cf"].data["negative"]
    assert (costs["llm_calls"], costs["images"]) == (maker.answers * 5 * IMAGES, maker.edits * 5 * IMAGES)
    made = json.loads((folder / "tiny" / "coco-cf" / "summary.json").read_text())
    assert made["samples"] + sum(made["dropped"].values()) == made["tried"] == 5 * IMAGES
    assert costs["samples"] == made["samples"]
    repair = whole[whole["method"] == "repair-batch"].iloc[0]
    assert repair["samples"] == has_edit(load_records(str(folder / "tiny" / "repair"))).sum()
    plain = whole[whole["method"] == "plain"].iloc[0]
    assert 0 < repair["edits_trained"] < 1 and repair["items_per_step"] > plain["items_per_step"]
    assert all(shown.count(f"cell    tiny--{name}--") == 1 for name in (*WANTED, IN_PART)) and "Does it help?" in shown
    assert f"{len(WANTED) + 2} trainings, at most" in shown and "core-hours" in shown


def test_a_row_measures_what_evaluate_does_and_a_blend_what_a_blended_model_does(tiny):
    folder, _ = tiny
    found = rows_of(folder / "results.parquet").query("budget == 'all'").set_index(["method", "blend"])
    (trained,) = (folder / "cells").glob("*--repair-batch--*--all--seed0")
    base, tuned = DualEncoder.from_pretrained("world/base"), DualEncoder.from_pretrained(trained)
    blend(tuned.model, base.model.state_dict(), 0.6)
    test, kept = (load_pairs(folder / "tiny" / name, split="test") for name in ("world", "kept"))
    cases = load_contrast(str(folder / "tiny" / "contrast-test"))
    for encoder, row in ((base, found.loc[(BASE, 1.0)]), (tuned, found.loc[("repair-batch", 0.6)])):
        for kind, pairs in (("", test), ("kept_", kept)):
            expected = evaluate_retrieval(*encoder.embed_pairs(pairs), pairs.caption_image)
            for way in ("i2t", "t2i"):
                assert (row[f"{kind}{way}_ranks"] == 1).mean() == pytest.approx(expected[f"{way}_R@1"])
        judged = evaluate_compositional(encoder, [cases], "x").to_pandas()
        for measure in ("caption", "picture"):
            assert row[f"contrast_{measure}"].tolist() == judged[judged["measure"] == measure]["correct"].tolist()
    images = test.images["image_id"][:]
    assert [images[place] for place in found.loc[(BASE, 1.0), "contrast_image"]] == cases.picture_ids


def test_what_two_methods_ask_is_paid_once(tiny, products):
    """`repair-i2t` asks a part of what `repair` has asked; both pay from the study's one ledger."""
    (asked,) = products.of(METHODS["repair-i2t"]).values()
    with ledger_in(tiny[0]) as ledger:
        runs = dict(ledger.database.execute("SELECT run, COUNT(*) FROM call GROUP BY run").fetchall())
    calls = rows_of(tiny[0] / "results.parquet").query("budget == 'all'").groupby("method")["llm_calls"].first()
    assert "tiny/repair-i2t" not in runs
    assert runs["tiny/repair"] == pytest.approx(calls["repair-batch"], rel=0.1) and asked.llm_calls > 0


def test_a_second_run_makes_nothing_again_and_says_the_same_also_from_python(tiny):
    folder, before = tiny[0], stamps(tiny[0])
    options = {"size": "tiny", "seeds": 1, "methods": WANTED, "keep_models": True}
    tables = {each.name: each.table for each in run_study(output=folder, **options)}
    assert tables["summary"]["method"].tolist() == pd.read_csv(folder / "summary.csv")["method"].tolist()
    assert len(before) > 10 and stamps(folder) == before


def test_tables_need_the_rows_alone(tiny, tmp_path):
    file = str(tiny[0] / "results.parquet")
    study("--table", file, "--output", str(tmp_path))
    assert (tmp_path / "study.md").read_text() == (tiny[0] / "study.md").read_text()
    assert not list(tmp_path.glob("*/"))


def test_rows_of_other_options_or_code_are_an_error(tiny, capsys, monkeypatch):
    assert main(["study", *TINY, "--output", str(tiny[0]), "--max-queries", "5"]) == 2
    assert "has rows of other options, data or code" in capsys.readouterr().err
    monkeypatch.setattr("repair_hf.study.setting.code_digest", lambda: "other")
    assert main(["study", *TINY, "--output", str(tiny[0])]) == 2
    assert "code (" in capsys.readouterr().err


def test_every_method_masks_what_is_known_to_match(products):
    """Two captions are worded alike: each fits the other's image, for plain training, repair and baselines alike."""
    found, pairs = products.setting, products.setting.pairs
    captions = pairs.captions["caption"][:]
    one, other = next(
        (a, b)
        for a in range(len(captions))
        for b in range(a)
        if captions[a] == captions[b] and pairs.caption_image[a] != pairs.caption_image[b]
    )
    for name in ("plain", "simclr", "coco-cf", "repair-i2t", "repair-batch", "wo-repair", "hard-neg-only"):
        method = METHODS[name]
        config = config_of(method, found, Path("x"), Cell("tiny", name, "test", 0, 1e-4, 1.0))
        truth = fill_for(method, products.of(method), found, config).truth
        image = torch.tensor([pairs.caption_image[other]])
        assert truth.known(image, torch.tensor([one])).item(), name


def test_without_failures_there_are_as_many_samples_and_a_budget_takes_its_share(tiny, products):
    whole, random = (products._product(source, True) for source in (REPAIR, WO_FAILURE))
    folder = tiny[0] / "tiny" / "wo-failure"
    assert has_edit(load_records(str(folder))).sum() > random.samples == whole.samples == len(random.data)
    (part,) = products.of(METHODS["wo-failure"], "samples=5").values()
    assert part.samples == len(part.data) == 5 and part.llm_calls < random.llm_calls


@pytest.mark.slow
def test_what_was_chosen_is_measured_with_the_weights_that_won(tmp_path):
    """One training for both splits; `keep_models` keeps what is reported."""
    words = ["--size", "tiny", "--seeds", "1", "--methods", "plain", "--learning-rates", "1e-4", "2e-4"]
    study(*words, "--keep-models", "--output", str(tmp_path))
    found = rows_of(tmp_path / "results.parquet").query("method == 'plain' and blend == 1")
    assert len(found.query("split == 'validation'")) == 4
    (reported,) = found.query("split == 'test'").to_dict("records")
    chosen = f"learning_rate == {reported['learning_rate']} and epochs == {reported['epochs']}"
    twin = found.query(f"split == 'validation' and {chosen}")
    assert twin["seconds"].item() == reported["seconds"] > 0
    (kept,) = (tmp_path / "cells").glob("*")
    assert DualEncoder.from_pretrained(kept) and f"lr{reported['learning_rate']:g}--" in kept.name


def test_failures_of_which_none_becomes_a_record_are_no_data(tiny):
    llm = StudyLLMOptions("world/oracle?rejects_good=1")
    with pytest.raises(NoRecords, match="repair-t2i has no record: .* were dropped"):
        Products(setting(output=str(tiny[0]), llm=llm)).of(METHODS["repair-t2i"])


def test_methods_are_compared_on_records_that_exist(tiny, tmp_path, monkeypatch, capsys):
    """On somebody's own pairs, by the recipe's command: no LLM, no editor, and nothing is mined.

    A method whose budget counts calls is left out, as nobody knows what these records cost; the rest goes on.
    """
    monkeypatch.chdir(tmp_path)
    build = f"world build --output made --train {IMAGES} --validation 4 --test 6"
    assert main(build.split()) == 0
    Path("made/versions.json").unlink()
    base = DualEncoder.from_pretrained("world/base")
    base.model.save_pretrained("base")
    base.preprocessor.processor.save_pretrained("base")
    records = str(tiny[0] / "tiny" / "repair")
    words = f"--pairs made --model base --records {records} --test-split validation --output compare"
    more = "--batch-size 10 --epochs 0.2 --seeds 1 --methods repair-batch"
    more = [*more.split(), "--budgets", '{"calls=5": ["repair-paper"]}']
    shown = study(*words.split(), *more, "--dry-run")
    assert ["repair-batch", "0", "0"] in [line.split() for line in shown.splitlines()]
    assert "3 trainings, at most" in shown and not Path("compare").exists()
    assert main(["study", *words.replace(records, "nowhere").split(), *more]) == 2
    assert "nowhere" in capsys.readouterr().err
    shown = study(*words.split(), *more)
    assert "left out repair-paper: the budget calls=5 needs what the records cost" in shown
    page = Path("compare/study.md").read_text()
    assert "## Left out" in page and "| plain |" in page and "| repair-paper" not in page
    found = rows_of(Path("compare/results.parquet"))
    assert set(found["method"]) == {BASE, "plain", "repair-batch"}
    assert found["kept_i2t_ranks"].isna().all() and found["contrast_caption"].isna().all()
    assert {path.name for path in Path("compare").iterdir()}.isdisjoint({"ledger.sqlite", "candidates"})
