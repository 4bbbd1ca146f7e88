"""The trainer on a tiny CLIP: what it logs, moves, saves and keeps, and what must not change a run."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
import yaml
from datasets import DatasetDict
from training_runs import assert_same, curve, losses, weights
from transformers import AutoModel, AutoProcessor, TrainerCallback

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.training import batches
from repair_hf.training.finetune import train
from repair_hf.training.trainer import RepairTrainer


@pytest.mark.parametrize(
    ("named", "terms"),
    [
        ({}, {"loss_global": 1.0}),
        (dict(loss="both"), {"loss_global": 1.0, "loss_grid": 1.0}),
        (dict(paper=True), {"loss_global": 1.0, "loss_grid": 0.5}),
        (dict(paper=True, grid_mean="anchors", grid_weight=0.25), {"loss_global": 1.0, "loss_grid": 0.25}),
    ],
)
def test_every_parameter_moves_and_the_loss_is_the_sum_of_its_logged_terms(
    named, terms, clip, repaired, fit, tmp_path
):
    trainer = fit(repaired, **named)
    for name, value in weights(trainer.model).items():
        assert not torch.equal(value, weights(clip)[name]), f"{name} did not move"
    lines, summary = curve(tmp_path / "out"), trainer.summary
    assert len(lines) == summary["steps"] == 3
    for line in lines:
        assert {name for name in line if name.startswith("loss_")} == set(terms)
        assert line["loss"] == pytest.approx(sum(weight * line[name] for name, weight in terms.items()), abs=1e-4)
        assert all(line[name] > 0 for name in terms) and line["logit_scale"] > 1
    assert summary["loss"] == pytest.approx(np.mean([line["loss"] for line in lines]))
    assert summary["fill"] == trainer.fill.report() and summary["fill"]["with_pairs"] > 0
    assert summary["seconds_per_step"] == pytest.approx(summary["seconds"] / 3)
    drawn = trainer.fill.draw(np.zeros(12, int), trainer.sampler.order(0)[:12])
    encoded = [[len(set(rows.ravel()) - {-1}) for rows in np.split(side, 3)] for side in drawn]
    assert [summary["images_per_step"], summary["texts_per_step"]] == [sum(each) / 3 for each in encoded]
    n_edits = [len(set(side[side >= first])) for side, first in zip(drawn, (12, 24), strict=True)]
    assert summary["edits_encoded"] == {"t2i": n_edits[0], "i2t": n_edits[1]}


def test_what_is_saved_loads_like_any_model_in_float32(pairs, repaired, fit, tmp_path):
    trained = fit(repaired, bf16=True).model
    model, processor = AutoModel.from_pretrained(tmp_path / "out"), AutoProcessor.from_pretrained(tmp_path / "out")
    assert_same(weights(trained), weights(model))
    inputs = processor(text=["a red circle"], images=[pairs.images[0]["image"]], return_tensors="pt")
    torch.testing.assert_close(
        trained(**inputs).logits_per_text.float(), model(**inputs).logits_per_text, rtol=0.02, atol=0
    )


def test_a_seed_decides_the_run(repaired, fit):
    first = weights(fit(repaired, "a", seed=1).model)
    for folder, named in (("b", dict(dataloader_num_workers=2)), ("c", dict(cache_images=False))):
        found = weights(fit(repaired, folder, seed=1, **named).model)
        assert_same(first, found, atol=1e-6 if folder == "c" else 0)
    other = weights(fit(repaired, "d", seed=2).model)
    assert not torch.equal(other["visual_projection.weight"], first["visual_projection.weight"])


def test_a_second_training_goes_on_from_the_weights_and_counts_its_own_steps(repaired, fit, make_trainer, tmp_path):
    how = dict(optim="sgd", save_strategy="steps", save_steps=2)
    trainer = fit(repaired, **how)
    other = make_trainer(repaired, "other", model=deepcopy(trainer.model), **how)
    first = trainer.summary
    for each in (trainer, other):
        each.train()
    assert_same(weights(other.model), weights(trainer.model))
    assert losses(tmp_path / "out") == losses(tmp_path / "other") and len(losses(tmp_path / "out")) == 3
    for name in ("steps", "images_per_step", "texts_per_step", "edits_encoded", "loss"):
        assert trainer.summary[name] == other.summary[name]
    assert trainer.summary["steps"] == 3 and trainer.summary["loss"] != first["loss"]


def test_the_best_model_is_kept_also_with_the_default_of_evaluation_written_out(
    fit, clip, preprocessor, pairs, config
):
    """Here "best" is the lowest, so that it may not be the last. The caller's configuration stays as it was."""
    default = config("default").prepared(has_validation=True)
    assert default.greater_is_better and default.save_total_limit == 1
    how = dict(max_steps=-1, num_train_epochs=2, greater_is_better=False, learning_rate=1e-3)
    how["per_device_train_batch_size"] = 12
    written = fit(None, "written", validation=pairs, eval_strategy="epoch", **how)
    plain = RepairTrainer(clip, made := config("plain", **how), pairs, pairs, preprocessor)
    before = made.to_dict()
    plain.train()
    assert plain.args is not made and plain.args.load_best_model_at_end
    assert made.to_dict() == before and made.eval_strategy == "no" and not made.load_best_model_at_end
    assert_same(weights(plain.model), weights(written.model))
    for trainer in (plain, written):
        found = [line["eval_t2i_MRR"] for line in trainer.state.log_history if "eval_t2i_MRR" in line]
        assert len(found) == 2 and trainer.summary["eval_t2i_MRR"] == min(found)
        assert trainer.evaluate()["eval_t2i_MRR"] == pytest.approx(min(found))


