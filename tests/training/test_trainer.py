"""The trainer on a tiny CLIP: what it logs and moves, and how a split step differs from a whole one."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from training_runs import assert_same, curve, weights
from transformers import AutoModel, SiglipConfig, SiglipModel, SiglipTextConfig, SiglipVisionConfig

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.finetune import train
from repair_hf.training.grids import Grids
from repair_hf.training.sampling import OneCaptionPerImage
from repair_hf.training.trainer import GridTrainer


def test_every_parameter_moves_and_the_loss_is_logged_in_parts(encoder, pairs, repaired, config, tmp_path):
    before = weights(encoder.model)
    summary = train(encoder, pairs, repaired, config(grid_weight=0.25, negatives="grid"))
    for name, value in weights(encoder.model).items():
        assert not torch.equal(value, before[name]), f"{name} did not move"
    lines = curve(tmp_path / "out")
    assert len(lines) == summary["steps"] == 3
    for line in lines:
        assert line["loss"] == pytest.approx(line["loss_global"] + 0.25 * line["loss_grid"], abs=1e-4)
        assert line["loss_grid"] > 0 and line["logit_scale"] > 1
    assert summary["grids"]["anchors"] == 24 and summary["grids"]["grids_3"] > 0
    assert summary["seconds_per_step"] == pytest.approx(summary["seconds"] / 3)


def test_known_matches_can_count_as_negatives_as_in_the_paper(pairs, repaired, fit, tmp_path):
    """The false positive image of a caption, and the false positive caption of its image, belong together."""
    names = list(pairs.images["image_id"])
    next_name = dict(zip(names, names[1:] + names[:1], strict=True))

    def confuse(row):
        image = next_name[row["q_id"].split("#")[0]]
        return {"fp_id": f"{image}#0" if row["direction"] == "i2t" else image}

    losses = {}
    for choice in ("masked", "negative"):
        rule = dict(own_failures_share=0.5, negatives="grid", known_matches=choice)
        _, summary = fit(repaired.map(confuse), choice, max_steps=1, **rule)
        losses[choice] = curve(tmp_path / choice)[0]["loss_grid"]
    assert summary["grids"]["cells_known"] > 0
    assert losses["negative"] > losses["masked"]  # more rivals in the same softmax


def test_accumulation_leaves_the_grid_loss_and_costs_the_global_one_negatives(pairs, repaired, one_step, tmp_path):
    seed = seed_of_a_step_with_more_grids_in_one_half(pairs, repaired)
    rule = dict(grids="paper")
    cuts = {"whole": dict(per_device_train_batch_size=8) | rule, "cut": dict(gradient_accumulation_steps=2) | rule}
    grid_part = {}
    for cut, named in cuts.items():
        without, with_grids = (
            one_step(repaired, f"{cut}{weight}", grid_weight=weight, seed=seed, **named) for weight in (0.0, 1.0)
        )
        grid_part[cut] = {name: with_grids[name] - value for name, value in without.items()}
    assert_same(grid_part["whole"], grid_part["cut"], rtol=1e-3, atol=1e-5)
    whole, cut = (curve(tmp_path / f"{name}1.0")[0] for name in cuts)
    assert cut["loss_grid"] == pytest.approx(whole["loss_grid"], abs=1e-5)
    assert cut["loss_global"] < whole["loss_global"] - 0.3  # about ln 4 against ln 8: three negatives against seven


def seed_of_a_step_with_more_grids_in_one_half(pairs, records) -> int:
    """Where both halves have the same number of grids, the mean of their means is the mean of the whole anyhow."""
    drawn = Grids(pairs, records, grids="paper").draw(np.zeros(24, int), np.arange(24))
    has_grid = (drawn["grid_images"] >= 0).sum(1) >= 2
    for seed in range(100):
        step = [anchor for _, anchor in OneCaptionPerImage(pairs.caption_image, 8, seed)][:8]
        if has_grid[step[:4]].sum() != has_grid[step[4:]].sum():
            return seed
    raise AssertionError("no such step")


def test_each_distinct_item_of_a_batch_is_encoded_once(clip, repaired, make_trainer):
    trainer = make_trainer(repaired, per_device_train_batch_size=8)
    batch = next(iter(trainer.get_train_dataloader()))
    seen = {}
    for tower, kind in ((clip.vision_model, "images"), (clip.text_model, "texts")):
        tower.register_forward_hook(lambda _, args, out, kind=kind: seen.update({kind: len(out[1])}))
    trainer.compute_loss(clip, batch).backward()
    for kind in ("images", "texts"):
        rows = torch.cat([batch[f"anchor_{kind}"], batch[f"grid_{kind}"].flatten()])
        assert set(rows.tolist()) - {-1} == set(range(seen[kind]))
        assert seen[kind] < 8 + int((batch[f"grid_{kind}"] >= 0).sum())


@pytest.mark.parametrize("chunk_size", [3, 5, 100])
def test_a_batch_in_chunks_has_the_loss_and_the_gradients_of_the_whole(chunk_size, clip, repaired, make_trainer):
    def gradients(chunk_size):
        named = dict(per_device_train_batch_size=8, chunk_size=chunk_size, grid_weight=1.0)
        trainer = make_trainer(repaired, model=deepcopy(clip), **named)
        batch = next(iter(trainer.get_train_dataloader()))
        sizes = []
        trainer.model.vision_model.register_forward_hook(lambda _, args, out: sizes.append(len(out[1])))
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        return loss.item(), {name: p.grad for name, p in trainer.model.named_parameters()}, sizes, len(batch["texts"])

    loss, expected, whole, _ = gradients(None)
    found, grads, chunks, n_groups = gradients(chunk_size)
    assert found == pytest.approx(loss, rel=2e-6)  # float32, summed in another order
    apart = sum((grads[name] - value).square().sum() for name, value in expected.items()).sqrt()
    assert apart < 1e-5 * sum(value.square().sum() for value in expected.values()).sqrt()
    assert max(chunks) <= chunk_size and sum(chunks) == 2 * sum(whole)  # each twice
    assert n_groups == len(chunks) // 2


def test_batches_of_neighbours_encode_fewer_items(repaired, make_trainer):
    def items(batches):
        return sum(len(batch["pixels"]) for batch in make_trainer(repaired, batches=batches).get_train_dataloader())

    assert items("neighbours") < items("random")


def test_hard_negatives_alone_leave_what_stands_opposite_unencoded(pairs, repaired, fit):
    _, as_it_is = fit(repaired, "alone", negatives="alone")
    _, with_all = fit(repaired, "all", negatives="alone", data=Grids(pairs, repaired, seed=42, negatives="grid"))
    assert as_it_is["loss"] == pytest.approx(with_all["loss"], rel=1e-5)
    for name in ("images_per_step", "texts_per_step"):
        assert as_it_is[name] < with_all[name]


def test_a_step_without_any_grid_trains_on_the_pairs(encoder, pairs, repaired, config, tmp_path):
    train(encoder, pairs, repaired.select([0]), config(max_steps=6, grids="paper"))
    lines = curve(tmp_path / "out")
    assert [line["loss_grid"] > 0 for line in lines].count(True) == 1
    assert all(np.isfinite(line["loss"]) and np.isfinite(line["grad_norm"]) for line in lines)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_records_of_one_direction_make_two_by_two_grids(direction, encoder, pairs, repaired, config, tmp_path):
    one_way = repaired.filter(lambda row: row["direction"] == direction)
    summary = train(encoder, pairs, one_way, config(max_steps=6, slot1="mixed", grids="paper"))
    assert summary["grids"]["grids_3"] == 0 and summary["grids"]["grids_2"] == 12
    losses = [line["loss_grid"] for line in curve(tmp_path / "out")]  # 0 where no anchor of a batch has a record
    assert max(losses) > 0.5 and all(0 <= loss < 10 for loss in losses)


@pytest.mark.parametrize(("named", "still"), [({}, []), (dict(global_loss="softmax"), ["logit_bias"])])
def test_siglip_trains_with_its_own_padding_and_loss(named, still, pairs, repaired, clip_processor, config, tmp_path):
    small = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    text = SiglipTextConfig(vocab_size=len(clip_processor.tokenizer), max_position_embeddings=32, **small)
    vision = SiglipVisionConfig(image_size=32, patch_size=16, **small)
    model = SiglipModel(SiglipConfig(text_config=text.to_dict(), vision_config=vision.to_dict()))
    before = weights(model)
    train(
        DualEncoder(model, Preprocessor(clip_processor, model.config), device="cpu"), pairs, repaired, config(**named)
    )
    assert [name for name, value in weights(model).items() if value.equal(before[name])] == still
    assert ("logit_bias" in curve(tmp_path / "out")[0]) == (not still)
    assert AutoModel.from_pretrained(tmp_path / "out").config.model_type == "siglip"


def test_bfloat16_trains_near_float32(repaired, one_step, tmp_path):
    one_step(repaired, "float32", negatives="grid")
    update = one_step(repaired, "bfloat16", bf16=True, negatives="grid")
    assert {value.dtype for value in update.values()} == {torch.float32}  # the weights that are trained
    one, two = curve(tmp_path / "float32")[0], curve(tmp_path / "bfloat16")[0]
    for name in ("loss_global", "loss_grid"):
        assert two[name] != one[name] and two[name] == pytest.approx(one[name], abs=0.05)


def test_negatives_none_is_training_without_records(repaired, one_step, tmp_path):
    assert_same(one_step(repaired, "a", negatives="none"), one_step(None, "b"))
    assert "loss_grid" not in curve(tmp_path / "a")[0]


def test_the_scale_stays_below_100_and_has_no_weight_decay(encoder, pairs, config, make_trainer, tmp_path, caplog):
    encoder.model.logit_scale.data.fill_(4.765)  # SigLIP's
    train(encoder, pairs, None, config(max_steps=4, learning_rate=0.5, weight_decay=0.5, warmup_steps=0))
    assert "logit scale is 117.3; from the first step on it is held at 100" in caplog.text
    assert max(line["logit_scale"] for line in curve(tmp_path / "out")) <= 100.001
    trainer = make_trainer()
    encoder.model.head = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))  # as SimCLR's
    decaying = trainer.get_decay_parameter_names(encoder.model)
    assert {"visual_projection.weight", "head.0.weight"} <= set(decaying)
    assert not {"logit_scale", "head.0.bias", "head.1.weight", "text_model.final_layer_norm.weight"} & set(decaying)


def test_half_precision_weights_are_trained_in_float32(encoder, pairs, config):
    encoder.model.half()
    train(encoder, pairs, None, config(max_steps=1))
    assert {value.dtype for value in weights(encoder.model).values()} == {torch.float32}


def test_other_pairs_are_embedded_anew(clip, pairs, preprocessor, config):
    trainer = GridTrainer(clip, config(), pairs, pairs, preprocessor)
    other = Pairs(pairs.images.select(range(4)), pairs.captions.filter(lambda row: row["image_index"] < 4))
    expected = trainer.evaluate(other)
    trainer.eval_dataset = other
    assert trainer.evaluate() == expected


def test_what_is_not_there_raises(clip, make_trainer):
    with pytest.raises(UserError, match="There is nothing to evaluate on"):
        make_trainer().evaluate()
    del clip.logit_scale
    with pytest.raises(UserError, match="CLIPModel has no `logit_scale`"):
        make_trainer()
