"""Recipes: each is parsed by the command of its name, and rehearsed with `--dry-run` on made-up data."""

import shutil
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import yaml
from chat_server import ChatServer
from huggingface_hub.constants import HF_HUB_CACHE
from provider_server import KEY
from recipe_data import SIZES, cache_models, make_data, make_failures, make_records
from study_runs import stamps, study

from repair_hf.cli.main import main
from repair_hf.cli.subcommands import load_command
from repair_hf.pairs import benchmarks
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.command_line import parse
from repair_hf.study.methods import METHODS
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.parsing import build_parser

RECIPES = Path(__file__).parents[1] / "recipes"
TRIAL = RECIPES / "trial" / "study.yaml"
RUNS = {path.parent.name for path in RECIPES.glob("*/mine.yaml")}
STAGES = [path for path in sorted(RECIPES.glob("*/*.yaml")) if path.parent.name in RUNS]
STUDIES = [*sorted((RECIPES / "study").glob("*.yaml")), TRIAL]
SLOW = dict.fromkeys(["coco30k", "coco30k-vit-l14", "flickr30k"], pytest.mark.slow)  # as coco, of other images
FOLDERS = sorted({path.parent for path in STAGES})
OF_EVERY_RECIPE = ("mine", "synthesize", "train", "evaluate")


def options_of(path: Path) -> tuple:
    module = load_command(path.stem)
    types = module.ACTIONS["build"][0] if path.stem == "world" else module.OPTIONS
    options = parse(types, ["--config", str(path)], f"repair-hf {path.stem}")
    assert len(options) == len(types)
    return options


@pytest.mark.parametrize("name", ["coco30k", "flickr30k"])
def test_the_recipes_of_aro_measure_what_the_other_recipes_train(name):
    module = load_command("evaluate")
    options = parse(module.OPTIONS, ["--config", str(RECIPES / "aro" / f"{name}.yaml")], "repair-hf evaluate")
    asked = {key: value for each in options for key, value in asdict(each).items()}
    known = yaml.safe_load((RECIPES / name / "evaluate.yaml").read_text())
    assert asked["model"][1] == known["model"] and len(asked["compositional"]) == 3
    for key in ("pairs", "image_folder", "benchmark", "split"):
        assert asked[key] == known[key], key


@pytest.fixture
def models(clip_folder):
    """The recipes' models, as if they had been downloaded."""
    folders = cache_models(clip_folder, Path(HF_HUB_CACHE))
    yield
    for folder in folders:
        shutil.rmtree(folder)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_stages_of_a_recipe_fit_together(folder):
    """One stage reads what another writes, all speak of the same data, and their page names each of them."""
    stages = {stage: yaml.safe_load((folder / f"{stage}.yaml").read_text()) for stage in OF_EVERY_RECIPE}
    assert stages["synthesize"]["failures"] == stages["mine"]["output"]
    assert stages["train"]["records"] == stages["synthesize"]["output"]
    assert stages["evaluate"]["model"] == stages["train"]["output"]
    assert stages["mine"]["model"] == stages["synthesize"]["model"] == stages["train"]["model"]
    for key in ("pairs", "image_folder", "benchmark"):
        assert len({stage.get(key) for stage in stages.values()}) == 1, key
    assert len({stage.get("with_restval") for name, stage in stages.items() if name != "evaluate"}) == 1
    own = folder / "README.md"
    readme = (own if own.is_file() else RECIPES / "README.md").read_text()  # the paper's data sets share one page
    name = folder.name if own.is_file() else "coco30k"
    for stage in stages:
        assert f"{stage} --config recipes/{name}/{stage}.yaml" in readme, stage
    assert own.is_file() or f"\n| `{folder.name}` | " in readme
    if folder.name != "toy":
        for part in ("not run by us", "## Data", "## Hardware, hours, dollars", "## Commands", "## To compare with"):
            assert part.casefold() in readme.casefold(), part


REHEARSED = [pytest.param(each, marks=SLOW.get(each.name, ())) for each in FOLDERS if each.name != "toy"]


