"""Several learning rates in one folder, and early stopping: what is kept, and what is not done twice."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from training_runs import assert_same, history, losses, weights

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.runtime.options import UserError
from repair_hf.training import finetune
from repair_hf.training.finetune import train


@pytest.fixture
def flags(pairs_folder, clip_folder, tmp_path) -> list[str]:
    words = f"train --pairs {pairs_folder} --split all --validation-split all --model {clip_folder} --use-cpu"
    words += f" --output {tmp_path / 'out'} --per-device-train-batch-size 4 --max-steps 6 --logging-steps 1"
    return [*words.split(), "--learning-rates", "1e-2", "1e-7"]


@pytest.fixture
def begun(monkeypatch) -> list[float]:
    """The learning rates of the trainings that take steps."""
    rates, before = [], finetune.RepairTrainer.train

    def noted(self, *args, **named):
        rates.append(self.args.learning_rate)
        return before(self, *args, **named)

    monkeypatch.setattr(finetune.RepairTrainer, "train", noted)
    return rates


def test_the_best_of_several_learning_rates_is_kept(flags, begun, pairs, clip_folder, tmp_path, capsys):
    assert main(flags) == 0 and begun == [1e-2, 1e-7]
    printed, out = capsys.readouterr().out, tmp_path / "out"
    found = evaluate_retrieval(*DualEncoder.from_pretrained(out, device="cpu").embed_pairs(pairs), pairs.caption_image)
    base = DualEncoder.from_pretrained(clip_folder, device="cpu")
    summary = finetune.read_json(out / "summary.json")
    recalls = {rate: sum(both) for rate, both in summary["learning_rates"].items()}
    best = max(recalls, key=recalls.get)
    assert {*recalls} == {"0.01", "1e-07"} and summary["learning_rate"] == float(best)
    assert recalls["0.01"] != recalls["1e-07"]
    assert found["i2t_R@1"] + found["t2i_R@1"] == pytest.approx(recalls[best])
    assert f"rate    {best:8} R@1" in printed and printed.count("<- kept") == 1
    assert not (out / "rates").exists() and not list(out.glob("checkpoint-*"))
    assert base.digest != DualEncoder.from_pretrained(out, device="cpu").digest
    assert main(flags) == 0 and begun == [1e-2, 1e-7]  # nothing is trained again
    assert main([*flags, "1e-3"]) == 2 and len(begun) == 2
    assert "finished result with other options: learning_rates" in capsys.readouterr().err


def test_what_was_trained_before_a_kill_is_not_trained_again(flags, begun, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    assert main([*flags, "--output", str(whole)]) == 0

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(finetune.shutil, "copy2", killed)
        assert main(flags) == 130
    begun.clear()
    assert not (tmp_path / "out" / "summary.json").exists()
    shutil.rmtree(tmp_path / "out" / "rates" / "1e-07")
    assert main(flags) == 0 and begun == [1e-7]
    assert losses(whole) == losses(tmp_path / "out")
    for name in ("model.safetensors", "config.json"):
        assert (whole / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_a_dry_run_names_every_training_and_takes_none_of_them(flags, begun, tmp_path, capsys):
    assert main([*flags, "--dry-run"]) == 0
    *_, first, second, both = capsys.readouterr().out.splitlines()
    assert first.startswith("rate    0.01     6 steps, 0:0") and first.endswith(f"-> {tmp_path / 'out/rates/0.01'}")
    assert second.startswith("rate    1e-07    6 steps, 0:0") and second.endswith(f"-> {tmp_path / 'out/rates/1e-07'}")
    assert "2 trainings, 0:0" in both and both.endswith(f"the best one   -> {tmp_path / 'out'}")
    assert not begun and not (tmp_path / "out").exists()


def test_several_learning_rates_need_validation_and_a_model_by_name(clip, pairs, clip_folder, config, preprocessor):
    encoder = DualEncoder(clip, preprocessor, device="cpu")
    for model, validation in ((str(clip_folder), None), (encoder, pairs)):
        with pytest.raises(UserError, match="`learning_rates` needs validation pairs, and a model"):
            train(model, pairs, config=config(), validation=validation, learning_rates=[1e-3])


@pytest.mark.parametrize("resumes", [False, True])
def test_a_training_stops_when_it_gets_no_better(resumes, fit, pairs, tmp_path):
    """Here "better" is a lower MRR, so that it soon gets none."""
    how = dict(max_steps=-1, num_train_epochs=12, learning_rate=1e-3, greater_is_better=False, validation=pairs)
    how |= dict(save_strategy="epoch", eval_strategy="epoch", early_stopping_patience=2)
    trainer = fit(None, **how)
    found = [line["eval_t2i_MRR"] for line in history(tmp_path / "out") if "eval_t2i_MRR" in line]
    best = int(np.argmin(found))
    assert len(found) == best + 1 + 2 < 12
    if resumes:  # from an epoch without a better one
        (tmp_path / "out" / "summary.json").unlink()
        shutil.rmtree(tmp_path / "out" / f"checkpoint-{trainer.state.global_step}")
        again = fit(None, **how)
        assert_same(weights(trainer.model), weights(again.model))
        assert again.state.global_step == trainer.state.global_step


def test_early_stopping_needs_evaluations(make_trainer):
    with pytest.raises(UserError, match="`early_stopping_patience` needs `eval_strategy`"):
        make_trainer(early_stopping_patience=1)
