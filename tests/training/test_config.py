"""A configuration rejects options that cannot work, and chooses what transformers would choose wrongly."""

from __future__ import annotations

import pytest
import torch

from repair_hf.runtime.options import UserError

METRIC = "`metric_for_best_model` must be one of i2t_R@1, .*, got "
IDLE = {
    "fp16_full_eval": True,
    "include_num_input_tokens_seen": True,
    "label_smoothing_factor": 0.1,
    "train_sampling_strategy": "group_by_length",
}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (dict(load_best_model_at_end=True), "`load_best_model_at_end` needs `metric_for_best_model`"),
        (
            dict(per_device_train_batch_size=1, gradient_accumulation_steps=8),
            "one pair has no negatives.*`chunk_size`",
        ),
        (dict(per_device_train_batch_size=0), "`per_device_train_batch_size` must be at least 1, got 0"),
        (dict(chunk_size=0), "`chunk_size` must be at least 1, got 0"),
        (dict(lora_rank=0), "`lora_rank` must be at least 1, got 0"),
        (dict(lora_rank=2, freeze="image"), "`freeze` image changes nothing with `lora_rank`"),
        (dict(lora_towers="text"), "`lora_towers` text changes nothing with `lora_rank` None"),
        (dict(grid_weight=-1.0), "`grid_weight` must be at least 0, got -1"),
        (dict(seed=-1), "`seed` must be from 0 to 4294967295, got -1"),
        (dict(data_seed=-1), "`data_seed` must be from 0 to 4294967295, got -1"),
        (dict(slot1="mixed"), "`slot1` mixed needs grids with own failures"),
        (dict(counterparts="best"), "`counterparts` best needs grids with own failures"),
        (dict(own_failures_share=0.5, slot1="mixed"), "`slot1` mixed changes nothing with `negatives` batch"),
        (dict(negatives="alone", counterparts="annotation"), "`counterparts` annotation changes .* `negatives` alone"),
        (dict(negatives="none", batches="neighbours"), "`batches` neighbours changes nothing with `negatives` none"),
        (dict(fp16=True), "`fp16` needs a GPU"),
        (dict(draft_jpegs=True, cache_images=False), "`draft_jpegs` is for the file of `cache_images`"),
        (dict(remove_unused_columns=True), "`remove_unused_columns` must stay false"),
        (dict(auto_find_batch_size=True), "`auto_find_batch_size` would change the loss"),
        (dict(accelerator_config={"split_batches": True}), "`accelerator_config` with `split_batches` would give"),
        (dict(accelerator_config={"dispatch_batches": True}), "`accelerator_config` with `dispatch_batches` would"),
        (dict(metric_for_best_model="R@1"), f"{METRIC}R@1"),
        (dict(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch"), f"{METRIC}loss"),
        (dict(save_strategy="best"), f"{METRIC}None.*`save_strategy` best"),
        (dict(save_strategy="steps", save_only_model=True), "cannot be resumed from.*`save_total_limit`"),
        (dict(neftune_noise_alpha=5.0), "`neftune_noise_alpha` is for language models"),
        (dict(ignore_data_skip=True), "`ignore_data_skip` would restart the epoch after a resume"),
        (dict(include_for_metrics=["loss"]), r"`include_for_metrics` \['loss'\] has no effect"),
        *(({name: value}, f"`{name}` {value} has no effect") for name, value in IDLE.items()),
        (dict(fsdp="full_shard"), "`fsdp` shards the model"),
        (dict(report_to=["no_tracker"]), "`report_to` no_tracker is no tracker; known: .*wandb"),
        (dict(deepspeed={"zero_optimization": {"stage": 3}}), "`deepspeed` shards the model"),
    ],
)
def test_options_that_cannot_work_raise(named, message, config):
    with pytest.raises(UserError, match=message):
        config(**named)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the CPU is chosen where there is nothing else")
def test_bf16_alone_works_on_a_cpu(config):
    made = config(bf16=True, use_cpu=False)
    assert (made.device.type, made.mixed_precision) == ("cpu", "bf16")
    assert not config(use_cpu=False).use_cpu  # it identifies a run in its checkpoints


def test_a_rank_is_better_when_it_is_smaller(config):
    assert config(metric_for_best_model="t2i_median_rank").greater_is_better is False
    assert config(metric_for_best_model="eval_i2t_R@1").greater_is_better is True
    assert config(metric_for_best_model="t2i_median_rank", greater_is_better=True).greater_is_better is True


def test_of_several_gpus_a_process_takes_one(config, caplog):
    made = config()
    made._n_gpu = 8
    made._take_one_gpu()
    assert made.n_gpu == 1 and made.train_batch_size == 4 and "8 GPUs are visible" in caplog.text


def test_a_token_is_in_no_file_of_the_arguments(config, tmp_path):
    torch.save(config(hub_token="planted-token"), tmp_path / "training_args.bin")  # as the Trainer does
    assert b"planted" not in (tmp_path / "training_args.bin").read_bytes()
    assert torch.load(tmp_path / "training_args.bin", weights_only=False).hub_token is None
