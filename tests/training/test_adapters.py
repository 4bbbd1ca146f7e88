"""LoRA adapters and frozen towers: what moves, what is saved, how it resumes, and who reads it."""

from __future__ import annotations

import importlib.util
import json
import shutil
from itertools import product

import numpy as np
import pytest
import torch
import yaml
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from training_runs import assert_same, curve, weights
from transformers import AutoModel

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.runtime.options import UserError

ADAPTER = "adapter_model.safetensors"
PARTS = [
    (dict(), ("vision_model", "visual_projection", "text_model", "text_projection", "logit_")),
    (dict(freeze="image"), ("text_model", "text_projection", "logit_")),
    (dict(freeze="text"), ("vision_model", "visual_projection", "logit_")),
    (dict(lora_rank=2), ("vision_model.encoder", "text_model.encoder")),
    (dict(lora_rank=2, lora_towers="image"), ("vision_model.encoder",)),
    (dict(lora_rank=2, lora_towers="text"), ("text_model.encoder",)),
]


@pytest.mark.parametrize(
    ("kind", "saving", "case"),
    [
        *product(["clip"], [{}], PARTS),
        ("siglip", {}, PARTS[3]),
        ("clip", dict(chunk_size=3), PARTS[1]),
        ("clip", dict(activation_checkpointing=True), PARTS[3]),
    ],
)
def test_all_that_is_trained_gets_a_gradient_and_nothing_else(kind, saving, case, request, repaired, make_trainer):
    part, trained = case
    trainer = make_trainer(repaired, model=str(request.getfixturevalue(f"{kind}_folder")), **part, **saving)
    if "activation_checkpointing" in saving:  # as `Trainer.train` does
        trainer.model.activation_checkpointing_enable()
    trainer.model.train()
    trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader()))).backward()
    assert trainer.args.ddp_find_unused_parameters is False
    for name, value in trainer.base.named_parameters():
        is_trained = name.startswith(trained) and ("lora_rank" not in part or "lora_" in name)
        assert value.requires_grad == (value.grad is not None) == is_trained, name


@pytest.mark.parametrize(("part", "trained"), [PARTS[1], pytest.param(*PARTS[2], marks=pytest.mark.slow), PARTS[3]])
def test_a_part_moves_and_the_saved_folder_is_the_trained_model(
    part, trained, clip_folder, pairs, repaired, fit, tmp_path
):
    encoder, base = (DualEncoder.from_pretrained(clip_folder, device="cpu") for _ in range(2))
    before = weights(base.model)
    summary = fit(repaired, model=encoder, **part).summary
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
    "named", [dict(lora_rank=2, bf16=True), pytest.param(dict(freeze="image"), marks=pytest.mark.slow)]
)
def test_a_resumed_run_of_a_part_ends_where_a_whole_one_does(named, clip_folder, repaired, fit, pairs, tmp_path):
    named = dict(max_steps=4, save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2, **named)
    how = dict(model=str(clip_folder), validation=pairs, load_best_model_at_end=True, metric_for_best_model="t2i_MRR")
    how["greater_is_better"] = False  # so that the best is not the last
    whole = fit(repaired, "whole", **how, **named)
    resumed = fit(repaired, "resumed", checkpoint=str(tmp_path / "whole" / "checkpoint-2"), **how, **named)
    assert_same(weights(whole.model), weights(resumed.model))
    curves = [[line["loss"] for line in curve(tmp_path / folder)] for folder in ("whole", "resumed")]
    assert curves[0] == curves[1] and len(curves[0]) == 4
    best = whole.state.best_metric
    assert whole.summary["eval_t2i_MRR"] == best and whole.evaluate()["eval_t2i_MRR"] == pytest.approx(best)


