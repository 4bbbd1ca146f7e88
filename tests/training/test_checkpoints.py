"""A resumed run ends where an uninterrupted one does. No damaged checkpoint, or one of another run, is resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_runs import assert_same, curve, losses, weights
from transformers import TrainerState

from repair_hf.runtime.options import UserError
from repair_hf.training.batches import OneCaptionPerImage
from repair_hf.training.checkpoints import RunOptions, find_checkpoint, options_of
from repair_hf.training.loop import LoopCallback
from repair_hf.training.step import PairObjective

STATE = "trainer_state.json"  # which the Trainer writes last
RUN = {"seed": 1}
OFTEN = dict(save_strategy="steps", save_steps=2)


SLOW = [
    pytest.param(*each, marks=pytest.mark.slow)
    for each in (
        ({}, (4, 8)),
        (dict(gradient_accumulation_steps=2), (4,)),
        (dict(bf16=True, chunk_size=3), (4,)),
    )
]


@pytest.mark.parametrize(
    ("named", "stops"),  # within the first epoch of 6 steps, between the two, within the second, at the end
    [({}, (6, 10)), *SLOW],
)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(named, stops, repaired, fit, tmp_path):
    often = dict(max_steps=10, logging_steps=3, **OFTEN, **named)
    whole, out = fit(repaired, "whole", **often), tmp_path / "whole"
    for stop in stops:
        resumed = fit(repaired, f"from{stop}", checkpoint=str(out / f"checkpoint-{stop}"), **often)
        assert_same(weights(whole.model), weights(resumed.model))
        assert losses(tmp_path / f"from{stop}") == losses(out)
        for name in ("steps", "images_per_step", "texts_per_step", "loss", "edits_encoded"):
            assert resumed.summary[name] == pytest.approx(whole.summary[name], rel=1e-6)
        assert resumed.summary["seconds"] > max(line["seconds"] for line in curve(out) if line["step"] <= stop) > 0


def test_the_last_whole_checkpoint_is_resumed_and_a_damaged_one_left_aside(repaired, fit, tmp_path, caplog):
    often = dict(max_steps=4, **OFTEN)
    whole, out = fit(repaired, **often), tmp_path / "out"
    lines = losses(out)
    (out / "checkpoint-4" / STATE).unlink()
    resumed = fit(repaired, checkpoint=True, **often)
    assert "checkpoint-4; training resumes from checkpoint-2" in caplog.text
    assert_same(weights(whole.model), weights(resumed.model))
    assert losses(out) == lines
    anew = fit(repaired, checkpoint=False, **often)
    assert_same(weights(whole.model), weights(anew.model))
    assert losses(out) == lines


def test_the_last_checkpoint_of_another_run_is_an_error(repaired, pairs, fit):
    often = dict(max_steps=2, **OFTEN)
    fit(repaired, **often)
    fewer = replace(pairs, captions=pairs.captions.select(range(23)))
    for name, records, named in (
        ("seed", repaired, dict(seed=1)),
        ("max_steps", repaired, dict(max_steps=4)),
        ("objective", repaired, dict(objective=PairObjective())),
        ("records_digest", repaired.select(range(20)), {}),
        ("pairs_fingerprint", repaired, dict(train_pairs=fewer)),
    ):
        with pytest.raises(UserError, match=rf"checkpoint-2 is of another run: .*{name}"):
            fit(records, **(often | named))


@pytest.fixture
def folder(tmp_path) -> Path:
    for steps in ("2", "9", "10", "twelve"):
        path = tmp_path / f"checkpoint-{steps}"
        path.mkdir()
        TrainerState(stateful_callbacks=[RunOptions(RUN)]).save_to_json(path / STATE)
    return tmp_path


WRONG = [
    "",
    "[" * 100_000,
    "[1]",
    "{}",
    '{"stateful_callbacks": [1]}',
    '{"stateful_callbacks": {"RunOptions": {"args": 1}}}',
]


@pytest.mark.parametrize("content", [None, *WRONG], ids=range(7))
def test_a_checkpoint_without_a_whole_state_is_left_aside(folder, content, caplog):
    newest = folder / "checkpoint-10"
    assert find_checkpoint("last", str(folder), RUN) == newest and not caplog.text
    if content is None:
        (newest / STATE).unlink()
    else:
        (newest / STATE).write_text(content)
    assert find_checkpoint("last", str(folder), RUN) == folder / "checkpoint-9"
    assert "checkpoint-10; training resumes from checkpoint-9" in caplog.text
    with pytest.raises(UserError, match="`resume_from_checkpoint` names .*checkpoint-10"):
        find_checkpoint(str(newest), str(folder), RUN)


def test_a_named_checkpoint_may_be_of_another_run_and_without_checkpoints_training_starts_anew(folder):
    assert find_checkpoint(str(folder / "checkpoint-2"), str(folder), {}) == folder / "checkpoint-2"
    with pytest.raises(UserError, match="checkpoint-10 is of another run: seed"):
        find_checkpoint("last", str(folder), {"seed": 2})
    assert find_checkpoint("last", "nowhere", RUN) is find_checkpoint(None, str(folder), RUN) is None
    assert options_of(Path("nowhere")) is None


@pytest.mark.parametrize("strategy, saves, evaluates", [("steps", 1, 0), ("best", 0, 1), ("steps", 0, 1)])
def test_a_line_of_the_curve_ends_where_a_checkpoint_may_be_written(strategy, saves, evaluates):
    control = SimpleNamespace(should_log=False, should_save=saves, should_evaluate=evaluates)
    LoopCallback(None, bounds_scale=False).on_step_end(SimpleNamespace(save_strategy=strategy), None, control)
    assert bool(control.should_log) == bool(saves or (strategy == "best" and evaluates))


def test_a_resume_begins_in_the_epoch_of_its_steps():
    """In several processes accelerate does not reach the sampler."""
    sampler = OneCaptionPerImage(np.arange(12) // 2, 4)  # 3 steps an epoch
    for step, epoch in ((0, 0), (2, 0), (3, 1), (7, 2)):
        state = SimpleNamespace(global_step=step)
        LoopCallback(SimpleNamespace(sampler=sampler), bounds_scale=False).on_epoch_begin(None, state, None)
        assert sampler.epoch == epoch


@pytest.mark.parametrize("rate", [1e4, 1e30])
def test_a_training_that_diverges_saves_no_model_and_keeps_finite_checkpoints(rate, repaired, fit, tmp_path):
    with pytest.raises(UserError, match=r"^Step \d: .* not finite .* learning rate .* logit scale .*Lower"):
        fit(repaired, learning_rate=rate, max_steps=6, save_strategy="steps", save_steps=1, warmup_steps=0)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    kept = [load_file(folder / "model.safetensors") for folder in (tmp_path / "out").glob("checkpoint-*")]
    assert kept and all(value.isfinite().all() for saved in kept for value in saved.values())


@pytest.mark.parametrize("place", ["loss", "gradient"])
def test_the_first_step_that_is_not_finite_ends_a_training(place, repaired, fit, tmp_path):
    class Broken(PairObjective):
        def terms(self, step):
            terms, matrix = super().terms(step), step.matrix
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 3:
                zero = (matrix - matrix.detach()).sum()
                terms["loss_global"] = terms["loss_global"] + (zero.abs().sqrt() if place == "gradient" else torch.nan)
            return terms

    with pytest.raises(UserError, match=r"^Step 3: .* learning rate .*Lower `learning_rate`"):
        fit(repaired, objective=Broken(), max_steps=5, save_strategy="steps", save_steps=2)
    assert (tmp_path / "out" / "checkpoint-2").is_dir() and not (tmp_path / "out" / "model.safetensors").exists()
