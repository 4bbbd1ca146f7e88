"""A configuration rejects options that cannot work, and chooses what transformers would choose wrongly."""

from __future__ import annotations

import pytest
import torch

from repair_hf.runtime.options import UserError

ALONE = dict(chunk_size=0, per_device_train_batch_size=0, lora_rank=0, grid_weight=-1.0, seed=-1, data_seed=-1)
ALONE |= dict(load_best_model_at_end=True, metric_for_best_model="R@1", lora_towers="text", fp16=True)
ALONE |= dict(remove_unused_columns=True, auto_find_batch_size=True, neftune_noise_alpha=5.0, ignore_data_skip=True)
ALONE |= dict(label_smoothing_factor=0.1, train_sampling_strategy="group_by_length", include_for_metrics=["loss"])
ALONE |= dict(fp16_full_eval=True, include_num_input_tokens_seen=True, report_to=["no_tracker"])
ALONE |= dict(fsdp="full_shard", deepspeed={"zero_optimization": {"stage": 3}})
TOGETHER = [
    ("chunk_size", dict(per_device_train_batch_size=1, gradient_accumulation_steps=8)),
    ("freeze", dict(lora_rank=2, freeze="image")),
    ("split_batches", dict(accelerator_config={"split_batches": True})),
    ("dispatch_batches", dict(accelerator_config={"dispatch_batches": True})),
    ("metric_for_best_model", dict(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch")),
    ("metric_for_best_model", dict(save_strategy="best")),
    ("save_total_limit", dict(save_strategy="steps", save_only_model=True)),
    ("hub_strategy", dict(push_to_hub=True, hub_strategy="every_save")),
]


@pytest.mark.parametrize(("name", "named"), [*((name, {name: value}) for name, value in ALONE.items()), *TOGETHER])
def test_options_that_cannot_work_raise_an_error_that_names_them(name, named, config):
    with pytest.raises(UserError, match=f"`{name}`"):
        config(**named)


def test_paper_chooses_fill_and_loss_where_no_other_is_named(config):
    def chosen(**named):
        made = config(**named)
        return made.fill, made.loss

    assert chosen() == ("edits", "batch") and chosen(paper=True) == ("paper", "grid")
    assert chosen(paper=True, loss="both") == ("paper", "both")
    assert chosen(paper=True, fill="edits") == ("edits", "grid")
    assert config(paper=True).recorded() == config(fill="paper", loss="grid").recorded()  # one run
    assert config(loss="grid").recorded(has_records=False) == config().recorded(has_records=False)


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
