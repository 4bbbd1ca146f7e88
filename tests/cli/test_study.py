"""`repair-hf study`: a few methods end to end, twice; all methods; several data sets; its errors."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from study_runs import PER_SAMPLE, stamps, study

from repair_hf.cli.main import main
from repair_hf.cli.study import _part_of_limits
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.options import StudyLLMOptions
from repair_hf.toyworld.parsing import build_parser

TINY = ["--size", "tiny", "--seeds", "1", "--methods", "laclip", "repair-i2t"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[Path, list[str], dict[Path, int]]:
    """The folder of a tiny study, what each of two runs printed, and when its files were written after the first."""
    folder = tmp_path_factory.mktemp("study")
    words = [*TINY, "--output", str(folder), "--cells", str(folder / "kept")]
    shown = [study(*words)]
    before = stamps(folder)
    shown.append(study(*words))
    return folder, shown, before


def test_list_prints_every_name_on_a_line():
    assert study("--list").split("\n")[:-1] == list(load_methods())


def test_a_tiny_study_has_cells_tables_and_pictures(tiny):
    folder, shown, _ = tiny
    text = (folder / "study.md").read_text()
    for name in ("base", "vanilla", "laclip", "repair-i2t"):
        assert f"| {name} " in text
    assert (
        "The world is a toy" in text
        and "measured on 24 images: too few" in text
        and "points of R@1 over the base" in text
    )
    table = pd.read_csv(folder / "scores.csv").set_index("method")
    for cell in (folder / "cells").iterdir():
        found = json.loads((cell / "summary.json").read_text())
        assert found["metrics"]["n_images"] == 24 and (cell / "ranks.parquet").is_file()
        assert not (cell / "retriever").exists()  # weights are not kept
        method = cell.name.partition("--")[0]
        if method in ("laclip", "repair-i2t", "base"):
            assert table.loc[method, "i2t_MRR"] == pytest.approx(found["metrics"]["i2t_MRR"])
    product = json.loads((folder / "products" / "laclip" / "summary.json").read_text())
    assert product["samples"] + sum(product["dropped"].values()) == product["tried"] == 160
    calls = pd.read_csv(folder / "overhead.csv").set_index("method")
    for name in ("vanilla", "laclip", "repair-i2t"):
        assert tuple(calls.loc[name, ["llm_per_sample", "images_per_sample"]]) == PER_SAMPLE[name]
    reach = pd.read_csv(folder / "training.csv").set_index("method").loc["repair-i2t", "edits_reachable_i2t"]
    assert reach > 0.9 and f" {reach:.0%} i2t |" in text
    assert (folder / "gains.png").read_bytes().startswith(b"\x89PNG")
    assert "after 1 of 1 seeds" in shown[0] and "Against plain training" in shown[0]


def test_methods_that_data_of_ones_own_has_no_means_for_are_left_out_and_named(tmp_path, clip_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["world", "build", "--train", "4", "--validation", "2", "--test", "2"]) == 0
    Path("runs/world/world.json").unlink()  # somebody's own pictures then, which the toy world's LLM does not know
    build_parser().to_disk("parser")
    shown = study("--pairs", "runs/world", "--model", str(clip_folder), "--spacy-model", "parser", "--dry-run")
    assert "left out: sugarcrepe (needs `llm`), laclip (needs `llm`), stablerep (needs `editor`)" in shown
    assert "\n negclip " in shown and "\n laclip" not in shown
    assert "Plan for all together" in shown and "Assumed, not measured: 1 second per 8 steps" in " ".join(
        shown.split()
    )


def test_a_trial_whose_repairs_all_fail_has_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["world", "build", "--train", "8", "--validation", "2", "--test", "2"]) == 0
    words = "--pairs runs/world --max-images 4 --llm world/oracle?rejects_good=1 --methods repair --batch-size 2"
    study(*words.split(), "--epochs", "1", "--seeds", "1")
    page = Path("runs/study/study.md").read_text()
    assert "## What to look at first" in page and "`repair`:" in page.partition("## Left out")[2]


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


def test_without_choosing_no_validation_split_is_needed(tmp_path):
    words = "--size tiny --seeds 1 --methods vanilla --validation-split none --output"
    assert "after 1 of 1 seeds" in study(*words.split(), str(tmp_path))


def test_a_second_run_makes_nothing_again_and_says_the_same(tiny):
    folder, shown, before = tiny
    assert len(before) > 20 and stamps(folder) == before
    assert shown[0].partition("The regime")[2] == shown[1].partition("The regime")[2]


def test_kept_cells_give_the_tables_and_are_not_trained_again(tiny, tmp_path):
    folder, words = tiny[0], [*TINY, "--cells", str(tiny[0] / "kept"), "--output"]
    kept = {path.name for path in (folder / "kept").iterdir()}
    assert kept == {f"{cell.name}.json" for cell in (folder / "cells").iterdir()}
    hosted = ["--llm", "openai/gpt-4o", "--editor", "openai/gpt-image-1"]  # no key: nothing is made
    shown = study(*words, str(tmp_path / "table"), "--table", *hosted)
    assert (tmp_path / "table" / "study.md").read_text() == (folder / "study.md").read_text()
    assert not (tmp_path / "table" / "cells").exists() and "after 1 of 1 seeds" in shown
    more = study(*words, str(tmp_path / "more"), "--table", "--methods", "laclip", "negclip")
    assert "left out negclip: negclip--test" in more and "has not been trained yet" in more
    study(*words, str(tmp_path / "elsewhere"))
    for cell in (folder / "cells").iterdir():
        known, found = (json.loads((each / cell.name / "summary.json").read_text())
                        for each in (folder / "cells", tmp_path / "elsewhere" / "cells"))  # fmt: skip
        assert found == known  # seconds, too
    one = folder / "kept" / "base--test.json"
    one.write_text(one.read_text().replace('"ranks"', '"rank"'))
    assert main(["study", *words, str(tmp_path / "damaged"), "--table"]) == 2


def test_what_was_chosen_is_measured_with_the_weights_that_won(tmp_path):
    """One training for both splits; `keep_models` keeps what is reported, where the cell of the table is."""
    words = ["--size", "tiny", "--seeds", "1", "--methods", "vanilla", "--tune", "--learning-rates", "1e-4", "2e-4"]
    study(*words, "--compositional", "world", "--keep-models", "--output", str(tmp_path))
    found = {cell.name: json.loads((cell / "summary.json").read_text()) for cell in (tmp_path / "cells").iterdir()}
    seconds = {name: each["training"].get("seconds") for name, each in found.items()}
    (reported,) = (name for name in found if "--test--" in name and "epochs0.2" in name)
    assert seconds[reported] == seconds[reported.replace("test", "validation")]
    assert (tmp_path / "cells" / reported / "trainer_state.json").is_file()
    assert set(found[reported]["metrics"]) - set(found[reported.replace("test", "validation")]["metrics"])
    assert (tmp_path / "compositional.csv").is_file()
    kept = {path.parent.name for path in (tmp_path / "cells").glob("*/retriever")}
    assert kept == {name for name in found if "--test--" in name}


def test_several_data_sets_have_a_study_each_and_one_table(tmp_path):
    """The second has other batches and a method more; a second run makes nothing again."""
    sets = {"first": {"size": "tiny"}, "second": {"size": "tiny", "batch_size": 8, "methods": ["simclr", "negclip"]}}
    words = ["--datasets", json.dumps(sets), "--seeds", "1", "--methods", "negclip", "--output", str(tmp_path)]
    alike = ["--datasets", json.dumps(dict.fromkeys(sets, {"size": "tiny"})), "--methods", "laclip", "--dry-run"]
    last = study(*alike, "--output", str(tmp_path)).splitlines()[-2:]
    price = "320 answers by world/oracle $0.00 and the time of your machine"
    assert last == ["All data sets", f"Whole price: $0.00: {price}."]
    shown = study(*words)
    assert f"$ repair-hf study --output {tmp_path}/second" in shown
    text = (tmp_path / "study.md").read_text()
    assert "[first](first/study.md), [second](second/study.md)" in text and "The world is a toy" in text
    table = pd.read_csv(tmp_path / "datasets.csv")
    for name, methods in (("first", {"negclip"}), ("second", {"negclip", "simclr"})):
        own = pd.read_csv(tmp_path / name / "summary.csv", dtype=str).set_index("method")
        assert methods < set(table.loc[table["dataset"] == name, "method"])
        assert {"base", "vanilla"} < set(own.index)
        for method in methods:
            assert own.loc[method, "I2T R@1"] in next(
                line for line in text.splitlines() if line.startswith(f"| {method} ")
            )
    encoded = pd.read_csv(tmp_path / "second" / "training.csv").set_index("method")["images_per_step"]
    assert (encoded["vanilla"], encoded["simclr"]) == (8, 24)  # with two views of each image
    [simclr] = [line for line in text.splitlines() if line.startswith("| simclr ")]
    assert simclr.count(" – |") == 4  # the first data set has no such method
    before = [stamps(tmp_path / name) for name in sets]
    assert study(*words).partition("All data sets")[2] == shown.partition("All data sets")[2] != ""
    assert [stamps(tmp_path / name) for name in sets] == before


@pytest.mark.parametrize(
    "sets, says",
    [
        ({}, "`datasets` is empty"),
        ({"a/b": {"size": "tiny"}}, "`datasets` has 'a/b', and each name becomes a folder"),
        ({"a": "tiny"}, "`datasets` a has 'tiny'; give its options by name"),
        ({"a": {"size": "tiny"}, "b": {"max_usd": 3}}, "`datasets` b has `max_usd`, which is one for all data sets"),
        (
            {"a": {"size": "tiny"}, "b": {"sise": "tiny"}},
            "`datasets` b: unknown flags ['--sise']. Did you mean `size`",
        ),
        (
            {"a": {"size": "tiny"}, "b": {"pairs": "x"}},
            "`datasets` b: `model` world/base knows the toy world alone",
        ),
        (
            {"a": {"size": "tiny"}, "b": {"methods": ["negclop"]}},
            "`datasets` b: `methods` has 'negclop', which is unknown",
        ),
    ],
)
def test_data_sets_are_refused_before_the_first_is_begun(sets, says, tmp_path, capsys):
    assert main(["study", "--datasets", json.dumps(sets), "--output", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_every_method_runs_end_to_end(tmp_path):
    """All methods of the toy world, with a sweep and tuning of hyperparameters; the counters are the paper's."""
    shown = study(
        "--size", "tiny", "--seeds", "2", "--shares", "0.5", "--tune", "--grid-weights", "1", "0.5",
        "--compositional", "world", "--paper", "coco30k", "--output", str(tmp_path),
    )  # fmt: skip
    assert "left out" not in shown
    table = pd.read_csv(tmp_path / "overhead.csv").set_index("method")
    assert set(table.index) == set(load_methods())
    for name, calls in PER_SAMPLE.items():
        assert tuple(table.loc[name, ["llm_per_sample", "images_per_sample"]]) == pytest.approx(calls), name
    for name in ("regime", "scores", "gains", "compositional", "value", "training", "tuning", "sweep"):
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 1, name
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert set(scores["seed"]) == {0, 1} and scores[["i2t_R@1", "t2i_MRR"]].notna().all(axis=None)
    assert (tmp_path / "sweep.png").is_file()
    [between] = (tmp_path / "products").glob("repair-2-rounds-round-2--*-retriever")
    between = yaml.safe_load((between / "config.yaml").read_text())
    chosen = pd.read_csv(tmp_path / "training.csv").set_index("method").loc["repair"]
    knobs = {"learning_rate": "learning_rate", "num_train_epochs": "epochs", "grid_weight": "grid_weight"}
    assert {name: between[name] for name in knobs} == {name: chosen[column] for name, column in knobs.items()}


