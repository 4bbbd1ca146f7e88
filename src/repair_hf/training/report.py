"""Numbers of a training: what it encodes, known before it starts; what a step costs; the summary of a finished run."""

from __future__ import annotations

import logging
import math
import sys
import time
from typing import Any

import numpy as np
import psutil
import torch
from transformers import DefaultFlowCallback, Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from repair_hf.training.fills import Anchors
from repair_hf.training.sampling import OneCaptionPerImage

logger = logging.getLogger(__name__)

ENOUGH = 0.5  # share of a direction's edits that a run should use; below it, a warning
EPOCHS = (1, 2, 5, 10, 20)  # lengths of a run that are tried to find one that uses nearly all edits
NEARLY_ALL = 0.95


def plan(trainer: Any, steps: int | None = None) -> dict[str, Any]:
    """Return what a training encodes, which its seed decides.

    Args:
        trainer: Has `fill`, `sampler`, `objective`, `args` and `train_dataset`.
        steps: Of the training; by default all that its configuration asks for.
    """
    fill, sampler, args, pairs = trainer.fill, trainer.sampler, trainer.args, trainer.train_dataset
    if steps is None:
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * sampler.batches)
    n_batches = steps * sampler.batch_size // args.train_batch_size
    images, texts = _drawn(fill, sampler, steps)
    new = np.unique(images[images >= len(pairs.images)]), np.unique(texts[texts >= len(pairs)])
    planned = {
        "objective": getattr(trainer.objective, "loss", type(trainer.objective).__name__),
        "steps": steps,
        "pairs_per_step": sampler.batch_size,
        "images_per_step": count_distinct(images, n_batches) / steps,
        "texts_per_step": count_distinct(texts, n_batches) / steps,
        "fill": fill.report(),
        "edits_reachable": fill.edits_reachable(),
        "samples_encoded": fill.samples(*new),
    }
    return planned | _longer(fill, planned, steps / sampler.batches)


def _drawn(fill: Anchors, sampler: OneCaptionPerImage, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of images and of captions that some steps encode, (anchors, S) each."""
    anchors = np.concatenate([sampler.order(epoch) for epoch in range(math.ceil(steps / sampler.batches))])
    anchors = anchors[: steps * sampler.batch_size]
    return fill.draw(np.arange(len(anchors)) // len(sampler), anchors)


def _longer(fill: Anchors, planned: dict[str, Any], epochs: float) -> dict[str, Any]:
    """Count the edits that a longer run would use, if the planned one leaves many out that can train."""
    sizes = {way: planned["fill"][f"edits_{way}"] for way in planned["edits_reachable"]}
    wanted = {way: NEARLY_ALL * sizes[way] * share for way, share in planned["edits_reachable"].items()}
    if epochs >= EPOCHS[-1] or all(planned["samples_encoded"][way] >= count for way, count in wanted.items()):
        return {}
    anchors, n_images, n_texts = np.arange(len(fill)), len(fill.pairs.images), len(fill)
    has_image, has_text = np.zeros(n_images + sizes.get("t2i", 0), bool), np.zeros(n_texts + sizes.get("i2t", 0), bool)
    for epoch in range(EPOCHS[-1]):
        images, texts = fill.draw(np.full_like(anchors, epoch), anchors)
        has_image[images[images >= 0]] = has_text[texts[texts >= 0]] = True
        used = {"i2t": int(has_text[n_texts:].sum()), "t2i": int(has_image[n_images:].sum())}
        if epoch + 1 in EPOCHS and epoch + 1 > epochs and all(used[way] >= count for way, count in wanted.items()):
            break
    return {"longer_run": {"epochs": epoch + 1} | {way: used[way] for way in sizes}}


def count_distinct(rows: np.ndarray, n_batches: int) -> int:
    """Count the distinct rows of each of the batches, summed; (anchors, S), -1 is none."""
    batches = np.sort(rows.reshape(n_batches, -1), axis=1)
    return int((np.diff(batches, axis=1, prepend=-1) > 0).sum())


def usage_in_words(planned: dict[str, Any]) -> str:
    """Say how many edits a planned training uses; empty without edits."""
    ways, longer = planned["edits_reachable"], planned.get("longer_run")
    used = " and ".join(
        f"{planned['samples_encoded'][way]:,} of {planned['fill'][f'edits_{way}']:,} {way.upper()} edits"
        for way in ways
    )
    if not used or longer is None:
        return used and f"{planned['steps']:,} steps use {used}"
    counts = " and ".join(f"{longer[way]:,} {way.upper()}" for way in ways)
    return f"{planned['steps']:,} steps use {used}; {longer['epochs']} epochs use {counts}"


def warn_of_unused(planned: dict[str, Any]) -> None:
    """Warn of a training that leaves most edits of a direction out."""
    sizes, reach = planned["fill"], planned["edits_reachable"]
    used = {way: planned["samples_encoded"][way] / sizes[f"edits_{way}"] for way in reach}
    if reach and min(reach.values()) < ENOUGH:
        shares = ", ".join(f"{share:.0%} {way.upper()}" for way, share in reach.items())
        logger.warning("Only %s of the edits can train. `fill` edits uses all of them.", shares)
    elif used and min(used.values()) < ENOUGH:
        logger.warning("This training uses few edits: %s. Train for more epochs.", usage_in_words(planned))


class _Clock(TrainerCallback):
    """Takes the time of each step, without waiting for its data."""

    def __init__(self) -> None:
        self.began, self.seconds = 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.began


def measure_step(trainer: Any) -> dict[str, float]:
    """Take two steps, and return the `seconds` of the second one and the peak `memory` in bytes.

    The memory is that of the GPU, or of the process. Nothing is saved. The trainer is of no use afterwards.
    """
    args, clock = trainer.args, _Clock()
    args.max_steps, args.load_best_model_at_end = 2, False
    args.save_strategy, args.logging_strategy, args.eval_strategy = SaveStrategy.NO, *[IntervalStrategy.NO] * 2
    for callback in list(trainer.callback_handler.callbacks):
        if not isinstance(callback, DefaultFlowCallback):
            trainer.remove_callback(callback)
    trainer.add_callback(clock)
    Trainer.train(trainer)
    on_gpu = args.device.type == "cuda"
    return {"seconds": clock.seconds, "memory": torch.cuda.max_memory_allocated() if on_gpu else _peak_memory()}


def _peak_memory() -> int:
    """Return the peak bytes of this process."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def summarize(trainer: Any, steps: int) -> dict[str, Any]:
    """Return the summary of a finished training that `train` describes."""
    history = trainer.state.log_history
    evaluations = [line for line in history if "eval_i2t_R@1" in line]
    if trainer.args.load_best_model_at_end:
        evaluations = [line for line in evaluations if line["step"] == trainer.state.best_global_step]
    losses = {line["step"]: line["loss"] for line in history if "loss" in line}  # means since the line before
    seconds = trainer.loop.seconds
    return (
        plan(trainer, steps)
        | {
            "processes": trainer.args.world_size,
            "parameters": trainer.base.num_parameters(),
            "parameters_trained": trainer.base.num_parameters(only_trainable=True),
            "seconds": seconds,
            "seconds_per_step": seconds / steps,
            "loss": float(np.average([*losses.values()], weights=np.diff([*losses], prepend=0))),
            "captions_cut": trainer.data_collator.tokens.n_cut,
        }
        | (evaluations[-1] if evaluations else {})
    )
