"""A whole training: what it saves, how seed and resume decide its end, and what it evaluates."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from training_runs import assert_same, curve, history, weights
from transformers import AutoModel, AutoProcessor, TrainerCallback

from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.finetune import train
from repair_hf.training.objectives import LocalGrids


@pytest.mark.parametrize("bf16", [False, True])
def test_what_is_saved_loads_like_any_model_in_float32(bf16, encoder, pairs, repaired, config, tmp_path):
    train(encoder, pairs, repaired, config(bf16=bf16))
    model, processor = AutoModel.from_pretrained(tmp_path / "out"), AutoProcessor.from_pretrained(tmp_path / "out")
    assert_same(weights(encoder.model), weights(model))
    inputs = processor(text=["a red circle"], images=[pairs.images[0]["image"]], return_tensors="pt")
    given_back = encoder.model(**inputs).logits_per_text
    assert given_back.dtype == torch.float32 and given_back.shape == (1, 1)
    torch.testing.assert_close(given_back, model(**inputs).logits_per_text, rtol=1e-5, atol=0)  # bfloat16 errs by 1e-3


def test_a_seed_decides_the_run(repaired, fit):
    rule = dict(own_failures_share=0.5, negatives="grid", slot1="mixed")
    first, _ = fit(repaired, "a", **rule, seed=1)
    for folder, atol, named in (
        ("b", 0, {}),
        ("c", 0, dict(dataloader_num_workers=2)),
        ("d", 1e-6, dict(cache_images=False)),
    ):
        assert_same(first, fit(repaired, folder, **rule, seed=1, **named)[0], atol=atol)
    other, _ = fit(repaired, "e", **rule, seed=2)
    assert not torch.equal(other["visual_projection.weight"], first["visual_projection.weight"])


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(repaired, fit, tmp_path):
    often = dict(max_steps=10, own_failures_share=0.5, negatives="grid", slot1="mixed")
    often |= dict(save_strategy="steps", save_steps=2, logging_steps=3)
    whole, expected = fit(repaired, "whole", **often)
    for stop in (4, 6, 8, 10):  # within the first epoch of 6 steps, between the two, within the second, at the end
        checkpoint = tmp_path / "whole" / f"checkpoint-{stop}"
        resumed, found = fit(repaired, f"from{stop}", resume_from_checkpoint=str(checkpoint), **often)
        assert_same(whole, resumed)
        losses = [[line["loss"] for line in curve(tmp_path / folder)] for folder in (f"from{stop}", "whole")]
        assert losses[0] == losses[1] and len(losses[0]) > 5
        for name in ("steps", "images_per_step", "texts_per_step", "loss"):
            assert found[name] == pytest.approx(expected[name], rel=1e-6)
        assert found["seconds"] > json.loads((checkpoint / "repair_spent.json").read_text())["seconds"] > 0


def test_last_checkpoint_is_found_and_none_starts_anew(encoder, pairs, config, tmp_path):
    named = dict(save_strategy="steps", save_steps=2, resume_from_checkpoint="last")
    train(encoder, pairs, None, config(**named))
    whole, trained = curve(tmp_path / "out"), weights(encoder.model)
    shutil.rmtree(tmp_path / "out" / "checkpoint-3")  # as if it had been killed in the third step
    train(encoder, pairs, None, config(**named))
    assert_same(trained, weights(encoder.model))
    assert curve(tmp_path / "out") == whole


@pytest.mark.parametrize("other", [dict(seed=1), dict(max_steps=4), dict(records=True), dict(objective=LocalGrids())])
def test_the_last_checkpoint_of_another_run_is_not_resumed(other, encoder, pairs, repaired, config):
    named = dict(save_strategy="steps", save_steps=2, max_steps=2)
    train(encoder, pairs, None, config(**named))
    records, objective = repaired if other.get("records") else None, other.get("objective")
    key = "rows" if records else next(iter(other))
    other = {name: value for name, value in other.items() if name in ("seed", "max_steps")}
    message = rf"checkpoint-2 is of another run: .*{key} \(.*set `resume_from_checkpoint` to this"
    with pytest.raises(UserError, match=message):
        train(encoder, pairs, records, config(**(named | other)), objective=objective)
    found = train(encoder, pairs, records, config(**(named | other), resume_from_checkpoint=None), objective=objective)
    assert found["steps"] == other.get("max_steps", 2)


def test_the_trainer_resumes_as_the_command_does(repaired, fit, make_trainer, tmp_path):
    """And takes callbacks, as any Trainer."""

    class StopAtTwo(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step == 2

    often = dict(max_steps=4, save_strategy="steps", save_steps=1, seed=0)  # `make_trainer` draws its grids by seed 0
    assert fit(repaired, callbacks=[StopAtTwo()], **often)[1]["steps"] == 2
    trainer = make_trainer(repaired, **often)
    trainer.train(resume_from_checkpoint=True)
    spent = json.loads((tmp_path / "out" / "checkpoint-2" / "repair_spent.json").read_text())
    assert trainer.loop.first_step == 2 and trainer.spent().images > spent["images"] > 0
    trainer = make_trainer(repaired, **often, resume_from_checkpoint=None)
    trainer.train()
    assert trainer.loop.first_step == 0


def test_evaluation_is_retrieval_on_the_validation_pairs(encoder, pairs, pairs_folder, config, tmp_path):
    validation = load_pairs(pairs_folder, split="train")
    summary = train(encoder, pairs, None, config(max_steps=6, eval_strategy="epoch"), validation=validation)
    images = encoder.embed_images(validation.images["image"])
    texts = encoder.embed_texts(validation.captions["caption"])
    for name, value in evaluate_retrieval(images, texts, validation.caption_image).items():
        assert summary[f"eval_{name}"] == pytest.approx(value)
    assert sum("eval_t2i_MRR" in line for line in history(tmp_path / "out")) == 1


def test_the_best_model_comes_with_its_own_metrics(encoder, pairs, config, tmp_path):
    """Here "best" is the lowest MRR, so that it is not the last for certain."""
    best = dict(load_best_model_at_end=True, metric_for_best_model="t2i_MRR", greater_is_better=False)
    often = dict(eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1)
    summary = train(encoder, pairs, None, config(max_steps=4, **best, **often), validation=pairs)
    found = evaluate_retrieval(*encoder.embed_pairs(pairs), pairs.caption_image)
    each = [line["eval_t2i_MRR"] for line in history(tmp_path / "out") if "eval_t2i_MRR" in line]
    assert len(each) == 4 and summary["eval_t2i_MRR"] == pytest.approx(found["t2i_MRR"]) == min(each)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (dict(resume_from_checkpoint="nowhere"), "`resume_from_checkpoint` names nowhere, which is not a whole"),
        (dict(batches="neighbours"), "together with their false positives, which only records name"),
        (dict(gradient_accumulation_steps=4), "step of 16 pairs needs as many different images, and there are 12"),
    ],
)
def test_what_is_not_there_raises(named, message, encoder, pairs, config):
    with pytest.raises(UserError, match=message):
        train(encoder, pairs, None, config(**named))
