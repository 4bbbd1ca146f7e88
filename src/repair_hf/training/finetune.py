"""Fine-tune a dual encoder in one call: from pairs and records to a saved model and a summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import TrainOutput

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.models import MERGED
from repair_hf.encoder.opening import Retriever
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.disk import check_room, naming_full_disk
from repair_hf.training.adapters import adapter_config, has_adapters
from repair_hf.training.checkpoints import check_run, mean_loss
from repair_hf.training.checks import check_model
from repair_hf.training.collation import TrainingRows
from repair_hf.training.config import RepairConfig
from repair_hf.training.objectives import Objective
from repair_hf.training.trainer import GridTrainer, run_of, sampler_of

logger = logging.getLogger(__name__)


def train(
    model: Retriever,
    pairs: Pairs,
    records: Dataset | None = None,
    config: RepairConfig | None = None,
    *,
    validation: Pairs | None = None,
    data: TrainingRows | None = None,
    objective: Objective | None = None,
    peft_config: Any = None,
    callbacks: Sequence[TrainerCallback] = (),
    checkpoint: str | bool | None = None,
) -> dict[str, Any]:
    """Fine-tune a dual encoder and save it, with its processor, in `config.output_dir`.

    To train for as long as another run took, set `max_steps` to its `seconds` divided by this kind of run's
    `seconds_per_step`. The learning rate schedule then ends where training does.

    Args:
        model: Trained in place if it is a model or a `DualEncoder`, else loaded from a folder or the Hub.
        pairs: Training pairs.
        records: What `load_records` returns, made from failures on `pairs`; None trains on the pairs alone.
        config: How to train; by default `RepairConfig()`.
        validation: Pairs to evaluate on, as `config.eval_strategy` says; if that is off, see `RepairTrainer`.
        data: Rows to train on in place of the grids of `records`, made of `pairs` and of another method's additions.
        objective: The loss; by default the one that `config.negatives` names.
        peft_config: Adapters to train instead of all weights, such as `LoraConfig`; `config.lora_rank` is shorter.
        callbacks: Callbacks of transformers, such as `EarlyStoppingCallback`.
        checkpoint: Folder to resume from; False starts anew, None follows `config.resume_from_checkpoint`.

    Returns:
        `steps`, `processes`, `parameters` and `parameters_trained` (how many), `seconds` (of the loop, with
        evaluations and checkpoints), `seconds_per_step`, `waiting` (fraction of the seconds between steps, for data),
        `loss` (mean over the steps), `images_per_step` and `texts_per_step` (encoded, all processes together), `grids`
        (see `Grids.report`), `edits_reachable` (by direction, the share that can be encoded), `samples_encoded`
        (synthetic samples of each kind), and the metrics of the last evaluation, if any, or of the best with
        `load_best_model_at_end`. All includes the steps before a resume.
    """
    config = config or RepairConfig()
    how: dict[str, Any] = {"records": records, "rows": data, "objective": objective, "peft_config": peft_config}
    trainer = GridTrainer(model, config, pairs, validation, callbacks=callbacks, **how)
    return train_and_save(trainer, partial(trainer.train, checkpoint))[1]


def train_and_save(trainer: GridTrainer, run: Callable[[], TrainOutput]) -> tuple[TrainOutput, dict[str, Any]]:
    """Run a training and save its model, processor and loss curve; return its result and its summary, see `train`."""
    folder, size = str(trainer.args.output_dir), _space_needed(trainer.model, trainer.args)
    check_room(folder, size)
    with naming_full_disk(folder, lambda: size):
        result = run()
        trainer.save_model()
        trainer.save_state()
        if trainer.args.save_merged and trainer.args.should_save:
            merged = DualEncoder.from_pretrained(folder, device="cpu")  # as every reader of the adapter merges it
            merged.model.save_pretrained(Path(folder) / MERGED)
            merged.preprocessor.save_pretrained(Path(folder) / MERGED)
        trainer.model.eval()
    return result, _summary(trainer, result)


def check_start(encoder: DualEncoder, data: TrainingRows, config: RepairConfig, checkpoint: str | None) -> None:
    """Raise what would stop `train` before its first step. Nothing is written.

    `checkpoint` is what `find_checkpoint` found.

    Raises:
        UserError: If the model cannot be trained, a batch needs more images, or the last checkpoint is of another run.
    """
    check_model(encoder.model)
    adapter_config(encoder.model, config)
    sampler_of(data, config)
    if config.resume_from_checkpoint == "last":
        check_run(checkpoint, run_of(encoder.model, data, config))


def _space_needed(model: PreTrainedModel, config: RepairConfig) -> int:
    """Return the bytes of the trained model, and of one checkpoint: weights and two moments of the optimizer."""
    whole, trained = (
        sum(weight.numel() * weight.element_size() for weight in model.parameters() if weight.requires_grad or frozen)
        for frozen in (True, False)
    )
    saved, merged = trained if has_adapters(model) else whole, whole if config.save_merged else 0
    return saved + merged + (0 if config.save_strategy == "no" else saved + 2 * trained)


def _summary(trainer: GridTrainer, result: TrainOutput) -> dict[str, Any]:
    spent, steps = trainer.spent(), max(result.global_step, 1)
    logged = [line for line in trainer.state.log_history if "eval_i2t_R@1" in line]
    if trainer.args.load_best_model_at_end:
        logged = [line for line in logged if line["step"] == trainer.state.best_global_step]
    return {
        "steps": result.global_step,
        "processes": trainer.args.world_size,
        "parameters": trainer.model.num_parameters(),
        "parameters_trained": trainer.model.num_parameters(only_trainable=True),
        "seconds": spent.seconds,
        "seconds_per_step": spent.seconds / steps,
        "waiting": spent.waited / spent.seconds,
        "loss": mean_loss(trainer.state, trainer.loop.first_step, result.training_loss),
        "images_per_step": spent.images / steps,
        "texts_per_step": spent.texts / steps,
        "grids": trainer.run["rows"],
        "edits_reachable": trainer.train_dataset.edits_reachable(),
        "samples_encoded": trainer.train_dataset.samples_encoded(trainer.sampler.keys(result.global_step)),
    } | (logged[-1] if logged else {})
