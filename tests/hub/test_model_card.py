"""The card of a model: complete, and it compares only what was measured alike."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.hub.model_card import model_card
from repair_hf.hub.rendering import StageFolder
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import Stage


@pytest.fixture(scope="module")
def trained(clip_folder, stage_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "repair"
    shutil.copytree(clip_folder, folder)
    options = dict(pairs="me/photos", split="train", model="openai/clip-vit-base-patch32", records="me/x-repair")
    options |= dict(output="runs/train", learning_rate=3e-4, grid_weight=0.5, seed=7, model_digest="base-digest")
    options |= dict(pairs_fingerprint="abc", records_digest="def", hub_token="<hidden>", fill="paper", loss="grid")
    summary = dict(steps=146, processes=2, seconds=61.2, loss=1.25)
    summary |= {"eval_i2t_R@1": 0.5, "eval_t2i_MRR": 0.625}
    stage_folder(folder, "train", options, summary)
    return folder


@pytest.fixture
def results(trained, stage_folder, tmp_path) -> Path:
    """An evaluation of the base, of a model that was trained without records, and of this one."""
    plain = stage_folder(tmp_path / "vanilla", "train", {"records": None}, {"steps": 146, "seconds": 27.0})
    own, folder = DualEncoder.from_pretrained(trained, device="cpu").digest, tmp_path / "evaluate"
    models = [("b", "x", "base-digest", 0), ("vanilla", str(plain), "other", 0.01), ("r", str(trained), own, 0.03)]
    for name, model, weights, gain in models:
        metrics = {f"{side}_{kind}": 0.7 + gain for side in ("i2t", "t2i") for kind in ("R@1", "R@5", "R@10", "MRR")}
        metrics |= {"intervals": {name: [value - 0.02, value + 0.01] for name, value in metrics.items()}}
        metrics |= {"random": {"i2t_R@1": 0.1}, "model": model, "model_digest": weights, "n_images": 10, "n_texts": 50}
        stage_folder(folder / name, "evaluate", {"model": model}, metrics)
    gains = {"i2t_R@1": {"difference": 0.03, "low": 0.01, "high": 0.05}, "t2i_MRR": {}}
    repairs = [{"model": "r", "reference": "vanilla", "differences": gains}, {"model": "x", "reference": None}]
    comparison = {"reference": "b", "differences": {"vanilla": {}, "r": gains}, "repair": repairs}
    (folder / "differences.json").write_text(json.dumps(comparison))
    summary = {"models": ["b", "vanilla", "r"]}
    return stage_folder(folder, "evaluate", dict(pairs="me/photos", split="test", pairs_fingerprint="t"), summary)


def test_the_model_card_tells_it_all(trained, results):
    card = model_card(trained, "me/clip-repair", results=results, license="mit")
    data = ModelCard(card).data
    assert data.base_model == "openai/clip-vit-base-patch32" and data.datasets == ["me/x-repair", "me/photos"]
    assert data.library_name == "transformers" and data.license == "mit"
    found = {result.metric_name: result.metric_value for result in data.eval_results}
    types = {result.metric_name: result.metric_type for result in data.eval_results}
    assert types["I2T R@10"] == "recall" and types["T2I MRR"] == "mrr"
    assert found["I2T R@1"] == 0.73 and len(found) == 8 and data.eval_results[0].dataset_type == "me/photos"
    for text in (
        'AutoModel.from_pretrained("me/clip-repair")',
        'SentenceTransformer("me/clip-repair")',
        "\n- against base (before training): I2T R@1 +3.0 [+1.0, +5.0] *\n",
        "\n- against `vanilla` (146 steps without records): I2T R@1 +3.0 [+1.0, +5.0] *\n",
        "| I2T R@1 | 10.0 | 70.0 [68.0, 71.0] | 71.0 [69.0, 72.0] | 73.0 [71.0, 74.0] |",
        "|  | random | base | `vanilla` | **this model** |",
        "Measured on [`me/photos`](https://huggingface.co/datasets/me/photos), split `test`, fingerprint `t`.",
        "| steps | 146 |",
        "One training run, seed 7",
        "[`openai/clip-vit-base-patch32`](https://huggingface.co/openai/clip-vit-base-patch32)",
    ):
        assert text in card, text
    for hidden in ("/home/ann", "hub_token"):
        assert hidden not in card


@pytest.mark.parametrize("options", [dict(records=None), dict(loss="none")])
def test_a_training_without_its_records_is_plain(options, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "plain")
    change(folder / "config.yaml", **options)
    card = model_card(folder, "me/clip-plain")
    assert "| records | none |" in card and "this is plain fine-tuning" in card


def change(file: Path, **values) -> None:
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))  # which reads JSON as well


def test_what_only_some_were_measured_on_is_a_dash_for_the_others(trained, results):
    for name, right in (("b", 0.5), ("r", 0.625)):
        summary = json.loads((results / name / "summary.json").read_text())
        summary |= {"sugarcrepe_accuracy": right, "sugarcrepe_n_cases": 7511}
        summary["intervals"]["sugarcrepe_accuracy"] = [right - 0.01, right + 0.02]
        (results / name / "summary.json").write_text(json.dumps(summary))
    card = model_card(trained, "me/clip-repair", results=results)
    assert "| sugarcrepe accuracy | – | 50.0 [49.0, 52.0] | – | 62.5 [61.5, 64.5] |" in card


def test_an_evaluation_of_this_model_alone_has_no_comparison(trained, results):
    change(results / "r" / "config.yaml", pairs="me/photos", split="test", pairs_fingerprint="t")
    card = model_card(trained, "me/x", results=results / "r")
    assert (
        "|  | random | **this model** |" in card
        and "- against" not in card
        and "split `test`, fingerprint `t`" in card
    )


def test_a_model_of_unknown_making_says_so(clip_folder):
    card = model_card(clip_folder, "me/clip")
    assert "A dual encoder of unknown base" in card and "Not measured: no evaluation was given" in card
    assert "| steps | unknown |" in card
    assert "model-index" not in card and "base_model" not in card


def test_other_dual_encoders_are_not_said_to_be_clip(siglip_folder):
    card = model_card(siglip_folder, "me/siglip")
    assert 'padding="max_length"' in card and "SentenceTransformer(" not in card


def test_an_evaluation_without_this_model_and_what_is_none_are_errors(trained, results, tmp_path):
    with pytest.raises(UserError, match="has no model with the weights in"):
        model_card(trained, "me/x", results=results / "b")
    with pytest.raises(UserError, match="holds no finished evaluation"):
        model_card(trained, "me/x", results=tmp_path)


def test_what_is_on_the_hub_and_what_is_on_this_machine(tmp_path, monkeypatch):
    for place in ("data/photos", "runs/gone"):
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    options = dict(a="me/photos", b="data/photos", c="runs/gone", d="world/base", e="/x/y", f="photos", g="me/x)<b>")
    Stage("train", "runs/train", inputs=options).run(lambda folder: {})
    (tmp_path / "runs" / "gone").rmdir()
    for place in (".", "/"):  # also as on another machine: what was here is not there
        stage = StageFolder.of(tmp_path / "runs" / "train")
        monkeypatch.chdir(place)
        assert [stage.hub_ids(name) for name in "abcdefg"] == [["me/photos"], *[[]] * 6]
    assert "](" not in stage.name_of("g")  # no name becomes a link that leads elsewhere


def test_records_of_several_rounds_are_listed_and_linked_and_lie_in_nobodys_folder(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "several")
    change(folder / "config.yaml", records=["/home/ann/round-1/records", "me/photos-repair", "you/photos-repair"])
    card = model_card(folder, "me/clip-repair")
    line = next(line for line in card.splitlines() if line.startswith("| records |"))
    assert "`…/records`, [`me/photos-repair`](https://huggingface.co/datasets/me/photos-repair), [`you/" in line
    assert ModelCard(card).data.datasets[:2] == ["me/photos-repair", "you/photos-repair"]
    assert "/home/ann" not in card


def test_every_package_is_in_the_wheel():
    """Three packages lie outside src, so all are listed by hand."""
    root = Path(__file__).parents[2]
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {".".join(path.parent.relative_to(root / "src").parts) for path in (root / "src").rglob("__init__.py")}
    outside = {"repair_hf.hub_cards", "repair_hf.metrics", "repair_hf.recipes"}
    assert sorted(listed) == sorted({*found, *outside}), "Put new packages into pyproject.toml."
