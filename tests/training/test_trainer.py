"""The trainer on a tiny CLIP: what it logs, moves, saves and resumes, and how a cut step differs from a whole one."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoProcessor,
    SiglipConfig,
    SiglipModel,
    SiglipTextConfig,
    SiglipVisionConfig,
    TrainerCallback,
)

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.collation import DecodedImages, GridCollator
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train
from repair_hf.training.grids import Grids
from repair_hf.training.losses import ContrastiveLoss
from repair_hf.training.sampling import OneCaptionPerImage
from repair_hf.training.trainer import RepairTrainer


@pytest.fixture(scope="session")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")  # 12 images, 24 captions


@pytest.fixture
def config(tmp_path):
    """Make a configuration; what a test does not name is chosen to make steps comparable."""

    def make(folder: str = "out", **named) -> RepairConfig:
        plain = dict(per_device_train_batch_size=4, max_steps=3, learning_rate=1e-2, logging_steps=1, use_cpu=True)
        return RepairConfig(output_dir=str(tmp_path / folder), cache_folder=str(tmp_path / "cache"), **(plain | named))

    return make


@pytest.fixture
def encoder(clip, clip_processor):
    return DualEncoder(clip, Preprocessor(clip_processor, clip.config), device="cpu")


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def curve(folder) -> list[dict]:
    return [line for line in json.loads((folder / "trainer_state.json").read_text())["log_history"] if "loss" in line]


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor], **tolerance) -> None:
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def test_every_parameter_moves_and_the_loss_is_logged_in_parts(encoder, pairs, repaired, config, tmp_path):
    before = weights(encoder.model)
    summary = train(encoder, pairs, repaired, config(grid_weight=0.25))
    for name, value in weights(encoder.model).items():
        assert not torch.equal(value, before[name]), f"{name} did not move"
    lines = curve(tmp_path / "out")
    assert len(lines) == summary["steps"] == 3
    for line in lines:
        assert line["loss"] == pytest.approx(line["loss_global"] + 0.25 * line["loss_grid"], abs=1e-4)
        assert line["loss_grid"] > 0 and line["logit_scale"] > 1
    assert summary["grids"]["anchors"] == 24 and summary["grids"]["grids_3"] > 0
    assert summary["seconds_per_step"] == pytest.approx(summary["seconds"] / 3)


def test_known_matches_can_count_as_negatives_as_in_the_paper(clip, clip_processor, pairs, repaired, config, tmp_path):
    image_ids, caption_image = list(pairs.images["image_id"]), pairs.caption_image
    next_image = {
        f"{name}#{k}": image_ids[(row + 1) % len(image_ids)] for row, name in enumerate(image_ids) for k in range(2)
    }
    next_image |= {name: image_ids[(row + 1) % len(image_ids)] for row, name in enumerate(image_ids)}
    assert set(pairs.captions["caption_id"]) < set(next_image) and len(caption_image) == 24

    def confuse(
        row,
    ):  # the false positive image of a caption, and the false positive caption of its image, belong together
        return {"fp_id": next_image[row["q_id"]] + ("#0" if row["direction"] == "i2t" else "")}

    losses = {}
    for choice in ("masked", "negative"):
        model = DualEncoder(deepcopy(clip), Preprocessor(clip_processor, clip.config), device="cpu")
        found = train(model, pairs, repaired.map(confuse), config(choice, max_steps=1, known_matches=choice))
        losses[choice] = curve(tmp_path / choice)[0]["loss_grid"]
    assert found["grids"]["cells_known"] > 0
    assert losses["negative"] > losses["masked"]  # more rivals in the same softmax


def test_what_is_saved_loads_like_any_model(encoder, pairs, repaired, config, tmp_path):
    train(encoder, pairs, repaired, config())
    model, processor = AutoModel.from_pretrained(tmp_path / "out"), AutoProcessor.from_pretrained(tmp_path / "out")
    assert_same(weights(encoder.model), weights(model), rtol=0, atol=0)
    inputs = processor(text=["a red circle"], images=[pairs.images[0]["image"]], return_tensors="pt")
    assert model(**inputs).logits_per_text.shape == (1, 1)


def test_a_seed_decides_the_run(clip, clip_processor, pairs, repaired, config):
    def run(folder, **named):
        model = DualEncoder(deepcopy(clip), Preprocessor(clip_processor, clip.config), device="cpu")
        train(model, pairs, repaired, config(folder, slot1="mixed", **named))
        return weights(model.model)

    first = run("a", seed=1)
    assert_same(first, run("b", seed=1), rtol=0, atol=0)
    assert_same(first, run("c", seed=1, dataloader_num_workers=2), rtol=0, atol=0)
    assert_same(first, run("d", seed=1, cache_images=False), rtol=0, atol=1e-6)
    other = run("e", seed=2)
    assert not torch.equal(other["visual_projection.weight"], first["visual_projection.weight"])


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(clip, clip_processor, pairs, repaired, config, tmp_path):
    often = dict(max_steps=10, slot1="mixed", save_strategy="steps", save_steps=2, logging_steps=3)

    def run(folder, **named):
        model = DualEncoder(deepcopy(clip), Preprocessor(clip_processor, clip.config), device="cpu")
        found = train(model, pairs, repaired, config(folder, **often, **named))
        assert found["steps"] == 10
        return weights(model.model), found

    whole, told = run("whole")
    for stop in (
        4,
        6,
        8,
        10,
    ):  # an epoch has 6 steps: within the first, between the two, within the second, at the end
        checkpoint = tmp_path / "whole" / f"checkpoint-{stop}"
        resumed, found = run(f"from{stop}", resume_from_checkpoint=str(checkpoint))
        assert_same(whole, resumed, rtol=0, atol=0)
        losses = [[line["loss"] for line in curve(tmp_path / folder)] for folder in (f"from{stop}", "whole")]
        assert losses[0] == losses[1] and len(losses[0]) > 5
        for name in ("images_per_step", "texts_per_step", "loss"):
            assert found[name] == pytest.approx(told[name], rel=1e-6)
        assert found["seconds"] > json.loads((checkpoint / "repair_spent.json").read_text())["seconds"] > 0


def test_last_checkpoint_is_found_and_none_starts_anew(encoder, pairs, config, tmp_path):
    named = dict(save_strategy="steps", save_steps=2, resume_from_checkpoint="last")
    train(encoder, pairs, None, config(**named))
    whole, trained = curve(tmp_path / "out"), weights(encoder.model)
    shutil.rmtree(tmp_path / "out" / "checkpoint-3")  # as if it had been killed in the third step
    train(encoder, pairs, None, config(**named))
    assert_same(trained, weights(encoder.model), rtol=0, atol=0)
    assert curve(tmp_path / "out") == whole


@pytest.mark.parametrize("other", [dict(seed=1), dict(learning_rate=1e-3), dict(max_steps=4), dict(records=True)])
def test_the_last_checkpoint_of_another_run_is_refused(other, encoder, pairs, repaired, config, tmp_path):
    named = dict(save_strategy="steps", save_steps=2, max_steps=2)
    train(encoder, pairs, None, config(**named))
    records = repaired if other.pop("records", False) else None
    told = next(iter(other), "rows")
    with pytest.raises(
        UserError, match=rf"checkpoint-2 is of another run: .*{told} \(.*set `resume_from_checkpoint` to this"
    ):
        train(encoder, pairs, records, config(**(named | other)))
    found = train(encoder, pairs, records, config(**(named | other), resume_from_checkpoint=None))
    assert found["steps"] == other.get("max_steps", 2)


def one_step(clip, clip_processor, pairs, records, config, folder, **named) -> dict[str, torch.Tensor]:
    """What one step of plain gradient descent adds to the weights."""
    model = DualEncoder(deepcopy(clip), Preprocessor(clip_processor, clip.config), device="cpu")
    plain = dict(max_steps=1, optim="sgd", learning_rate=1.0, weight_decay=0.0, warmup_steps=0, max_grad_norm=0.0)
    before = weights(model.model)
    train(model, pairs, records, config(folder, **(plain | named)))
    return {name: value - before[name] for name, value in weights(model.model).items()}


def test_accumulation_leaves_the_grid_loss_and_costs_the_global_one_negatives(
    clip, clip_processor, pairs, repaired, config, tmp_path
):
    seed = seed_of_a_step_with_more_grids_in_one_half(pairs, repaired)
    cuts = {
        "whole": dict(per_device_train_batch_size=8, seed=seed),
        "cut": dict(gradient_accumulation_steps=2, seed=seed),
    }
    updates = {
        (cut, weight): one_step(
            clip, clip_processor, pairs, repaired, config, f"{cut}{weight}", grid_weight=weight, **named
        )
        for cut, named in cuts.items()
        for weight in (0.0, 1.0)
    }
    grid_part = {
        cut: {name: updates[cut, 1.0][name] - value for name, value in updates[cut, 0.0].items()} for cut in cuts
    }
    assert_same(grid_part["whole"], grid_part["cut"], rtol=1e-3, atol=1e-5)
    whole, cut = (curve(tmp_path / f"{name}1.0")[0] for name in cuts)
    assert cut["loss_grid"] == pytest.approx(whole["loss_grid"], abs=1e-5)
    assert cut["loss_global"] < whole["loss_global"] - 0.3  # about ln 4 against ln 8: three negatives against seven


def seed_of_a_step_with_more_grids_in_one_half(pairs, records) -> int:
    """Where both halves have the same number of grids, the mean of their means is the mean of the whole anyhow."""
    drawn = Grids(pairs, records).draw(np.zeros(24, int), np.arange(24))
    has_grid = (drawn["grid_images"] >= 0).sum(1) >= 2
    for seed in range(100):
        step = [anchor for _, anchor in OneCaptionPerImage(pairs.caption_image, 8, seed)][:8]
        if has_grid[step[:4]].sum() != has_grid[step[4:]].sum():
            return seed
    raise AssertionError("no such step")


def test_a_cut_step_has_the_global_loss_of_its_halves(clip, clip_processor, pairs, config, tmp_path):
    one_step(clip, clip_processor, pairs, None, config, "cut", gradient_accumulation_steps=2)
    trainer = make_trainer(clip, clip_processor, pairs, None, config("other", gradient_accumulation_steps=2))
    loss = []
    for batch, _ in zip(trainer.get_train_dataloader(), range(2), strict=False):
        anchors = (batch[name] for name in ("anchor_images", "anchor_texts"))
        found = clip(pixel_values=trainer.processing_class.normalize(batch["pixels"]), **batch["texts"][0])
        pair = [vectors[rows] for vectors, rows in zip((found.image_embeds, found.text_embeds), anchors, strict=True)]
        loss.append(ContrastiveLoss()(*pair, clip.logit_scale.exp())["loss"].item())
    assert curve(tmp_path / "cut")[0]["loss_global"] == pytest.approx(sum(loss) / 2, abs=1e-5)


def make_trainer(clip, clip_processor, pairs, records, config) -> RepairTrainer:
    preprocessor, grids = Preprocessor(clip_processor, clip.config), Grids(pairs, records)
    tables = [DecodedImages(pairs.images, "image", preprocessor)]
    if records is not None:
        tables.append(DecodedImages(grids.edited_images, "edit_image", preprocessor))
    collator = GridCollator(preprocessor, tables, grids.captions, chunk_size=config.chunk_size)
    return RepairTrainer(clip, config, collator, grids, preprocessor)


def test_each_distinct_item_of_a_batch_is_encoded_once(clip, clip_processor, pairs, repaired, config):
    trainer = make_trainer(clip, clip_processor, pairs, repaired, config(per_device_train_batch_size=8))
    batch = next(iter(trainer.get_train_dataloader()))
    seen = {}
    clip.vision_model.register_forward_hook(
        lambda _, args, kwargs, out: seen.update(images=len(out[1])), with_kwargs=True
    )
    clip.text_model.register_forward_hook(
        lambda _, args, kwargs, out: seen.update(texts=len(out[1])), with_kwargs=True
    )
    trainer.compute_loss(clip, batch).backward()
    for kind in ("images", "texts"):
        rows = torch.cat([batch[f"anchor_{kind}"], batch[f"grid_{kind}"].flatten()])
        assert set(rows.tolist()) - {-1} == set(range(seen[kind]))
        assert seen[kind] < 8 + int((batch[f"grid_{kind}"] >= 0).sum())


@pytest.mark.parametrize("chunk_size", [3, 5, 100])
def test_a_batch_in_chunks_has_the_loss_and_the_gradients_of_the_whole(
    chunk_size, clip, clip_processor, pairs, repaired, config
):
    def gradients(chunk_size):
        options = config(per_device_train_batch_size=8, chunk_size=chunk_size, grid_weight=1.0)
        trainer = make_trainer(deepcopy(clip), clip_processor, pairs, repaired, options)
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


def test_batches_of_neighbours_encode_fewer_items(clip, clip_processor, pairs, repaired, config):
    def items(batches):
        trainer = make_trainer(clip, clip_processor, pairs, repaired, config(batches=batches))
        return sum(len(batch["pixels"]) for batch in trainer.get_train_dataloader())

    assert items("neighbours") < items("random")


def test_hard_negatives_alone_leave_what_stands_opposite_unencoded(clip, clip_processor, pairs, repaired, config):
    def run(folder, data):
        model = DualEncoder(deepcopy(clip), Preprocessor(clip_processor, clip.config), device="cpu")
        return train(model, pairs, repaired, config(folder, negatives="alone"), data=data)

    as_it_is, with_all = run("alone", None), run("all", Grids(pairs, repaired, seed=42))
    assert as_it_is["loss"] == pytest.approx(with_all["loss"], rel=1e-5)
    assert as_it_is["images_per_step"] < with_all["images_per_step"]
    assert as_it_is["texts_per_step"] < with_all["texts_per_step"]


def test_a_step_without_any_grid_trains_on_the_pairs(encoder, pairs, repaired, config, tmp_path):
    one = repaired.select([0])
    train(encoder, pairs, one, config(max_steps=6))
    lines = curve(tmp_path / "out")
    assert [line["loss_grid"] > 0 for line in lines].count(True) == 1
    assert all(np.isfinite(line["loss"]) and np.isfinite(line["grad_norm"]) for line in lines)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_records_of_one_direction_make_two_by_two_grids(direction, encoder, pairs, repaired, config, tmp_path):
    one_way = repaired.filter(lambda row: row["direction"] == direction)
    summary = train(encoder, pairs, one_way, config(max_steps=6, slot1="mixed"))
    assert summary["grids"]["grids_3"] == 0 and summary["grids"]["grids_2"] == 12
    losses = [line["loss_grid"] for line in curve(tmp_path / "out")]  # 0 where no anchor of a batch has a record
    assert max(losses) > 0.5 and all(0 <= loss < 10 for loss in losses)


def test_siglip_trains_with_its_own_padding(pairs, repaired, clip, clip_processor, config, tmp_path):
    small = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    text = SiglipTextConfig(vocab_size=len(clip_processor.tokenizer), max_position_embeddings=32, **small)
    vision = SiglipVisionConfig(image_size=32, patch_size=16, **small)
    model = SiglipModel(SiglipConfig(text_config=text.to_dict(), vision_config=vision.to_dict()))
    before = weights(model)
    train(DualEncoder(model, Preprocessor(clip_processor, model.config), device="cpu"), pairs, repaired, config())
    assert [name for name, value in weights(model).items() if value.equal(before[name])] == ["logit_bias"]
    assert AutoModel.from_pretrained(tmp_path / "out").config.model_type == "siglip"


def test_bfloat16_trains_near_float32(clip, clip_processor, pairs, repaired, config, tmp_path):
    one_step(clip, clip_processor, pairs, repaired, config, "float32")
    update = one_step(clip, clip_processor, pairs, repaired, config, "bfloat16", bf16=True)
    assert {value.dtype for value in update.values()} == {torch.float32}  # the weights that are trained
    one, two = curve(tmp_path / "float32")[0], curve(tmp_path / "bfloat16")[0]
    for name in ("loss_global", "loss_grid"):
        assert two[name] != one[name] and two[name] == pytest.approx(one[name], abs=0.05)


def test_a_model_trained_in_bfloat16_is_given_back_in_float32(encoder, pairs, config, tmp_path):
    train(encoder, pairs, None, config(max_steps=1, bf16=True))
    inputs = encoder.preprocessor.processor(
        text=["a red circle"], images=[pairs.images[0]["image"]], return_tensors="pt"
    )
    saved = AutoModel.from_pretrained(tmp_path / "out")
    given_back = encoder.model(**inputs).logits_per_text
    assert given_back.dtype == torch.float32
    torch.testing.assert_close(given_back, saved(**inputs).logits_per_text, rtol=1e-5, atol=0)  # bfloat16 errs by 1e-3


def test_negatives_none_is_training_without_records(clip, clip_processor, pairs, repaired, config, tmp_path):
    one = one_step(clip, clip_processor, pairs, repaired, config, "a", negatives="none")
    assert_same(one, one_step(clip, clip_processor, pairs, None, config, "b"), rtol=0, atol=0)
    assert "loss_grid" not in curve(tmp_path / "a")[0]


def test_the_scale_stays_below_100_and_has_no_weight_decay(encoder, pairs, config, tmp_path, caplog):
    encoder.model.logit_scale.data.fill_(4.765)  # SigLIP's
    train(encoder, pairs, None, config(max_steps=4, learning_rate=0.5, weight_decay=0.5, warmup_steps=0))
    assert "logit scale is 117.3; from the first step on it is held at 100" in caplog.text
    assert max(line["logit_scale"] for line in curve(tmp_path / "out")) <= 100.001
    trainer = make_trainer(encoder.model, AutoProcessor.from_pretrained(tmp_path / "out"), pairs, None, config("x"))
    encoder.model.head = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))  # as SimCLR's
    decaying = trainer.get_decay_parameter_names(encoder.model)
    assert {"visual_projection.weight", "head.0.weight"} <= set(decaying)
    assert not {"logit_scale", "head.0.bias", "head.1.weight", "text_model.final_layer_norm.weight"} & set(decaying)


def test_half_precision_weights_are_trained_in_float32(encoder, pairs, config):
    encoder.model.half()
    train(encoder, pairs, None, config(max_steps=1))
    assert {value.dtype for value in weights(encoder.model).values()} == {torch.float32}


def test_evaluation_is_retrieval_on_the_validation_pairs(encoder, pairs, pairs_folder, config, tmp_path):
    validation = load_pairs(pairs_folder, split="train")
    summary = train(encoder, pairs, None, config(max_steps=6, eval_strategy="epoch"), validation=validation)
    images, texts = (
        encoder.embed_images(validation.images["image"]),
        encoder.embed_texts(validation.captions["caption"]),
    )
    for name, value in evaluate_retrieval(images, texts, validation.caption_image).items():
        assert summary[f"eval_{name}"] == pytest.approx(value)
    logged = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    assert sum("eval_t2i_MRR" in line for line in logged) == 1


def test_the_best_model_comes_with_its_own_metrics(encoder, pairs, config, tmp_path):
    """Here "best" is the lowest MRR, so that it is not the last for certain."""
    best = dict(load_best_model_at_end=True, metric_for_best_model="t2i_MRR", greater_is_better=False)
    often = dict(eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1)
    summary = train(encoder, pairs, None, config(max_steps=4, **best, **often), validation=pairs)
    found = evaluate_retrieval(*encoder.embed_pairs(pairs), pairs.caption_image)
    logged = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    each = [line["eval_t2i_MRR"] for line in logged if "eval_t2i_MRR" in line]
    assert len(each) == 4 and summary["eval_t2i_MRR"] == pytest.approx(found["t2i_MRR"]) == min(each)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (dict(load_best_model_at_end=True), "`load_best_model_at_end` needs `metric_for_best_model`"),
        (
            dict(per_device_train_batch_size=1, gradient_accumulation_steps=8),
            "A batch of one pair has no negatives.*`chunk_size`",
        ),
        (dict(grid_weight=-1.0), "`grid_weight` must be at least 0, got -1"),
        (dict(negatives="batch", slot1="mixed"), "`slot1` mixed changes nothing with `negatives` batch"),
        (
            dict(negatives="alone", counterparts="annotation"),
            "`counterparts` annotation changes nothing with `negatives` alone",
        ),
        (dict(negatives="none", batches="neighbours"), "`batches` neighbours changes nothing with `negatives` none"),
        (dict(fp16=True), "`fp16` needs a GPU"),
        (dict(draft_jpegs=True, cache_images=False), "`draft_jpegs` is for the file of `cache_images`"),
        (dict(remove_unused_columns=True), "`remove_unused_columns` must stay false"),
        (dict(auto_find_batch_size=True), "`auto_find_batch_size` would change the loss"),
        (
            dict(accelerator_config={"split_batches": True}),
            "`accelerator_config` with `split_batches` would give each",
        ),
        (dict(accelerator_config={"dispatch_batches": True}), "`accelerator_config` with `dispatch_batches` would"),
        (dict(metric_for_best_model="R@1"), "`metric_for_best_model` must be one of i2t_R@1, .*, got R@1"),
        (
            dict(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch"),
            "`metric_for_best_model` must be one of .*, got loss",
        ),
        (dict(save_strategy="best"), "`metric_for_best_model` must be one of .*, got None.*`save_strategy` best"),
        (
            dict(save_strategy="steps", save_only_model=True),
            "checkpoints that cannot be resumed from.*`save_total_limit`",
        ),
        (dict(neftune_noise_alpha=5.0), "`neftune_noise_alpha` is for language models"),
        (dict(data_seed=-1), "`data_seed` must be from 0 to 4294967295, got -1"),
        (dict(per_device_train_batch_size=0), "`per_device_train_batch_size` must be at least 1, got 0"),
        (dict(fp16_full_eval=True), "`fp16_full_eval` True would change nothing"),
        (dict(include_for_metrics=["loss"]), r"`include_for_metrics` \['loss'\] would change nothing"),
        (dict(include_num_input_tokens_seen=True), "`include_num_input_tokens_seen` True would change nothing"),
        (dict(ignore_data_skip=True), "`ignore_data_skip` would restart the epoch after a resume"),
        (dict(label_smoothing_factor=0.1), "`label_smoothing_factor` 0.1 would change nothing"),
        (
            dict(train_sampling_strategy="group_by_length"),
            "`train_sampling_strategy` group_by_length would change nothing",
        ),
        (dict(fsdp="full_shard"), "`fsdp` shards the model"),
        (dict(deepspeed={"zero_optimization": {"stage": 3}}), "`deepspeed` shards the model"),
    ],
)
def test_options_that_cannot_work_are_refused(named, message, config):
    with pytest.raises(UserError, match=message):
        config(**named)


def test_a_rank_is_better_when_it_is_smaller(config):
    assert config(metric_for_best_model="t2i_median_rank").greater_is_better is False
    assert config(metric_for_best_model="eval_i2t_R@1").greater_is_better is True
    assert config(metric_for_best_model="t2i_median_rank", greater_is_better=True).greater_is_better is True


def test_of_several_gpus_a_process_takes_one(config, caplog):
    made = config()
    made._n_gpu = 8
    made._take_one_gpu()
    assert made.n_gpu == 1 and made.train_batch_size == 4 and "of 8 GPUs here" in caplog.text


def test_the_trainer_goes_on_as_the_command_does(clip, clip_processor, pairs, repaired, config, tmp_path):
    """And takes callbacks, as any Trainer."""

    class StopAtTwo(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step == 2

    # `make_trainer` draws its grids by seed 0
    often = dict(max_steps=4, save_strategy="steps", save_steps=1, seed=0)
    model = DualEncoder(deepcopy(clip), Preprocessor(clip_processor, clip.config), device="cpu")
    assert train(model, pairs, repaired, config(**often), callbacks=[StopAtTwo()])["steps"] == 2
    trainer = make_trainer(clip, clip_processor, pairs, repaired, config(**often))
    trainer.train(resume_from_checkpoint=True)
    spent = json.loads((tmp_path / "out" / "checkpoint-2" / "repair_spent.json").read_text())
    assert trainer.loop.first_step == 2 and trainer.spent().images > spent["images"] > 0
    trainer = make_trainer(clip, clip_processor, pairs, repaired, config(**often, resume_from_checkpoint=None))
    trainer.train()
    assert trainer.loop.first_step == 0


def test_a_batch_of_more_pairs_than_images_is_refused(encoder, pairs, config):
    with pytest.raises(UserError, match="step of 16 pairs needs as many different images, and there are 12"):
        train(encoder, pairs, None, config(gradient_accumulation_steps=4))


def test_what_is_not_there_is_said(clip, clip_processor, encoder, pairs, config):
    with pytest.raises(UserError, match="`resume_from_checkpoint` names nowhere, which is not a complete checkpoint"):
        train(encoder, pairs, None, config(resume_from_checkpoint="nowhere"))
    with pytest.raises(UserError, match="along the records' failures, and there are none"):
        train(encoder, pairs, None, config(batches="neighbours"))
    with pytest.raises(UserError, match="There is nothing to evaluate on"):
        make_trainer(clip, clip_processor, pairs, None, config()).evaluate()


def test_a_model_without_a_scale_is_refused(clip, clip_processor, pairs, config):
    del clip.logit_scale
    with pytest.raises(UserError, match="CLIPModel has no `logit_scale`"):
        make_trainer(clip, clip_processor, pairs, None, config())
