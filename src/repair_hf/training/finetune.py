"""Fine-tune a dual encoder in one call: from pairs and records to a saved model and a summary."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import TrainOutput

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.disk import check_room, naming_full_disk
from repair_hf.runtime.options import UserError
from repair_hf.training.checkpoints import check_run, mean_loss
from repair_hf.training.collation import DecodedImages, GridCollator, Pixels, TrainingRows
from repair_hf.training.config import RepairConfig
from repair_hf.training.grids import Grids
from repair_hf.training.hyperparameters import GridRule, rule_of
from repair_hf.training.objectives import Objective, detach
from repair_hf.training.trainer import RepairTrainer, check_model, run_of, sampler_of

logger = logging.getLogger(__name__)

ENOUGH = 0.5  # of the edits that can train; below it, a warning


def train(
    model: DualEncoder | str | Path,
    pairs: Pairs,
    records: Dataset | None = None,
    config: RepairConfig | None = None,
    *,
    validation: Pairs | None = None,
    data: TrainingRows | None = None,
    objective: Objective | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    checkpoint: str | bool | None = None,
) -> dict[str, Any]:
    """Fine-tune a dual encoder and save it, with its processor, in `config.output_dir`.

    To train for as long as another run took, set `max_steps` to its `seconds` divided by this kind of run's
    `seconds_per_step`. The learning rate schedule then ends where training does.

    Args:
        model: Trained in place if it is a `DualEncoder`, else loaded from a folder or the Hub.
        pairs: Training pairs.
        records: What `load_records` returns, made from failures on `pairs`; None trains on the pairs alone.
        config: How to train; by default `RepairConfig()`.
        validation: Pairs for the evaluation that `config.eval_strategy` asks for.
        data: Rows to train on in place of the grids of `records`, made of `pairs` and of another method's additions.
        objective: The loss; by default the one that `config.negatives` names.
        callbacks: Callbacks of transformers, such as `EarlyStoppingCallback`.
        checkpoint: Folder to resume from; False starts anew, None follows `config.resume_from_checkpoint`.

    Returns:
        `steps`, `processes`, `seconds` (of the loop, with evaluations and checkpoints), `seconds_per_step`, `waiting`
        (fraction of the seconds between steps, for data), `loss` (mean over the steps), `images_per_step` and
        `texts_per_step` (encoded, all processes together), `grids` (see `Grids.report`), `edits_reachable` (by
        direction, the share of edits that can be encoded in some epoch), `samples_encoded` (how many synthetic samples
        of each kind were encoded), and the metrics of the last evaluation, if any, or of the best with
        `load_best_model_at_end`. All of it includes the steps before a resume.
    """
    config = RepairConfig() if config is None else config
    encoder = model if isinstance(model, DualEncoder) else DualEncoder.from_pretrained(model, device=config.device)
    data = data or grids_of(pairs, records, config)
    eval_pixels = None if validation is None else _pixels(validation.images, "image", encoder, config)
    trainer = RepairTrainer(
        encoder.model, config, _collator(encoder, pairs, data, config), data, encoder.preprocessor, validation,
        eval_pixels=eval_pixels, objective=objective, callbacks=callbacks,
    )  # fmt: skip
    size = _space_needed(encoder.model, config)
    check_room(str(config.output_dir), size)
    with naming_full_disk(str(config.output_dir), lambda: size):
        summary = _summary(trainer, trainer.train(checkpoint))
        _save(trainer, encoder.model)
    return summary


def check_start(encoder: DualEncoder, data: TrainingRows, config: RepairConfig, checkpoint: str | None) -> None:
    """Raise what would stop `train` before its first step. Nothing is written.

    `checkpoint` is what `find_checkpoint` found.

    Raises:
        UserError: If the model cannot be trained, a batch needs more images, or the last checkpoint is of another run.
    """
    check_model(encoder.model)
    sampler_of(data, config)
    if config.resume_from_checkpoint == "last":
        check_run(checkpoint, run_of(encoder.model, data, config))


def grids_of(
    pairs: Pairs,
    records: Dataset | None,
    config: RepairConfig,
    known: tuple[np.ndarray, np.ndarray] | None = None,
) -> Grids:
    """Create the grids that a configuration trains on; `known` is as for `Grids`.

    Raises:
        UserError: If it asks for batches of neighbours, and there are no records.
    """
    records = None if config.negatives == "none" else records
    if records is None and config.batches == "neighbours":
        raise UserError(
            "`batches: neighbours` fills a batch along the records' failures, and there are none. Give records, or "
            "leave it out."
        )
    rule = asdict(rule_of(vars(config)))
    seed = config.seed if config.data_seed is None else config.data_seed
    grids = Grids(pairs, records, seed=seed, known=known, **rule)
    if config.process_index == 0:
        _log_reach(grids)
    return grids


def _log_reach(grids: Grids) -> None:
    """Log which edits can train, and warn if most cannot: they were paid for."""
    reach, default = grids.edits_reachable(), GridRule()
    if not reach:
        return
    shown = ", ".join(f"{share:.0%} {direction}" for direction, share in reach.items())
    logger.info("edits that can be encoded in some epoch: %s", shown)
    if min(reach.values()) >= ENOUGH:
        return
    usual = asdict(default) | {"negatives": GridRule(grids=grids.rule.grids).negatives}
    changed = " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in asdict(grids.rule).items() if value != usual[name]
    )
    otherwise = ", ".join(f"{share:.0%} {direction}" for direction, share in grids.edits_reachable(default).items())
    logger.warning("Few of the edits can train: %s. Without %s it would be %s.", shown, changed, otherwise)


def _collator(encoder: DualEncoder, pairs: Pairs, data: TrainingRows, config: RepairConfig) -> GridCollator:
    tables = [_pixels(pairs.images, "image", encoder, config)]
    if data.edited_images is not None:
        tables.append(_pixels(data.edited_images, "edit_image", encoder, config))
    return GridCollator(encoder.preprocessor, tables, data.captions, chunk_size=config.chunk_size)


def _pixels(images: Dataset, column: str, encoder: DualEncoder, config: RepairConfig) -> Pixels:
    if not config.cache_images:
        return DecodedImages(images, column, encoder.preprocessor)
    return PixelStore(images, column, encoder.preprocessor, config.cache_folder, draft=config.draft_jpegs)


def _space_needed(model: PreTrainedModel, config: RepairConfig) -> int:
    """Return the bytes of the trained model, and of one checkpoint: weights and two moments of the optimizer."""
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return weights * (1 if config.save_strategy == "no" else 4)


def _summary(trainer: RepairTrainer, result: TrainOutput) -> dict[str, Any]:
    spent, steps = trainer.spent(), max(result.global_step, 1)
    logged = [line for line in trainer.state.log_history if "eval_i2t_R@1" in line]
    if trainer.args.load_best_model_at_end:
        logged = [line for line in logged if line["step"] == trainer.state.best_global_step]
    return {
        "steps": result.global_step,
        "processes": trainer.args.world_size,
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


def _save(trainer: RepairTrainer, model: PreTrainedModel) -> None:
    detach(model)
    # Leave mixed precision. `Accelerator.unwrap_model` would also strip the decorators of transformers' own forward.
    for name in ("forward", "_original_forward"):
        vars(model).pop(name, None)
    trainer.save_model()
    trainer.save_state()
    model.eval()  # type: ignore[no-untyped-call]
