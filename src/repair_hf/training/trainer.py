"""Fine-tune a dual encoder on pairs and on the grids of their repaired failures.

In:  a dual encoder, training pairs, records or none, a `RepairConfig`.
Out: a folder that `AutoModel` and `AutoProcessor` load, with the loss curve in `trainer_state.json`; a dict of numbers.

The loss is `L_global + grid_weight * L_grid`. L_global sees the original pairs alone, all of the step's processes
together; L_grid sees one 3x3 grid per anchor and nothing outside it. How a step of B pairs is cut changes only what
InfoNCE must: over processes, nothing (the negatives of all are gathered, with their gradient); over
`gradient_accumulation_steps`, a part of B/k pairs has B/k - 1 negatives in L_global, while L_grid stays the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest
from repair_hf.training.callbacks import MAX_LOGIT_SCALE, Conductor
from repair_hf.training.checkpoints import Signature, Spent, checkpoint_to_resume, spent_before
from repair_hf.training.collation import DecodedImages, GridCollator, Pixels, Rows
from repair_hf.training.config import RepairConfig
from repair_hf.training.grids import Grids
from repair_hf.training.objectives import Objective, Vectors, attach, detach, objective_of
from repair_hf.training.sampling import OneCaptionPerImage
from repair_hf.training.towers import encode_batch

logger = logging.getLogger(__name__)


class RepairTrainer(Trainer):
    """Trains a dual encoder on the rows of `Grids`, or on others with an objective that knows what to do with them.

    Logs the objective's terms (`loss_global`, `loss_grid`) and `logit_scale` (after exp) beside the Trainer's `loss`. Evaluation is retrieval
    on a split of pairs: R@K and MRR both ways, as `eval_i2t_R@1` and so on.

    `train` goes on from the checkpoint that `args.resume_from_checkpoint` names, by default the last, if there is one.

    Args:
        model: A dual encoder whose forward gives unit `image_embeds` and `text_embeds`, with a `logit_scale` (its ln).
        args: The configuration.
        data_collator: Makes batches of the rows of `train_dataset`.
        train_dataset: Anchors and grids.
        processing_class: The model's `Preprocessor`; saved with every checkpoint.
        eval_dataset: Pairs to evaluate on.
        eval_pixels: The images of `eval_dataset`, if they are decoded already.
        objective: What is minimised; by default what `args.negatives` names.
        callbacks: Of transformers, beside those that this needs.
        optimizers: The optimizer and its schedule, in place of those that `args` name.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: RepairConfig,
        data_collator: GridCollator,
        train_dataset: Rows,
        processing_class: Preprocessor,
        eval_dataset: Pairs | None = None,
        *,
        eval_pixels: Pixels | None = None,
        objective: Objective | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
    ) -> None:
        if args.push_to_hub:
            raise UserError(
                "The Trainer's own push would send the pickled arguments, and no card of ours. Leave `push_to_hub` out and call "
                "`repair_hf.hub.push.push_model(folder, repo)` after the training, as `repair-hf train --push-to-hub` does."
            )
        parameters = dict(model.named_parameters())
        if "logit_bias" in parameters:
            # SigLIP's; a constant on all logits leaves a softmax as it is
            parameters["logit_bias"].requires_grad_(False)
        if "logit_scale" not in parameters:
            raise UserError(
                f"{type(model).__name__} has no `logit_scale`; a CLIP- or SigLIP-like dual encoder has one."
            )
        scale = parameters["logit_scale"].exp().item()
        if scale > 1.001 * math.exp(MAX_LOGIT_SCALE) and args.process_index == 0:  # SigLIP's is 117
            logger.warning("The model's logit scale is %.1f; from the first step on it is held at 100 at most.", scale)
        self.conductor = Conductor(self)
        self.objective = objective or objective_of(args.negatives, args.grid_weight, args.known_matches)
        attach(self.objective, model, processes=args.world_size)
        model.float()  # the optimizer's weights are float32, whatever precision they were stored in
        super().__init__(
            model, args, data_collator, train_dataset, eval_dataset=eval_dataset, processing_class=processing_class,
            callbacks=[self.conductor, Signature(self), *callbacks], optimizers=optimizers,
        )  # fmt: skip
        if args.disable_tqdm:
            self.remove_callback(PrinterCallback)  # the loss curve goes to the log and to trainer_state.json
        self.can_return_loss = True
        self.model_accepts_loss_kwargs = False  # the loss is a mean: accumulated parts are averaged
        self.sampler = OneCaptionPerImage(
            train_dataset.anchor_images,
            args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
            args.seed if args.data_seed is None else args.data_seed,
            train_dataset.neighbours if args.batches == "neighbours" else None,
        )
        self._eval_pixels = eval_pixels
        self.encoded = torch.zeros(2, dtype=torch.int64)  # images and captions, since this process began to train
        self._sums: dict[str, Tensor] = {}  # since the last line of the loss curve: sum and count of each term

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """As the Trainer's, with the checks and the counts of the run that it goes on with.

        Args:
            resume_from_checkpoint: A checkpoint's folder; True or None goes by the configuration, False starts anew.
            kwargs: Of the Trainer.

        Raises:
            UserError: If it names no whole checkpoint, or the last one is of another run.
        """
        wanted = resume_from_checkpoint
        if wanted in (None, True):
            wanted = self.args.resume_from_checkpoint
        checkpoint = checkpoint_to_resume(wanted or None, self.args, self.run)
        self.conductor.before = spent_before(checkpoint)
        return super().train(resume_from_checkpoint=checkpoint, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Encode the batch's distinct items once, then add up the objective's terms.

        Here `num_items_in_batch` is the number of grids in the whole optimizer step, so that L_grid is the mean over
        those however the step is cut; None where this batch is the whole step.
        """
        inputs = self.objective.prepare(inputs)
        images, texts, *features = encode_batch(  # (n_images, D), (n_texts, D)
            model,
            inputs["pixels"],
            inputs["texts"],
            self.processing_class.normalize,
            once_more=self.model if self.args.world_size > 1 else model,
            in_chunks=self.args.chunk_size is not None,
            with_features=self.objective.needs_features,
            autocast=self.accelerator.autocast,
        )
        self.encoded += torch.tensor([len(images), len(texts)])
        vectors = Vectors(images, texts, self.model.logit_scale.exp(), *features)
        parts = []
        for name, term in self.objective(vectors, inputs).items():
            count = torch.ones_like(term.value) if term.count is None else term.count
            share = 1.0 if term.count is None else self._share(term.count, num_items_in_batch)
            parts.append(term.weight * term.value * share)
            self._sums[name] = self._sums.get(name, 0) + torch.stack([term.value.detach() * count, count.detach()])
        loss = torch.stack(parts).sum()
        return (loss, {"image_embeds": images, "text_embeds": texts}) if return_outputs else loss

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Count the grids of the whole optimizer step where it is cut into several batches."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        is_cut = num_batches * self.args.world_size > 1
        if not (is_cut and batches and "present" in batches[0]):
            return batches, None
        grids = sum((batch["present"].sum(1) >= 2).sum() for batch in batches)
        return batches, self.accelerator.reduce(grids, "sum")

    def log(self, logs, start_time=None):
        if "loss" in logs and self._sums:
            sums = self.accelerator.reduce(torch.stack(list(self._sums.values())).float(), "sum")  # (terms, 2)
            for name, (total, count) in zip(self._sums, sums.tolist(), strict=True):
                logs[name] = total / max(count, 1)
            logs["logit_scale"] = self.model.logit_scale.exp().item()
            self._sums = {}
        super().log(logs, start_time)
        if self.args.disable_tqdm and self.is_world_process_zero():  # else the progress bar shows them
            shown = "   ".join(f"{name} {value:.6g}" for name, value in logs.items())
            logger.info("step %d of %d   %s", self.state.global_step, self.state.max_steps, shown)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Retrieval on pairs: R@K and MRR as fractions, `eval_i2t_R@1` and so on."""
        pairs = self.eval_dataset if eval_dataset is None else eval_dataset
        if pairs is None:
            raise UserError("There is nothing to evaluate on; give `eval_dataset`, pairs of a validation split.")
        pixels = self._eval_pixels if eval_dataset is None else None
        encoder = DualEncoder(
            self.model, self.processing_class, device=self.args.device, batch_size=self.args.per_device_eval_batch_size
        )
        found = evaluate_retrieval(*encoder.embed_pairs(pairs, pixels=pixels), pairs.caption_image)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def spent(self) -> Spent:
        """What all steps took so far, those before a resume too; every process of the run asks at once."""
        return self.conductor.spent(*self.accelerator.reduce(self.encoded.to(self.args.device), "sum").tolist())

    @cached_property
    def run(self) -> dict[str, Any]:
        """What a checkpoint tells its run from others by."""
        captions = digest(self.train_dataset.captions)
        data = {"model": self.model.name_or_path, "captions": captions, "rows": self.train_dataset.report()}
        return self.args.recorded() | data

    def get_decay_parameter_names(self, model):
        """No biases, no norms of whatever kind, and not the logit scale, which is a temperature and no weight."""
        matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
        return [name for name in super().get_decay_parameter_names(model) if name in matrices]

    def floating_point_ops(self, inputs):
        """No count: the Trainer's formula is a language model's, and takes longer than the grids of a step."""
        return 0

    def _get_train_sampler(self, train_dataset=None):
        return self.sampler

    def _run_epoch(self, *args, **kwargs):
        """Nothing is left to do if the run goes on from its last checkpoint; the Trainer would take one more step."""
        if self.state.global_step < self.state.max_steps:
            return super()._run_epoch(*args, **kwargs)
        self.control.should_training_stop = True

    def _share(self, grids: Tensor, in_step: Tensor | None) -> Tensor | float:
        """What turns a mean over this batch's grids into its part of the mean over those of the optimizer step."""
        if in_step is None:
            return 1.0
        cuts = self.current_gradient_accumulation_steps * self.args.world_size  # the Trainer averages over these
        return cuts * grids / in_step.clamp(min=1)


def train(
    model: DualEncoder | str | Path,
    pairs: Pairs,
    records: Dataset | None = None,
    config: RepairConfig | None = None,
    *,
    validation: Pairs | None = None,
    data: Rows | None = None,
    objective: Objective | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Fine-tune a dual encoder and save it, with its processor, in `config.output_dir`.

    To train for as long as another run took, set `max_steps` to its `seconds` divided by a run of this kind's
    `seconds_per_step`: so the schedule of the learning rate still ends where training does.

    Args:
        model: Trained in place if it is a `DualEncoder`, else loaded from a folder or the Hub.
        pairs: Training pairs.
        records: What `load_records` gives, made from failures on `pairs`; None trains on the pairs alone.
        config: How to train; the defaults of `RepairConfig` otherwise.
        validation: Pairs for the evaluation that `config.eval_strategy` asks for.
        data: Rows to train on in place of the grids of `records`, made of `pairs` and of what another method adds to them.
        objective: What is minimised; by default what `config.negatives` names.
        callbacks: Of transformers, such as `EarlyStoppingCallback`.

    Returns:
        `steps`, `processes`, `seconds` (of the loop, evaluations and checkpoints included), `seconds_per_step`, `waiting` (share of
        the seconds between steps, for data), `loss` (mean over the steps), `images_per_step` and `texts_per_step` (encoded, all processes
        together), `grids` (see `Grids.report`) and, where there was an evaluation, the metrics of the last; with `load_best_model_at_end`,
        of the best. After a resume all of it counts the steps before, too.
    """
    config = RepairConfig() if config is None else config
    encoder = model if isinstance(model, DualEncoder) else DualEncoder.from_pretrained(model, device=config.device)
    data = data or grids_of(pairs, records, config)
    tables = [_pixels(pairs.images, "image", encoder, config)]
    if data.edited_images is not None:
        tables.append(_pixels(data.edited_images, "edit_image", encoder, config))
    eval_pixels = None if validation is None else _pixels(validation.images, "image", encoder, config)
    collator = GridCollator(encoder.preprocessor, tables, data.captions, chunk_size=config.chunk_size)
    trainer = RepairTrainer(
        encoder.model, config, collator, data, encoder.preprocessor, validation,
        eval_pixels=eval_pixels, objective=objective, callbacks=callbacks,
    )  # fmt: skip
    result = trainer.train()
    spent, loss = trainer.spent(), trainer.conductor.mean_loss(result.training_loss)
    detach(encoder.model)
    for name in ("forward", "_original_forward"):  # accelerate's, with which the model would go on in mixed precision
        vars(encoder.model).pop(name, None)
    trainer.save_model()
    trainer.save_state()
    encoder.model.eval()
    steps = max(result.global_step, 1)
    logged = [line for line in trainer.state.log_history if "eval_i2t_R@1" in line]
    if config.load_best_model_at_end:
        logged = [line for line in logged if line["step"] == trainer.state.best_global_step]
    return {
        "steps": result.global_step,
        "processes": config.world_size,
        "seconds": spent.seconds,
        "seconds_per_step": spent.seconds / steps,
        "waiting": spent.waited / spent.seconds,
        "loss": loss,
        "images_per_step": spent.images / steps,
        "texts_per_step": spent.texts / steps,
        "grids": trainer.run["rows"],
    } | (logged[-1] if logged else {})


def grids_of(pairs: Pairs, records: Dataset | None, config: RepairConfig) -> Grids:
    """The grids that a configuration trains on.

    Raises:
        UserError: If it wants batches along the failures, and there are none.
    """
    records = None if config.negatives == "none" else records
    if records is None and config.batches == "neighbours":
        raise UserError(
            "`batches: neighbours` fills a batch along the records' failures, and there are none. Give records, or leave it out."
        )
    return Grids(
        pairs, records, counterparts=config.counterparts, slot1=config.slot1, has_opposites=config.negatives != "alone",
        seed=config.seed if config.data_seed is None else config.data_seed,
    )  # fmt: skip


def _pixels(images: Dataset, column: str, encoder: DualEncoder, config: RepairConfig) -> Pixels:
    if not config.cache_images:
        return DecodedImages(images, column, encoder.preprocessor)
    return PixelStore(images, column, encoder.preprocessor, config.cache_folder, draft=config.draft_jpegs)