@pytest.mark.slow
def test_another_backbone_is_compared_with_its_own_plain_training(clip_folder, tmp_path):
    study(
        "--size", "tiny", "--seeds", "1", "--methods", "other-backbone", "--other-model", str(clip_folder),
        "--keep-models", "--output", str(tmp_path),
    )  # fmt: skip
    gains = pd.read_csv(tmp_path / "gains.csv")
    assert set(gains["method"]) == {"other-backbone"}
    configs = [yaml.safe_load(path.read_text()) for path in (tmp_path / "cells").glob("other-backbone*/config.yaml")]
    digests = {config["model_digest"] for config in configs}
    base = yaml.safe_load((tmp_path / "cells" / "base--test" / "config.yaml").read_text())
    assert len(digests) == 1 and base["model_digest"] not in digests
    kept = sorted(path.parents[1].name for path in (tmp_path / "cells").glob("*/retriever/model.safetensors"))
    assert kept == sorted(path.name for path in (tmp_path / "cells").iterdir() if path.name != "base--test")


def test_methods_are_compared_on_records_that_exist(tmp_path, monkeypatch, capsys):
    """On somebody's own pairs: no LLM, no editor, and nothing is mined."""
    monkeypatch.chdir(tmp_path)
    study("--size", "tiny", "--seeds", "1", "--methods", "repair", "--output", "made")
    words = "--size tiny --records made/products/repair-records --dry-run --methods"
    shown = study(*words.split(), "repair", "wo-pqc", "perfect-editor", "weak-llm", "repair-2-rounds", "wo-failure")
    asked = {row[0]: (int(row[1]), int(row[2])) for row in map(str.split, shown.splitlines()) if len(row) == 6}
    whole = asked["wo-failure"]  # other failures
    assert asked["repair"] == asked["wo-pqc"] == (0, 0) and asked["perfect-editor"] == (0, whole[1])
    assert asked["weak-llm"] == asked["repair-2-rounds"] == whole == (432, 48)  # of two rounds the second
    Path("made/world/world.json").unlink()
    words = "--pairs made/world --records made/products/repair-records --test-split validation --batch-size 16 "
    words += "--model made/base --epochs 0.2 --seeds 1 --output found"
    base = DualEncoder.from_pretrained("world/base")
    base.model.save_pretrained("made/base")
    base.preprocessor.processor.save_pretrained("made/base")
    shown = study(*words.split(), "--llm", "openai/gpt-4o", "--dry-run")  # another LLM than that of the records
    assert " all together          0       0 " in shown and shown.endswith("\nWhole price: $0.00.\n")
    assert main(["study", *words.replace("made/products", "nowhere").split(), "--dry-run"]) == 2
    assert "nowhere/repair-records holds no records" in capsys.readouterr().err and not Path("found").exists()
    study(*words.split())
    table = pd.read_csv("found/scores.csv").set_index("method")
    assert {"vanilla", "repair", "repair-paper"} < set(table.index) and not list(Path("found/products").glob("*"))
    cost = pd.read_csv("found/overhead.csv").set_index("method").loc["repair"]
    assert cost["made"] > 0 and cost["llm_calls"] > cost["made"]


def test_a_launchers_processes_share_the_limits_of_a_provider():
    part = _part_of_limits(StudyLLMOptions(requests_per_minute=1000, max_usd=5.0), 4)
    assert (part.requests_per_minute, part.tokens_per_minute, part.max_usd) == (250, None, 5.0)