CHUNKS = dict(chunk_size=3)


class SaveAtTwo(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.trainer.save_model(self.folder)


@pytest.mark.parametrize(
    "named",
    [dict(activation_checkpointing=True), *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, CHUNKS))],
)
def test_saving_amid_a_run_in_bfloat16_changes_nothing(named, repaired, fit, make_trainer, tmp_path):
    how = dict(max_steps=4, bf16=True, **named)
    whole = fit(repaired, "whole", **how)
    saver = SaveAtTwo()
    saver.folder = str(tmp_path / "saved")
    saver.trainer = make_trainer(repaired, "out", callbacks=[saver], **how)
    saver.trainer.train()
    assert_same(weights(whole.model), weights(saver.trainer.model))
    assert losses(tmp_path / "whole") == losses(tmp_path / "out")
    assert AutoModel.from_pretrained(tmp_path / "saved").dtype == torch.float32


@pytest.mark.parametrize("chunk_size", [3, 100, None])
def test_chunks_and_groups_of_captions_give_the_gradients_of_the_whole(
    chunk_size, repaired, make_trainer, monkeypatch
):
    def gradients(chunk_size):
        trainer = make_trainer(repaired, per_device_train_batch_size=8, chunk_size=chunk_size)
        batch, sizes = next(iter(trainer.get_train_dataloader())), []
        for tower in (trainer.base.vision_model, trainer.base.text_model):
            tower.register_forward_hook(lambda _, args, out: sizes.append(len(out[1])))
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        return loss.item(), {name: p.grad for name, p in trainer.model.named_parameters()}, sizes

    loss, expected, whole = gradients(None)
    monkeypatch.setattr(batches, "AT_ONCE_ON_CPU", 4)
    found, grads, chunks = gradients(chunk_size)
    assert found == pytest.approx(loss, rel=2e-6)  # float32, summed in another order
    apart = sum((grads[name] - value).square().sum() for name, value in expected.items()).sqrt()
    assert apart < 1e-5 * sum(value.square().sum() for value in expected.values()).sqrt()
    assert max(chunks) <= (chunk_size or 99) and len(chunks) > (2 if chunk_size else 4)
    assert sum(chunks) == (2 if chunk_size else 1) * sum(whole)  # in chunks each twice


@pytest.mark.parametrize(
    "named", [dict(paper=True), *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, dict(loss="both")))]
)
def test_few_records_or_those_of_one_direction_train_too(named, repaired, fit, tmp_path):
    one_way = repaired.filter(lambda row: row["direction"] == "t2i")
    for folder, some in (("one", repaired.select([0])), ("one way", DatasetDict(train=one_way))):
        trainer = fit(some, folder, max_steps=6, **named)
        lines = curve(tmp_path / folder)
        assert all(np.isfinite(line["loss"]) and np.isfinite(line["grad_norm"]) for line in lines)
        assert any(line.get("loss_grid", 1) > 0 for line in lines)
        counts = trainer.summary["fill"]  # the paper's grid is filled from both sides
        assert (counts["beside_text"] > 0 and counts["beside_image"] > 0) == ("paper" in named)


@pytest.mark.parametrize(
    ("named", "still"),
    [({}, []), pytest.param(dict(global_loss="softmax"), ["logit_bias"], marks=pytest.mark.slow)],
)
def test_siglip_trains_with_its_own_loss_and_padding(named, still, siglip_folder, pairs, repaired, fit, tmp_path):
    before = weights(AutoModel.from_pretrained(siglip_folder))
    trainer = fit(repaired, model=str(siglip_folder), **named)
    assert [name for name, value in weights(trainer.model).items() if value.equal(before[name])] == still
    line = curve(tmp_path / "out")[0]
    assert ("logit_bias" in line) == (not still)
    length = trainer.base.config.text_config.max_position_embeddings
    assert next(iter(trainer.get_train_dataloader()))["texts"][0]["input_ids"].shape[1] == length
    assert AutoModel.from_pretrained(tmp_path / "out").config.model_type == "siglip"