@pytest.mark.parametrize("folder", REHEARSED, ids=lambda folder: folder.name)
def test_recipe_is_rehearsed(folder, pairs_folder, clip_folder, models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMINI_API_KEY", "none")
    monkeypatch.setattr(benchmarks, "SIZES", SIZES)
    recipe = yaml.safe_load((folder / "train.yaml").read_text())
    make_data(pairs_folder, recipe)
    pairs_options = options_of(folder / "train.yaml")[0]
    named = asdict(pairs_options)
    pairs = load_pairs(named.pop("pairs"), **named)
    failures = Path(yaml.safe_load((folder / "mine.yaml").read_text())["output"])
    makers = {  # what the stage before would have made
        "synthesize": lambda: make_failures(pairs, failures),
        "train": lambda: make_records(pairs, Path(recipe["records"])),
        "evaluate": lambda: shutil.copytree(clip_folder, recipe["output"]),
    }
    said = {}
    for stage in OF_EVERY_RECIPE:
        if stage in makers:
            makers[stage]()
        few = ["--per-device-train-batch-size", "4"] if stage == "train" else []
        words = [stage, "--config", str(folder / f"{stage}.yaml"), "--dry-run", *few]
        assert main(words) == 0, capsys.readouterr().err
        said[stage] = capsys.readouterr().out
    count = {"coco": 8, "coco30k": 5, "flickr30k": 6, None: 8}[recipe.get("benchmark")]
    assert len(pairs.images) == count
    assert f"{count} images and {2 * count} captions would be embedded and mined" in said["mine"]
    assert "$" in said["synthesize"] and "unknown" not in said["synthesize"]
    assert f"{2 * count} captions with their images; " in said["train"]
    assert "2 images and 4 captions would be embedded and ranked" in said["evaluate"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=SLOW.get(path.stem, ())) for path in STUDIES],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_study_is_rehearsed(path, pairs_folder, models, tmp_path, monkeypatch):
    """On a dozen pictures in the form of its source; nothing is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMINI_API_KEY", "none")
    monkeypatch.setattr(benchmarks, "SIZES", SIZES)
    recipe = yaml.safe_load(path.read_text())
    if "pairs" in recipe:
        make_data(pairs_folder, recipe)
    before = set(tmp_path.rglob("*"))
    build_parser().to_disk(parser := tmp_path.with_name(f"{tmp_path.name}-parser"))
    shown = study("--config", str(path), "--spacy-model", str(parser), "--dry-run")
    assert set(tmp_path.rglob("*")) == before
    unasked = {"new-pairs"} if "pairs" in recipe else set()
    for name in recipe.get("methods") or set(METHODS) - unasked:
        assert f"\n {name} " in shown
    toy = {"small": (1000, 5000), "large": (10_000, 50_000), None: (8, 16)}[recipe.get("size")]
    images, captions = {"coco30k": (5, 10), "flickr30k": (6, 12)}.get(recipe.get("benchmark"), toy)
    assert f"{images:,} images, {min(captions, recipe.get('max_captions', 5) * images):,} captions" in shown
    readme = (path.parent / "README.md").read_text()
    assert f"recipes/{path.parent.name}/{path.name}" in readme and "not run by us" in readme.casefold()


def test_the_trial_has_a_ceiling_of_five_dollars():
    assert yaml.safe_load(TRIAL.read_text())["max_usd"] == 5


@pytest.mark.slow  # a training of each method
def test_the_trial_runs_end_to_end(clip_folder, flux_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (build_world(tmp_path / "photos", splits={"train": 12, "val": 4, "test": 6}) / "versions.json").unlink()
    build_parser().to_disk("parser")
    recipe = yaml.safe_load(TRIAL.read_text())
    for name in ("image_folder", "benchmark", "reasoning_effort", "training"):
        del recipe[name]
    recipe |= {"llm": "openai/gpt-4o", "editor": str(flux_folder), "editor_steps": 1, "editor_size": 64}
    recipe |= {"model": str(clip_folder), "spacy_model": "parser", "pairs": "photos"}
    recipe |= {"max_images": 8, "max_queries": 4, "epochs": [1], "batch_size": 4}
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ChatServer(lambda body: oracle.answer(body["messages"], body["seed"])) as server:
        Path("trial.yaml").write_text(yaml.safe_dump(recipe | {"llm_base_url": server.base_url}))
        assert "8 images, 8 captions" in study("--config", "trial.yaml", "--dry-run")
        study("--config", "trial.yaml")

    folder = Path(recipe["output"])
    costs = pd.read_csv(folder / "methods.csv").set_index("method")
    assert set(costs.index) == set(METHODS) - {"new-pairs"}
    assert (costs.loc[["repair-paper", "alia"], ["samples", "llm calls", "images"]] != "0").all(axis=None)

    failures, records = folder / "pairs" / "failures-best", folder / "pairs" / "repair"  # as the README names them
    for words in (["annotate", "qc", str(records)], ["annotate", "edits", str(records)]):
        assert main(words) == 0, capsys.readouterr().err
    assert main(["analyze", str(records)]) == main(["show", str(failures)]) == main(["show", str(records)]) == 0
    before = stamps(folder)
    study("--config", "trial.yaml")
    assert stamps(folder) == before