def test_a_configuration_of_peft_is_trained_recorded_and_resumed(clip_folder, pairs, repaired, fit, tmp_path):
    given = LoraConfig(r=1, target_modules=["q_proj"], modules_to_save=["visual_projection"])
    how = dict(model=str(clip_folder), validation=pairs, max_steps=-1, num_train_epochs=2, greater_is_better=False)
    trainer, out = fit(repaired, peft_config=given, **how), tmp_path / "out"
    found = [line["eval_t2i_MRR"] for line in trainer.state.log_history if "eval_t2i_MRR" in line]
    assert trainer.evaluate()["eval_t2i_MRR"] == pytest.approx(min(found)) and len(found) == 2
    options = yaml.safe_load((out / "config.yaml").read_text())
    assert options["peft_config"]["modules_to_save"] == ["visual_projection"]
    assert options["model_digest"] == DualEncoder.from_pretrained(clip_folder, device="cpu").digest
    saved, moved = DualEncoder.from_pretrained(out, device="cpu"), trainer.base.visual_projection
    assert torch.equal(saved.model.visual_projection.weight, moved.modules_to_save["default"].weight)
    with pytest.raises(UserError, match="of another run: .*peft_config"):
        fit(repaired, peft_config=LoraConfig(r=1, target_modules=["k_proj"]), **how)
    with pytest.raises(UserError, match="has an adapter"):
        fit(repaired, "other", model=trainer.base)
    fit(repaired, "second", model=str(out), lora_rank=1)  # an adapter on an adapter
    second = DualEncoder.from_pretrained(tmp_path / "second", device="cpu")
    assert second.digest != saved.digest and not any("lora" in name for name in second.model.state_dict())


def test_what_cannot_be_trained_in_part_is_an_error(clip_folder, make_trainer):
    for model, named, message in (
        (None, dict(lora_rank=2), "model has no name"),
        (clip_folder, dict(peft_config=LoraConfig(target_modules=["no_such"])), "`peft_config` does not fit CLIP"),
        (clip_folder, dict(peft_config={"r": 2}), "`peft_config`.*dict"),
        (clip_folder, dict(freeze="text", peft_config=LoraConfig()), "`peft_config`.*`freeze`"),
        (clip_folder, dict(global_loss="sigmoid"), "`global_loss`.*CLIPModel"),
    ):
        with pytest.raises(UserError, match=message):
            make_trainer(model=model if model is None else str(model), **named)


def test_an_adapter_without_its_base_its_weights_or_peft_is_an_error(clip_folder, fit, tmp_path, monkeypatch):
    base, out = shutil.copytree(clip_folder, tmp_path / "base"), tmp_path / "out"
    fit(model=str(base), lora_rank=2, max_steps=1)
    tensors = load_file(out / ADAPTER)
    lost = min(tensors)
    save_file({name: value for name, value in tensors.items() if name != lost}, out / ADAPTER)

    def error() -> str:
        with pytest.raises(UserError) as raised:
            DualEncoder.from_pretrained(out)
        assert str(raised.value).startswith(f"`{out}` ") and "\n" not in str(raised.value)
        return str(raised.value)

    assert f"`{base}` do not fit: 1 weights" in error()
    shutil.rmtree(base)
    assert f"`{base}` is not a local folder" in error()
    settings = json.loads((out / "adapter_config.json").read_text())
    (out / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": str(out)}))
    assert "is an adapter that names itself as its base" in error()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (out / "adapter_config.json").write_text(json.dumps(settings))
    assert "peft, which is not installed" in error()


def test_an_adapter_finds_its_base_from_any_folder(clip_folder, fit, tmp_path, monkeypatch):
    shutil.copytree(clip_folder, tmp_path / "base")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    fit(model="../base", lora_rank=2, max_steps=1)
    monkeypatch.chdir(tmp_path)
    assert DualEncoder.from_pretrained(tmp_path / "out", device="cpu").digest


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_frozen_weights_of_two_bytes_keep_the_scale(dtype, clip, preprocessor, pairs, repaired, fit, tmp_path):
    """A scale of 100 would be 98.9 in bfloat16, and 100 again where the adapter is loaded."""
    clip.logit_scale.data.fill_(4.6052)
    clip.save_pretrained(tmp_path / "base")
    preprocessor.save_pretrained(tmp_path / "base")
    encoder = DualEncoder.from_pretrained(tmp_path / "base", dtype=dtype, device="cpu")
    assert encoder.model.visual_projection.weight.dtype == getattr(torch, dtype)
    if dtype == "bfloat16":
        vectors = encoder.embed_pairs(pairs)
        for side, exact in zip(vectors, DualEncoder(clip, preprocessor, device="cpu").embed_pairs(pairs), strict=True):
            np.testing.assert_allclose(side, exact, atol=0.05)
        fit(repaired, model=encoder, lora_rank=2, bf16=True, max_steps=1)
        assert curve(tmp_path / "out")[0]["logit_scale"] == pytest.approx(100, abs=0.01)
    assert encoder.model.logit_scale.item() == pytest.approx(4.6052, abs=1e-6)