def test_bfloat16_trains_float32_weights_near_float32(clip, repaired, fit, one_step, tmp_path):
    one_step(repaired, "float32", loss="both")
    update = one_step(repaired, "bfloat16", bf16=True, loss="both")
    half = weights(fit(model=clip.half(), max_steps=1).model)  # which is made float32
    assert {value.dtype for value in (*update.values(), *half.values())} == {torch.float32}
    one, two = curve(tmp_path / "float32")[0], curve(tmp_path / "bfloat16")[0]
    for name in ("loss_global", "loss_grid"):
        assert two[name] != one[name] and two[name] == pytest.approx(one[name], abs=0.05)


def test_loss_none_is_training_without_records(repaired, one_step, tmp_path):
    assert_same(one_step(repaired, "a", loss="none"), one_step(None, "b"))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_records_are_given_by_folder_and_arguments_may_be_left_out(
    clip_folder, pairs, repaired, records_folder, config, make_trainer, tmp_path, monkeypatch
):
    given = (repaired, str(records_folder), [records_folder])
    one, two, three = (make_trainer(each).fill.report() for each in given)
    assert one == two == three and one["edits_i2t"] == 12
    in_memory = train(str(clip_folder), pairs, DatasetDict(train=repaired), config("in memory", max_steps=1))
    assert in_memory["fill"] == one
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="step of 128 pairs"):  # the default, and these pairs are few
        RepairTrainer(clip_folder, train_dataset=pairs)


def test_the_scale_stays_below_100_and_has_no_weight_decay(clip, make_trainer, tmp_path):
    clip.logit_scale.data.fill_(4.765)  # SigLIP's
    trainer = make_trainer(model=clip, max_steps=2, learning_rate=1e-6, warmup_steps=0)
    trainer.train()
    assert all(line["logit_scale"] == pytest.approx(100, rel=1e-4) for line in curve(tmp_path / "out"))
    clip.head = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))  # as SimCLR's
    decaying = trainer.get_decay_parameter_names(clip)
    assert {"visual_projection.weight", "head.0.weight"} <= set(decaying)
    assert not {"logit_scale", "head.0.bias", "head.1.weight", "text_model.final_layer_norm.weight"} & set(decaying)


def test_near_duplicates_of_a_model_in_memory_are_masked(clip_folder, pairs, config, tmp_path):
    """All pictures are taken for one, so there is nothing to compare, and nothing to learn."""
    encoder = DualEncoder.from_pretrained(clip_folder, device="cpu")
    before = encoder.model.text_projection.weight.clone()
    summary = train(encoder, pairs, config=config(max_steps=1, weight_decay=0.0), near_duplicates=1e-6)
    assert summary["loss"] == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(encoder.model.text_projection.weight, before)
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["near_duplicates"] == 1e-6


def test_evaluation_is_retrieval_on_the_validation_pairs(clip_folder, pairs, pairs_folder, config):
    validation = load_pairs(pairs_folder, split="train")
    encoder = DualEncoder.from_pretrained(clip_folder, device="cpu")
    named = config(max_steps=6, eval_strategy="epoch", save_strategy="epoch")
    summary = train(encoder, pairs, None, named, validation=validation)
    found = evaluate_retrieval(*encoder.embed_pairs(validation), validation.caption_image)
    assert {name: summary[f"eval_{name}"] for name in found} == pytest.approx(found)
    trainer = RepairTrainer(encoder, config("other"), pairs, validation)
    other = Pairs(pairs.images.select(range(4)), pairs.captions.filter(lambda row: row["image_index"] < 4))
    found, expected = trainer.evaluate(other), evaluate_retrieval(*encoder.embed_pairs(other), other.caption_image)
    assert {name: found[f"eval_{name}"] for name in expected} == pytest.approx(expected)


def test_what_is_not_there_raises(clip, make_trainer, config, pairs):
    with pytest.raises(UserError, match="`eval_dataset`"):
        make_trainer().evaluate()
    with pytest.raises(UserError, match="`gradient_accumulation_steps`"):
        make_trainer(gradient_accumulation_steps=4)
    with pytest.raises(UserError, match="no-such-records"):  # before the model is opened
        RepairTrainer("no-such-model", config(), pairs, records="out/no-such-records")
    del clip.logit_scale
    with pytest.raises(UserError, match="`logit_scale`"):
        make_trainer(model=clip)
