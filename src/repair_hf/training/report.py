"""Numbers of a training: what it encodes, known before it starts; what a step costs; the summary of a finished run."""

from __future__ import annotations

import logging
import math
import resource
import sys
import time
from typing import Any

import numpy as np
import torch
from transformers import DefaultFlowCallback, IntervalStrategy, Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy  # seen with transformers 5.23

from repair_hf.evaluation.retrieval import DIRECTIONS

logger = logging.getLogger(__name__)

ENOUGH = 0.5  # share of a direction's edits that a run should use


def plan(trainer: Any, steps: int | None = None) -> dict[str, Any]:
    """Return what a training encodes, which its seed decides.

    Args:
        trainer: Has `fill`, `sampler`, `objective` and `args`.
        steps: Of the training; by default all that its configuration asks for.
    """
    fill, sampler, args = trainer.fill, trainer.sampler, trainer.args
    if steps is None:
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * sampler.batches)
    images_encoded = texts_encoded = 0
    edits: dict[str, set[int]] = {direction: set() for direction in DIRECTIONS}  # those that are encoded
    for epoch in range(math.ceil(steps / sampler.batches)):
        anchors = sampler.order(epoch)[: (steps - epoch * sampler.batches) * sampler.batch_size]
        images, texts = fill.draw(np.full(len(anchors), epoch), anchors)  # (n, S) each
        images_encoded += _distinct(images, args.train_batch_size)
        texts_encoded += _distinct(texts, args.train_batch_size)
        edits["t2i"].update(images[images >= len(fill.pairs.images)].tolist())
        edits["i2t"].update(texts[texts >= len(fill)].tolist())
    counts = fill.report()
    n_edits = sum(edits_of(counts).values())
    return {
        "objective": getattr(trainer.objective, "loss", type(trainer.objective).__name__),
        "steps": steps,
        "pairs_per_step": sampler.batch_size,
        "images_per_step": images_encoded / steps,
        "texts_per_step": texts_encoded / steps,
        "fill": counts,
        "edits_encoded": {direction: len(rows) for direction, rows in edits.items()} if n_edits else {},
        "edits_trained": sum(map(len, edits.values())) / n_edits if n_edits else None,
    }


def _distinct(rows: np.ndarray, batch_size: int) -> int:
    """Count the distinct rows of each batch of anchors, (n, S); -1 is none."""
    batches = rows.reshape(-1, batch_size * rows.shape[1])
    return sum(len(np.unique(batch[batch >= 0])) for batch in batches)


def edits_of(counts: dict[str, Any]) -> dict[str, int]:
    """Return by direction how many edits the report of a fill counts; a direction without any is left out."""
    return {way: size for way in DIRECTIONS if (size := counts.get(f"edits_{way}"))}


def warn_of_plan(planned: dict[str, Any]) -> None:
    """Warn of a training that leaves most edits of a direction out."""
    used = {way: planned["edits_encoded"][way] / size for way, size in edits_of(planned["fill"]).items()}
    if used and min(used.values()) < ENOUGH:
        shares = " and ".join(f"{share:.0%} of the {way.upper()} edits" for way, share in used.items())
        logger.warning("This training uses %s. Train for more epochs.", shares)


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
    if args.device.type == "cuda":
        return {"seconds": clock.seconds, "memory": torch.cuda.max_memory_allocated()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB; on macOS in bytes
    return {"seconds": clock.seconds, "memory": peak * (1 if sys.platform == "darwin" else 1024)}


def summarize(trainer: Any, steps: int) -> dict[str, Any]:
    """Return the summary of a finished training that `train` describes."""
    history = trainer.state.log_history
    evaluations = [line for line in history if "eval_i2t_R@1" in line]
    if trainer.args.load_best_model_at_end and trainer.args.blend == 1:  # a blend is measured last
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
            "captions_cut": trainer.data_collator.n_cut,
        }
        | (evaluations[-1] if evaluations else {})
    )
