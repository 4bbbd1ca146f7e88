"""A configuration rejects options that cannot work, and chooses what transformers would choose wrongly.

An objective of one's own: what it gets, what is logged, and what it may do.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields

import pytest
import torch
from training_runs import assert_same, curve

from repair_hf.runtime.options import UserError
from repair_hf.training import config as config_of_training
from repair_hf.training.config import RepairConfig
from repair_hf.training.step import Objective, PairObjective

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


@pytest.mark.parametrize("evaluates", ["no", "epoch"])
def test_what_is_best_identifies_a_run_that_evaluates(evaluates, config):
    one, other = (config(eval_strategy=evaluates, metric_for_best_model=name) for name in ("t2i_MRR", "i2t_MRR"))
    assert (one.recorded() == other.recorded()) == (evaluates == "no")


def test_draws_have_the_seed_of_the_run_unless_they_have_their_own(config):
    assert (config(seed=3).draw_seed, config(seed=3, data_seed=0).draw_seed) == (3, 0)


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


# Objectives


class GridAlone(PairObjective):
    def terms(self, step):
        return {"loss_grid": super().terms(step)["loss_grid"]}


def test_accumulation_leaves_the_mean_over_anchors_as_it_is(repaired, one_step, make_trainer):
    """Also where one half of the step has more grids than the other."""
    how, repaired = dict(paper=True, grid_mean="anchors", seed=2), repaired.select(range(0, 24, 5))
    trainer = make_trainer(repaired, per_device_train_batch_size=8, **how)
    images = next(iter(trainer.get_train_dataloader()))["image_rows"]
    has_grid = (images >= 0).sum(1) > 1
    assert has_grid[:4].sum() != has_grid[4:].sum()
    how["objective"] = GridAlone("grid", grid_mean="anchors")
    whole = one_step(repaired, "whole", per_device_train_batch_size=8, **how)
    assert_same(whole, one_step(repaired, "cut", gradient_accumulation_steps=2, **how), rtol=1e-3, atol=1e-5)


class Margin(Objective):
    weights = {"loss_margin": 0.5}

    def terms(self, step):
        matrix, is_anchor = step.matrix, step.slots == 0
        gaps = (1 + matrix - matrix.diagonal()[:, None]).clamp(min=0)
        return {"loss_margin": gaps[step.visible & is_anchor[:, None]].mean(), "size": matrix.square().mean()}


def test_an_objective_of_ones_own_gets_the_step(repaired, fit, tmp_path):
    fit(repaired, objective=Margin())
    for line in curve(tmp_path / "out"):
        assert line["loss"] == pytest.approx(0.5 * line["loss_margin"] + line["size"], rel=1e-3)


class GradientTwice(PairObjective):
    """Runs backward for a penalty of its own, before the trainer does."""

    def terms(self, step):
        terms = super().terms(step)
        first = torch.autograd.grad(terms["loss_global"], self.weight, retain_graph=True)[0]
        return terms | {"size": first.square().sum().detach()}


@pytest.mark.parametrize("chunk_size", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_an_objective_may_run_backward_itself(chunk_size, clip, repaired, one_step):
    objective, model = GradientTwice(), deepcopy(clip)
    objective.weight = model.visual_projection.weight
    found = one_step(repaired, "twice", objective=objective, chunk_size=chunk_size, model=model)
    assert_same(one_step(repaired, "once", chunk_size=chunk_size), found, atol=1e-7)


def test_an_objective_with_parameters_outside_the_model_is_an_error(make_trainer, clip):
    objective = Margin()
    objective.temperature = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(UserError, match="Margin has parameters"):
        make_trainer(objective=objective)
    clip.temperature = objective.temperature
    make_trainer(objective=objective, model=clip)
