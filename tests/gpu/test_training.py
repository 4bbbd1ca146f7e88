"""Training on a GPU: mixed precision, compilation, gradient caching and resuming give what plain float32 gives."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_runs import assert_same, weights

from benchmarks.common import random_weights
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.training.fills import Edits
from repair_hf.training.step import MAX_LOGIT_SCALE, PairObjective, Step

pytestmark = pytest.mark.gpu

PRECISIONS = ("fp16", "bf16")


def losses(run, name: str = "loss") -> np.ndarray:
    return np.array([line[name] for line in run.curve])


def skip_fp16_on(device: str, precision: str) -> None:
    if (device, precision) == ("cpu", "fp16"):
        pytest.skip("training in fp16 needs a GPU")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_mixed_precision_trains_float32_weights(precision, device, encoder, fit, in_float32):
    skip_fp16_on(device, precision)
    run, before = fit(**{precision: True}), weights(encoder.model)
    for name, value in weights(run.model).items():
        assert value.dtype == torch.float32 and value.isfinite().all(), name
        assert not value.equal(before[name]), f"{name} did not move"
    assert {value.dtype for value in load_file(run.folder / "model.safetensors").values()} == {torch.float32}
    assert losses(run)[-5:].mean() < losses(run)[:3].mean()
    assert losses(run)[-5:].mean() == pytest.approx(losses(in_float32)[-5:].mean(), rel=0.1)  # fp16 may skip a step


@pytest.mark.parametrize(
    ("precision", "method"),
    [
        ("fp16", {"paper": True, "chunk_size": 8}),
        ("bf16", {"paper": True}),
        ("fp16", {"lora_rank": 4}),
        ("bf16", {"lora_rank": 4, "blend": 0.5}),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_each_method_trains_in_mixed_precision_and_saves_float32(precision, method, device, model_folder, fit):
    skip_fp16_on(device, precision)
    model = DualEncoder.from_pretrained(model_folder, device=device)  # an adapter names the folder of its base
    run, before = fit(model, **{precision: True}, **method, max_steps=8, learning_rate=1e-3), weights(model.model)
    assert np.isfinite(losses(run)).all()
    found = load_file(next(run.folder.glob("*model.safetensors")))  # with LoRA, the adapter
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in found.values())
    moved = [name for name, value in found.items() if name not in before or not value.equal(before[name].cpu())]
    assert any("lora_B" in name and found[name].any() for name in moved) == ("lora_rank" in method)
    assert moved


class Watched(PairObjective):
    """The default, which keeps the types of what it compares."""

    def terms(self, step: Step) -> dict[str, torch.Tensor]:
        self.seen = {step.matrix.dtype, step.images.float().norm(dim=1).dtype, step.scale.dtype}
        self.greatest = float(step.scale.detach())
        return super().terms(step)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_logits_stay_in_float32_and_the_logit_scale_at_its_bound(precision, device, encoder, pairs, fit):
    """Above its bound a logit of fp16 would have steps of 1/16, and a rising scale would overflow."""
    skip_fp16_on(device, precision)
    model, objective = DualEncoder(deepcopy(encoder.model), encoder.preprocessor, device=device), Watched()
    model.model.logit_scale.data.fill_(MAX_LOGIT_SCALE)
    run = fit(model, **{precision: True}, max_steps=6, objective=objective)
    assert objective.seen == {torch.float32}
    assert objective.greatest <= 100 * (1 + 1e-6)
    assert np.isfinite(losses(run)).all() and losses(run, "logit_scale").max() <= 100 * (1 + 1e-6)


def test_what_is_known_to_match_is_found_without_waiting_for_the_gpu(device, pairs, records):
    truth = Edits(pairs, records).truth
    rows = torch.arange(-1, 140)
    expected = truth.known(rows, rows)
    rows = rows.to(device)
    truth.known(rows, rows)  # its tables are on the device now
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        found = truth.known(rows, rows)
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.cpu(), expected)


def test_bfloat16_follows_the_curve_of_float32(fit, in_float32):
    run = fit(bf16=True)
    for name in ("loss", "loss_global", "logit_scale"):
        np.testing.assert_allclose(losses(run, name), losses(in_float32, name), rtol=0.05, atol=0.02, err_msg=name)
    assert (losses(run) != losses(in_float32)).any()


def test_a_compiled_model_follows_the_curve_of_the_eager_one(device, pairs, fit):
    model = DualEncoder(*random_weights("world", pairs.captions["caption"][:]), device=device)
    backend = {"torch_compile_backend": "aot_eager"} if device == "cpu" else {}  # the CPU's compiler takes minutes
    runs = [fit(model, max_steps=6, **named) for named in ({}, {"torch_compile": True, **backend})]
    np.testing.assert_allclose(*map(losses, runs), rtol=1e-3)


def test_gradient_caching_makes_the_same_steps_in_less_memory(device, encoder, fit):
    plain = dict(max_steps=4, optim="sgd", learning_rate=0.05)
    whole, chunks = fit(**plain), fit(chunk_size=8, **plain)
    np.testing.assert_allclose(losses(chunks), losses(whole), rtol=1e-3)
    steps = [
        {name: value - weights(encoder.model)[name] for name, value in weights(run.model).items()}
        for run in (whole, chunks)
    ]
    assert_same(*steps, rtol=0.02, atol=1e-4)
    if device == "cuda":
        assert chunks.memory < whole.memory


@pytest.mark.parametrize("precision", ["fp32", *PRECISIONS])
def test_a_resumed_training_ends_as_the_whole_one(precision, device, fit):
    """In fp16 the gradient's scale is resumed too: a new one would skip steps, and the schedule would lag."""
    skip_fp16_on(device, precision)
    named = dict(max_steps=12, save_strategy="steps", save_steps=6)
    named |= {} if precision == "fp32" else {precision: True}
    whole = fit(**named)
    resumed = fit(checkpoint=str(whole.folder / "checkpoint-6"), **named)
    assert len(whole.curve) == len(resumed.curve) == 12
    assert resumed.curve[-1]["learning_rate"] == whole.curve[-1]["learning_rate"]
    np.testing.assert_allclose(losses(resumed), losses(whole), rtol=0.01)
