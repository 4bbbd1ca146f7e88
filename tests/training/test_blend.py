"""`blend`: what is saved lies between the base and what was trained; the training itself is the same."""

from __future__ import annotations

import json

import pytest
import torch
from training_runs import assert_same, losses, weights

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.hub.model_card import model_card

FOUR = dict(max_steps=4, save_strategy="steps", save_steps=2)


def test_the_saved_model_lies_between_the_base_and_the_tuned_one(clip, repaired, fit, tmp_path):
    tuned, blended = fit(repaired, "tuned"), fit(repaired, "blended", blend=0.75)
    assert losses(tmp_path / "tuned") == losses(tmp_path / "blended")
    base, end, found = (weights(each) for each in (clip, tuned.model, blended.model))
    for name, value in found.items():
        torch.testing.assert_close(value, base[name] + 0.75 * (end[name] - base[name]), atol=1e-6, rtol=1e-5)
        assert not value.equal(end[name]), name
    assert_same(found, weights(DualEncoder.from_pretrained(tmp_path / "blended", device="cpu").model))


def test_a_resumed_run_is_blended_once(clip_folder, repaired, fit, tmp_path):
    whole = fit(repaired, "whole", model=str(clip_folder), blend=0.5, **FOUR)
    for step in (2, 4):
        checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
        resumed = fit(repaired, f"from{step}", model=str(clip_folder), checkpoint=checkpoint, blend=0.5, **FOUR)
        assert_same(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize("greater", [True, False])  # by one of them, the best step is not the last
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


def test_the_folder_and_the_card_name_the_blend(clip_folder, repaired, fit, tmp_path):
    fit(repaired, model=str(clip_folder), blend=0.8, max_steps=1)
    assert "| blend | base + 0.8 × (tuned − base) |" in model_card(tmp_path / "out", "me/clip")
    fit(repaired, "whole", model=str(clip_folder), max_steps=1)
    assert "| blend |" not in model_card(tmp_path / "whole", "me/clip")
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())["global_step"] == 1
