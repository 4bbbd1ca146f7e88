"""Blends: weights between a base and a tuned model; a training that saves one; a folder that is exported."""

from __future__ import annotations

import json
import resource
import shutil
from copy import deepcopy

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from training_runs import assert_same, losses, weights

from repair_hf.cli.main import main
from repair_hf.encoder.blend import blend, export_blend, untrained
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.evaluate import evaluate
from repair_hf.evaluation.provenance import check_unseen, plain_before
from repair_hf.hub.model_card import model_card
from repair_hf.runtime.options import UserError

FOUR = dict(max_steps=4, save_strategy="steps", save_steps=2)
TWO = dict(max_steps=2, save_strategy="steps", save_steps=1)
# peft asks by a name of which transformers warns
OLD_NAME = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
OTHERS = [  # than plain LoRA
    {"use_dora": True},
    {"trainable_token_indices": {"token_embedding": [3]}},
    {"init_lora_weights": "pissa"},
]
RARE = [{"init_lora_weights": "olora"}, {"bias": "lora_only"}]


def moved(model):
    torch.manual_seed(1)
    for value in model.parameters():
        if value.requires_grad:
            value.data += torch.randn_like(value)
    return model


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("by_folder", [True, False])
def test_a_blend_is_the_base_and_a_part_of_the_way(clip, clip_folder, weight, by_folder):
    base, tuned = clip.state_dict(), moved(deepcopy(clip))
    before = {name: value.clone() for name, value in tuned.state_dict().items()}
    blend(tuned, clip_folder if by_folder else base, weight)
    for name, value in tuned.state_dict().items():
        if not value.is_floating_point():
            assert value.equal(base[name])
            continue
        reference = base[name].double() + weight * (before[name].double() - base[name].double())
        torch.testing.assert_close(value.double(), reference, atol=1e-6, rtol=1e-6)
        if weight in (0.0, 1.0):
            assert value.equal(before[name] if weight else base[name])


def test_tied_weights_are_blended_once():
    def tied(value):
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 2), "two": torch.nn.Linear(2, 2)})
        model.two.weight = model.one.weight
        for parameter in model.parameters():
            parameter.data.fill_(value)
        return model

    tuned = tied(1.0)
    blend(tuned, tied(0.0).state_dict(), 0.5)
    assert all((value == 0.5).all() for value in tuned.state_dict().values())


@OLD_NAME
@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_an_adapter_gives_a_part_of_its_update_and_merges_to_it(clip, weight):
    base = {name: value.clone() for name, value in clip.state_dict().items()}
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["visual_projection"])
    adapted = get_peft_model(clip, config)
    assert untrained(adapted) == {}
    tuned = moved(adapted)
    whole = deepcopy(tuned).merge_and_unload().state_dict()
    blend(tuned, {}, weight)
    for name, value in tuned.merge_and_unload().state_dict().items():
        torch.testing.assert_close(value, base[name] + weight * (whole[name] - base[name]), atol=1e-5, rtol=1e-5)
        is_trained = "q_proj.weight" in name or name.startswith("visual_projection")
        assert whole[name].equal(base[name]) != is_trained


def test_what_cannot_be_blended_is_an_error(clip):
    base = clip.state_dict()
    lacks = {name: value for name, value in base.items() if name != "logit_scale"}
    other = base | {"logit_scale": torch.zeros(2)}
    for first, weight, message in (
        (base, 1.5, "from 0 .* to 1 .*1.5"),
        (base, float("nan"), "nan"),
        (lacks, 0.5, "differ in 1 weights or shapes, such as logit_scale None and "),
        (other, 0.5, r"logit_scale \(2,\) and \(\)"),
    ):
        with pytest.raises(UserError, match=message):
            blend(clip, first, weight)


@OLD_NAME
@pytest.mark.parametrize("kind", [*OTHERS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in RARE)])
def test_other_adapters_than_plain_lora_are_refused_before_training(clip, kind):
    """Scaling their update would not give `base + weight * (tuned - base)`."""
    model = get_peft_model(clip, LoraConfig(r=2, target_modules=["q_proj"], **kind))
    with pytest.raises(UserError, match="`blend` below 1 takes plain LoRA adapters, and this one trains "):
        untrained(model)


