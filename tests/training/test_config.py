"""A configuration rejects options that cannot work, and chooses what transformers would choose wrongly."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from repair_hf.runtime.options import UserError
from repair_hf.training import config as config_of_training
from repair_hf.training.config import RepairConfig

ALONE = dict(chunk_size=0, per_device_train_batch_size=0, lora_rank=0, grid_weight=-1.0, seed=-1, data_seed=-1)
ALONE |= dict(metric_for_best_model="t2i_median_rank", lora_towers="text", fp16=True)
ALONE |= dict(report_to=["no_tracker"], fill="papers", loss="batches", grid_mean="grid")
TOGETHER = [
    ("chunk_size", dict(per_device_train_batch_size=1, gradient_accumulation_steps=8)),
    ("freeze", dict(lora_rank=2, freeze="image")),
    ("grid_weight", dict(grid_weight=0.5)),
    ("grid_mean", dict(loss="none", grid_mean="anchors")),
]


@pytest.mark.parametrize(("name", "named"), [*((name, {name: value}) for name, value in ALONE.items()), *TOGETHER])
def test_options_that_cannot_work_raise_an_error_that_names_them(name, named, config):
    with pytest.raises(UserError, match=f"`{name}`"):
        config(**named)


def test_arguments_without_an_effect_are_not_taken(config):
    known = {each.name: each for each in fields(RepairConfig)}
    for name in ("fsdp", "deepspeed", "auto_find_batch_size", "save_only_model", "accelerator_config", "push_to_hub"):
        assert not known[name].init and name not in config().to_dict()
        with pytest.raises(TypeError, match=name):
            config(**{name: True})


def test_paper_chooses_fill_loss_and_weight_where_no_other_is_named(config):
    def chosen(**named):
        made = config(**named)
        return made.fill, made.loss, made.grid_weight

    assert chosen() == ("edits", "batch", None) and chosen(paper=True) == ("paper", "grid", 0.5)
    assert chosen(paper=True, loss="both") == ("paper", "both", 0.5)
    assert chosen(paper=True, fill="edits") == ("edits", "grid", 0.5)
    assert chosen(paper=True, grid_weight=0.0) == ("paper", "grid", 0)
    named = dict(fill="paper", loss="grid", grid_weight=0.5)
    assert config(paper=True).recorded() == config(**named).recorded()  # one run


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the CPU is chosen where there is nothing else")
def test_bf16_alone_works_on_a_cpu(config):
    made = config(bf16=True, use_cpu=False)
    assert (made.device.type, made.mixed_precision) == ("cpu", "bf16")
    assert not config(use_cpu=False).use_cpu  # it identifies a run in its checkpoints


def test_a_gpu_gets_processes_that_load_its_batches(config, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(config_of_training, "WORKERS", 3)
    assert config(use_cpu=False).dataloader_num_workers == 3
    assert config(use_cpu=True).dataloader_num_workers == 0
    assert config(use_cpu=False, dataloader_num_workers=1).dataloader_num_workers == 1
    assert config(dataloader_num_workers=2).recorded() == config().recorded()


def test_of_several_gpus_a_process_takes_one(config, caplog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    made = config(use_cpu=False)
    made._n_gpu = 8
    assert made.n_gpu == 1 and made.train_batch_size == 4 and "8 GPUs are visible" in caplog.text
