"""Objectives of one's own: what they get, what is logged, and what they may do."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from training_runs import assert_same, curve

from repair_hf.runtime.options import UserError
from repair_hf.training.step import Objective, PairObjective


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


@pytest.mark.parametrize("chunk_size", [None, 3])
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
