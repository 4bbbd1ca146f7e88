"""LoRA adapters and frozen towers: what moves, what is saved, how it resumes, and who reads it."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from training_runs import history, weights
from transformers import AutoModel

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.hub.trainer import RepairTrainer
from repair_hf.runtime.options import UserError
from repair_hf.training.finetune import train
from repair_hf.training.grids import Grids
from repair_hf.training.trainer import GridTrainer

ADAPTER = "adapter_model.safetensors"
PARTS = [
    (dict(), ("vision_model", "visual_projection", "text_model", "text_projection", "logit_")),
    (dict(freeze="image"), ("text_model", "text_projection", "logit_")),
    (dict(freeze="text"), ("vision_model", "visual_projection", "logit_")),
    (dict(lora_rank=2), ("vision_model.encoder", "text_model.encoder")),
    (dict(lora_rank=2, lora_towers="image"), ("vision_model.encoder",)),
    (dict(lora_rank=2, lora_towers="text"), ("text_model.encoder",)),
]
SAVING = [("chunk_size", 3), ("gradient_checkpointing", True)]


@pytest.fixture
def flags(pairs_folder, clip_folder, records_folder, tmp_path) -> list[str]:
    words = f"train --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'} --use-cpu"
    words += f" --records {records_folder} --per-device-train-batch-size 4 --max-steps 4 --learning-rate 1e-2"
    return words.split() + ["--cache-folder", str(tmp_path / "cache")]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize(("part", "trained"), PARTS)
@pytest.mark.parametrize("saving", [{}, *({name: value} for name, value in SAVING)])
def test_all_that_is_trained_gets_a_gradient_and_nothing_else(
    kind, part, trained, saving, request, pairs, repaired, config
):
    encoder = DualEncoder.from_pretrained(request.getfixturevalue(f"{kind}_folder"), device="cpu")
    trainer = GridTrainer(encoder, config(**part, **saving), pairs, rows=Grids(pairs, repaired))
    if "gradient_checkpointing" in saving:  # as `Trainer.train` does
        encoder.model.gradient_checkpointing_enable(trainer.args.gradient_checkpointing_kwargs)
    encoder.model.train()
    trainer.compute_loss(encoder.model, next(iter(trainer.get_train_dataloader()))).backward()
    assert trainer.args.ddp_find_unused_parameters is False
    for name, value in encoder.model.named_parameters():
        is_trained = name.startswith(trained) and ("lora_rank" not in part or "lora_" in name)
        assert value.requires_grad == (value.grad is not None) == is_trained, name


@pytest.mark.parametrize(("part", "trained"), PARTS[1:4])
def test_a_part_moves_and_the_saved_folder_is_the_trained_model(
    part, trained, clip_folder, pairs, repaired, config, tmp_path
):
    encoder, base = (DualEncoder.from_pretrained(clip_folder, device="cpu") for _ in range(2))
    before = weights(base.model)
    summary = train(encoder, pairs, repaired, config(**part))
    for name, value in weights(encoder.model).items():
        moves = name.startswith(trained) and ("lora_rank" not in part or "lora_" in name)
        plain = name.replace("base_layer.", "")
        assert (plain not in before or not value.equal(before[plain])) == moves, name
    assert 0 < summary["parameters_trained"] < summary["parameters"]
    found, now, first = (
        each.embed_pairs(pairs) for each in (DualEncoder.from_pretrained(tmp_path / "out"), encoder, base)
    )
    for side, (saved, kept, old) in enumerate(zip(found, now, first, strict=True)):
        np.testing.assert_allclose(saved, kept, atol=1e-5)
        is_frozen = part.get("freeze") == ("image", "text")[side]
        assert np.array_equal(kept, old) == is_frozen
    assert (tmp_path / "out" / ADAPTER).is_file() == ("lora_rank" in part)
    inputs = dict(input_ids=torch.tensor([[1, 2, 3]]), pixel_values=torch.zeros(1, 3, 32, 32))
    with torch.no_grad():
        opened = AutoModel.from_pretrained(tmp_path / "out")(**inputs).logits_per_image
        torch.testing.assert_close(opened, encoder.model.eval()(**inputs).logits_per_image, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("part", "weights_file", "other"),
    [
        ("--lora-rank 2 --dtype bfloat16", ADAPTER, ("--lora-rank 4", "lora_rank (2 -> 4)")),
        ("--freeze image", "model.safetensors", ("--freeze text", "freeze (image -> text)")),
    ],
)
def test_a_stopped_run_of_a_part_ends_with_the_same_bytes(part, weights_file, other, flags, tmp_path, capsys, caplog):
    going_on, out = [*flags, *part.split(), *"--save-strategy steps --save-steps 2".split()], tmp_path / "out"
    assert main(going_on) == 0
    assert "parameters are trained" in capsys.readouterr().out
    whole = (out / weights_file).read_bytes()
    for name in ("summary.json", weights_file):  # as if killed before the end
        (out / name).unlink()
    damaged = bytearray((out / "checkpoint-4" / weights_file).read_bytes())
    damaged[-1] ^= 1
    (out / "checkpoint-4" / weights_file).write_bytes(damaged)
    assert main([*going_on, *other[0].split()]) == 2 and other[1] in capsys.readouterr().err
    assert main(going_on) == 0
    assert "resumes from checkpoint-2." in caplog.text
    assert (out / weights_file).read_bytes() == whole


def test_an_adapter_is_measured_and_mined_like_the_merged_model(flags, pairs_folder, tmp_path):
    assert main([*flags, "--lora-rank", "2", "--save-merged"]) == 0
    out = tmp_path / "out"
    adapter, merged = (DualEncoder.from_pretrained(folder, device="cpu") for folder in (out, out / "merged"))
    assert adapter.digest == merged.digest
    assert not any("lora" in name for name in adapter.model.state_dict())
    shared = ["--pairs", str(pairs_folder), "--split", "all", "--attn-implementation", "eager"]
    for name, model in (("adapter", out), ("merged", out / "merged")):
        assert main(["evaluate", str(model), *shared, "--output", str(tmp_path / name / "e")]) == 0
        assert main(["mine", *shared, "--model", str(model), "--output", str(tmp_path / name / "m")]) == 0
    for name in ("e/metrics.json", "m/summary.json"):
        one, two = (json.loads((tmp_path / kind / name).read_text()) for kind in ("adapter", "merged"))
        assert {key: one[key] for key in one if "seconds" not in key and key != "model"} == {
            key: two[key] for key in two if "seconds" not in key and key != "model"
        }
    again = [*flags, "--model", str(out), "--lora-rank", "1", "--output", str(tmp_path / "second")]
    assert main(again) == 0  # an adapter on an adapter
    assert DualEncoder.from_pretrained(tmp_path / "second", device="cpu").digest != adapter.digest


def test_a_trainer_takes_a_configuration_of_peft_and_keeps_the_best(clip_folder, pairs, repaired, config, tmp_path):
    given = LoraConfig(r=1, target_modules=["q_proj"], modules_to_save=["visual_projection"])
    how = dict(max_steps=-1, num_train_epochs=2, metric_for_best_model="i2t_R@1")
    trainer = RepairTrainer(str(clip_folder), config(**how), pairs, pairs, records=repaired, peft_config=given)
    trainer.train()
    out = tmp_path / "out"
    best = [line for line in history(out) if line["step"] == trainer.state.best_global_step and "eval_i2t_R@1" in line]
    assert trainer.evaluate()["eval_i2t_R@1"] == best[0]["eval_i2t_R@1"]
    options = yaml.safe_load((out / "config.yaml").read_text())
    assert options["peft_config"]["modules_to_save"] == ["visual_projection"]
    assert options["model_digest"] == DualEncoder.from_pretrained(clip_folder, device="cpu").digest
    saved, kept = DualEncoder.from_pretrained(out, device="cpu"), trainer.model
    moved = kept.visual_projection.modules_to_save["default"].weight
    assert torch.equal(saved.model.visual_projection.weight, moved)
    with pytest.raises(UserError, match="The model has an adapter. Give the adapter's folder"):
        RepairTrainer(trainer.model, config("other"), pairs, None, trainer.processing_class)


def test_what_cannot_be_trained_in_part_is_one_line(clip, encoder, clip_folder, pairs, config, flags, capsys):
    for model, named, given, message in (
        (encoder, dict(lora_rank=2), None, "this model has no name. Load it from the Hub or a folder"),
        (clip_folder, {}, LoraConfig(target_modules=["no_such"]), "`peft_config` does not fit CLIPModel: Target mod"),
        (clip_folder, {}, {"r": 2}, "`peft_config` takes a configuration such as `LoraConfig`, got dict"),
        (clip_folder, dict(freeze="text"), LoraConfig(), "leave out `lora_rank` and `freeze`"),
        (clip_folder, dict(save_merged=True), None, "`save_merged` is for adapters; give `lora_rank`"),
        (
            clip_folder,
            dict(global_loss="sigmoid"),
            None,
            "sigmoid needs a `logit_bias`, which CLIPModel lacks",
        ),
    ):
        with pytest.raises(UserError, match=message):
            GridTrainer(model, config(**named), pairs, peft_config=given)
    assert main([*flags, "--dtype", "bfloat16"]) == 2
    assert "`dtype` bfloat16 is for the frozen weights under LoRA. Give" in capsys.readouterr().err


def test_an_adapter_without_its_base_its_weights_or_peft_is_one_line(
    clip_folder, pairs, config, tmp_path, monkeypatch
):
    base, out = shutil.copytree(clip_folder, tmp_path / "base"), tmp_path / "out"
    train(base, pairs, None, config(lora_rank=2, max_steps=1))
    tensors = load_file(out / ADAPTER)
    lost = min(tensors)
    save_file({name: value for name, value in tensors.items() if name != lost}, out / ADAPTER)

    def error() -> str:
        with pytest.raises(UserError) as raised:
            DualEncoder.from_pretrained(out)
        assert str(raised.value).startswith(f"`{out}` ") and "\n" not in str(raised.value)
        return str(raised.value)

    assert f"and its base `{base}` do not fit: 1 weights, such as base_model.model" in error()
    shutil.rmtree(base)
    assert f"is an adapter, and its base is needed too. `{base}` is not a local folder, and cannot be" in error()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert error().endswith(
        "is an adapter, which needs peft, which is not installed: `pip install 'repair-hf[peft]'`."
    )