def test_the_saved_model_lies_between_the_base_and_the_tuned_one_and_the_card_names_it(
    clip, clip_folder, repaired, tuned, fit, tmp_path
):
    blended = fit(repaired, "blended", model=str(clip_folder), blend=0.75)
    assert losses(tuned) == losses(tmp_path / "blended")
    end = weights(DualEncoder.from_pretrained(tuned, device="cpu").model)
    base, found = weights(clip), weights(blended.model)
    for name, value in found.items():
        torch.testing.assert_close(value, base[name] + 0.75 * (end[name] - base[name]), atol=1e-6, rtol=1e-5)
        assert not value.equal(end[name]), name
    assert_same(found, weights(DualEncoder.from_pretrained(tmp_path / "blended", device="cpu").model))
    assert "| blend | base + 0.75 × (tuned − base) |" in model_card(tmp_path / "blended", "me/clip")
    assert "| blend |" not in model_card(tuned, "me/clip")
    assert json.loads((tmp_path / "blended" / "trainer_state.json").read_text())["global_step"] == 3


@pytest.mark.parametrize("step", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_resumed_run_is_blended_once(step, clip_folder, repaired, fit, tmp_path):
    whole = fit(repaired, "whole", model=str(clip_folder), blend=0.5, **FOUR)
    checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
    resumed = fit(repaired, "resumed", model=str(clip_folder), checkpoint=checkpoint, blend=0.5, **FOUR)
    assert_same(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize("greater", [pytest.param(True, marks=pytest.mark.slow), False])  # the best is not the last
def test_the_summary_measures_what_is_saved(greater, clip_folder, repaired, fit, pairs, tmp_path):
    trainer = fit(
        repaired,
        model=str(clip_folder),
        validation=pairs,
        blend=0.3,
        load_best_model_at_end=True,
        greater_is_better=greater,
        **FOUR | dict(eval_strategy="steps", eval_steps=2),
    )
    names = [name for name in trainer.summary if name.startswith("eval_") and name.endswith(("R@1", "MRR"))]
    saved = DualEncoder.from_pretrained(tmp_path / "out", device="cpu")
    trainer.base.load_state_dict(saved.model.state_dict())
    again = trainer.evaluate()
    assert names and all(trainer.summary[name] == pytest.approx(again[name]) for name in names)


def test_an_adapter_s_update_is_scaled(clip_folder, repaired, pairs, fit, tmp_path):
    tuned, half = (
        fit(repaired, name, model=str(clip_folder), lora_rank=2, blend=blend)
        for name, blend in (("tuned", 1.0), ("half", 0.5))
    )
    base = weights(DualEncoder.from_pretrained(clip_folder, device="cpu").model)
    end, saved = (
        weights(DualEncoder.from_pretrained(tmp_path / name, device="cpu").model) for name in ("tuned", "half")
    )
    moved = [name for name in base if not end[name].equal(base[name])]
    assert moved and tuned.args.blend == 1 and half.args.blend == 0.5
    for name in base:
        torch.testing.assert_close(saved[name], (base[name] + end[name]) / 2, atol=1e-6, rtol=1e-4)


def test_an_exported_blend_is_a_trained_model_to_the_card_and_to_evaluate(clip_folder, repaired, pairs, fit, tmp_path):
    how = dict(model=str(clip_folder), validation=pairs, **TWO)
    fit(None, "plain", **how)
    fit(repaired, "tuned", **how)
    for name, model in (("blend", "tuned"), ("half", "blend"), ("early", "tuned/checkpoint-1")):
        export_blend(tmp_path / model, clip_folder, 0.5, tmp_path / name)
    options = {name: yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in ("tuned", "half")}
    assert options["half"].items() >= (options["tuned"] | {"blend": 0.25}).items()  # a blend of a blend
    summary = json.loads((tmp_path / "blend" / "summary.json").read_text())
    assert summary["steps"] == 2 and not any(name.startswith("eval_") for name in summary)  # it was not measured
    cards = {name: model_card(tmp_path / name, "me/clip") for name in ("tuned", "half")}
    line = "| blend | base + 0.25 × (tuned − base) |\n"
    assert line in cards["half"] and cards["half"].replace(line, "") == cards["tuned"]
    models = {name: str(tmp_path / name) for name in ("plain", "blend", "half", "early")}
    assert plain_before(models) == {"blend": ["plain"], "half": ["plain"], "early": []}  # early has half the steps
    evaluate([models["plain"], models["blend"]], pairs, output=tmp_path / "evaluate", resamples=9)
    differences = json.loads((tmp_path / "evaluate" / "differences.json").read_text())
    assert [(one["model"], one["reference"]) for one in differences["repair"]] == [("blend", "plain")]
    with pytest.raises(UserError, match="blend was trained on pictures of this set"):
        check_unseen(pairs.images["image_id"][:1], str(tmp_path / "plain"), {"blend": models["blend"]})


def test_a_blend_needs_the_base_of_its_training(clip, clip_folder, repaired, fit, tmp_path):
    base = shutil.copytree(clip_folder, tmp_path / "base")
    fit(repaired, "tuned", model=str(base), max_steps=1)
    export_blend(tmp_path / "tuned", base, 0.5, tmp_path / "blend")
    made = (tmp_path / "blend" / "model.safetensors").read_bytes()
    clip.text_projection.weight.data += 1
    clip.save_pretrained(base)  # other weights under the same path
    named = rf"tuned was tuned from {base}@\w+, and --base is base@\w+\. Give the base"
    for output in (tmp_path / "blend", tmp_path / "new"):
        with pytest.raises(UserError, match=named):
            export_blend(tmp_path / "tuned", base, 0.5, output)
    assert (tmp_path / "blend" / "model.safetensors").read_bytes() == made and not (tmp_path / "new").exists()
    export_blend(tmp_path / "tuned", clip_folder, 0.5, tmp_path / "blend")  # the same weights elsewhere: it is made


def test_a_model_without_a_record_of_its_training_is_blended_with_any_base(clip, clip_folder, preprocessor, tmp_path):
    base, tuned = weights(clip), moved(deepcopy(clip))
    for part in (tuned, preprocessor):
        part.save_pretrained(tmp_path / "tuned")
    export_blend(tmp_path / "tuned", clip_folder, 0.5, tmp_path / "blend")
    found, end = weights(DualEncoder.from_pretrained(tmp_path / "blend", device="cpu").model), weights(tuned)
    assert_same({name: (base[name] + end[name]) / 2 for name in base}, found, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@OLD_NAME
@pytest.mark.parametrize("kind", OTHERS + RARE)
def test_other_adapters_are_blended_as_whole_weights(clip_folder, repaired, fit, tmp_path, kind):
    config = LoraConfig(r=2, target_modules=["q_proj"], **kind)
    fit(repaired, "tuned", model=str(clip_folder), peft_config=config, max_steps=2)
    names = (clip_folder, tmp_path / "tuned")
    base, tuned = (weights(DualEncoder.from_pretrained(name, device="cpu").model) for name in names)
    moves = {name for name, value in base.items() if not tuned[name].allclose(value)}
    tokens = "text_model.embeddings.token_embedding.weight"
    assert any("q_proj" in name for name in moves) and (tokens in moves) == ("trainable_token_indices" in kind)
    export_blend(tmp_path / "tuned", clip_folder, 0.3, tmp_path / "blend")
    for name, value in weights(DualEncoder.from_pretrained(tmp_path / "blend", device="cpu").model).items():
        torch.testing.assert_close(value, base[name] + 0.3 * (tuned[name] - base[name]), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_a_model_of_two_trainings_is_blended_with_either_base(clip_folder, repaired, fit, tmp_path):
    fit(repaired, "first", model=str(clip_folder), max_steps=1)
    fit(repaired, "second", model=str(tmp_path / "first"), max_steps=1)
    for base, name in ((tmp_path / "first", "base"), (clip_folder, f"`…/{clip_folder.name}`")):
        export_blend(tmp_path / "second", base, 0.5, tmp_path / base.name / "blend")
        card = model_card(tmp_path / base.name / "blend", "me/clip")
        assert f"| blend | {name} + 0.5 × (tuned − {name}) |" in card


def test_frozen_weights_of_two_bytes_have_the_base_of_their_training(clip_folder, repaired, fit, tmp_path):
    encoder = DualEncoder.from_pretrained(clip_folder, dtype="bfloat16", device="cpu")
    fit(repaired, model=encoder, lora_rank=2, bf16=True, max_steps=1)
    assert export_blend(tmp_path / "out", clip_folder, 0.5, tmp_path / "blend")["parameters"] > 0


@pytest.mark.parametrize("command", ["train", "export blend"])
def test_a_limit_on_the_size_of_files_is_one_line(command, clip_folder, tuned, pairs_folder, tmp_path, capsys):
    words = {
        "export blend": f"{tuned} --base {clip_folder} --weight 0.5",
        "train": f"--pairs {pairs_folder} --split all --model {clip_folder} --use-cpu --max-steps 1 "
        "--per-device-train-batch-size 4 --no-cache-images",
    }[command]
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    half = (clip_folder / "model.safetensors").stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (half, most))
    try:
        code = main([*command.split(), *words.split(), "--output", str(tmp_path / "out")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert code == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "nothing more can be written (" in line and "File too large" in line
