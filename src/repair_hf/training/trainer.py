"""The trainer of a dual encoder, on pairs and on the grids of their repaired failures.

L_global compares the pairs of all processes in a step, by default with edits among them. Other values of `negatives`
add `grid_weight * L_grid`, over the items of one 3x3 grid per anchor. L_global gathers its negatives with their
gradient. With `gradient_accumulation_steps` of k, a part of B/k pairs has only B/k - 1 of them; L_grid stays the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler
from transformers import PreTrainedModel, PrinterCallback, ProcessorMixin, Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.opening import Retriever, open_encoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest
from repair_hf.training.adapters import (
    adapter_config,
    described,
    has_adapters,
    limit_training,
    load_adapters,
    name_base,
)
from repair_hf.training.checkpoint_files import fault
from repair_hf.training.checkpoints import (
    LoopCallback,
    Signature,
    Spent,
    check_run,
    find_checkpoint,
    spent_before,
)
from repair_hf.training.checks import check_arguments, check_trainable, global_loss_of, keep_the_best
from repair_hf.training.collation import TrainingRows
from repair_hf.training.config import RepairConfig
from repair_hf.training.objectives import Objective, Vectors, attach, detach, named, objective_of
from repair_hf.training.sampling import OneCaptionPerImage
from repair_hf.training.tables import collator_of, grids_of, pixels_of
from repair_hf.training.towers import encode_batch

logger = logging.getLogger(__name__)


class GridTrainer(Trainer):
    """A `Trainer` for dual encoders on pairs and on the grids of their records.

    It trains and writes checkpoints. `hub.trainer.RepairTrainer`, where the arguments are described, also leaves a
    finished folder, and pushes it.
    """

    args: RepairConfig
    model: Any  # the types below are not among those that the Trainer declares
    processing_class: Any
    train_dataset: Any
    eval_dataset: Any

    def __init__(
        self,
        model: Retriever,
        args: RepairConfig,
        train_dataset: Pairs,
        eval_dataset: Pairs | None = None,
        processing_class: ProcessorMixin | Preprocessor | None = None,
        *,
        records: Dataset | DatasetDict | None = None,
        rows: TrainingRows | None = None,
        objective: Objective | None = None,
        peft_config: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
    ) -> None:
        records = check_arguments(args, train_dataset, eval_dataset, records)
        encoder = open_encoder(model, processing_class, device=args.device)
        rule = str(args.negatives), args.grid_weight, args.known_matches, global_loss_of(encoder.model, args)
        self.objective: Objective = objective or objective_of(*rule)
        check_trainable(encoder.model, args, needs_bias=self.objective.needs_bias)
        rows = rows or grids_of(train_dataset, records, args)
        if eval_dataset is not None:
            keep_the_best(args)
        self.sampler = sampler_of(rows, args)
        self.loop = LoopCallback(self.sampler, bounds_scale=not self.objective.needs_bias)
        self._given = {"peft_config": described(peft_config)} | named(objective)
        adapter = adapter_config(encoder.model, args, peft_config)
        self.base_digest = None if adapter is None else encoder.digest  # before its weights get other names
        limit_training(encoder.model, args, adapter)
        attach(self.objective, encoder.model, processes=args.world_size)
        super().__init__(
            encoder.model,
            args,
            collator_of(encoder, train_dataset, rows, args),
            rows,
            eval_dataset=eval_dataset,
            processing_class=encoder.preprocessor,  # type: ignore[arg-type]
            callbacks=[self.loop, Signature(self), *callbacks],
            optimizers=optimizers,  # type: ignore[arg-type]
        )
        if args.disable_tqdm:
            self.remove_callback(PrinterCallback)  # the loss curve goes to the log and to trainer_state.json
        self.can_return_loss = True
        self.model_accepts_loss_kwargs = False  # the loss is a mean: accumulated parts are averaged
        self.encoded = torch.zeros(2, dtype=torch.int64)  # images and captions, since this process began to train
        self.pairs, self.records = train_dataset, records
        self._eval_pixels = eval_dataset, eval_dataset and pixels_of(eval_dataset.images, "image", encoder, args)
        self._before = Spent()  # the cost before a resume
        self._sums: dict[str, Tensor] = {}  # sum and count of each term since the last log

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train as the Trainer does, and check that a checkpoint is complete and belongs to this run.

        `resume_from_checkpoint` is a folder; True or None follows the configuration, False starts anew.

        Raises:
            UserError: If the checkpoint is incomplete, or the last one is of another run.
        """
        wanted = resume_from_checkpoint
        if wanted is None or wanted is True:
            wanted = self.args.resume_from_checkpoint
        checkpoint = find_checkpoint(wanted or None, self.args)
        if wanted == "last":
            check_run(checkpoint, self.run)
        self._before = spent_before(checkpoint)
        return super().train(checkpoint, trial, ignore_keys_for_eval)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Encode the batch's distinct items once, then sum the objective's terms.

        Here `num_items_in_batch` is the number of grids in the whole optimizer step, so that L_grid is their mean
        however the step is split; None if this batch is the whole step.
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
        bias = self.model.logit_bias if self.objective.needs_bias else None
        vectors = Vectors(images, texts, self.model.logit_scale.exp(), next(iter(features), None), bias)
        parts = []
        for name, term in self.objective(vectors, inputs).items():
            count = torch.ones_like(term.value) if term.count is None else term.count
            share = 1.0 if term.count is None else self._share(term.count, num_items_in_batch)
            parts.append(term.weight * term.value * share)
            self._sums[name] = self._sums.get(name, 0) + torch.stack([term.value.detach() * count, count.detach()])
        loss = torch.stack(parts).sum()
        return (loss, {"image_embeds": images, "text_embeds": texts}) if return_outputs else loss

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Count the grids of an optimizer step that is split into several batches."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        is_cut = num_batches * self.args.world_size > 1
        if not (is_cut and batches and "present" in batches[0]):
            return batches, None
        grids = sum((batch["present"].sum(1) >= 2).sum() for batch in batches)
        return batches, self.accelerator.reduce(grids, "sum")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the objective's terms and the logit scale too; the whole line goes to the log without a progress bar."""
        if "loss" in logs and self._sums:
            sums = self.accelerator.reduce(torch.stack(list(self._sums.values())).float(), "sum")  # (terms, 2)
            for name, (total, count) in zip(self._sums, sums.tolist(), strict=True):
                logs[name] = total / max(count, 1)
            logs["logit_scale"] = self.model.logit_scale.exp().item()
            if self.objective.needs_bias:
                logs["logit_bias"] = self.model.logit_bias.item()
            self._sums = {}
        super().log(logs, start_time)
        if self.args.disable_tqdm and self.is_world_process_zero():
            shown = "   ".join(f"{name} {value:.6g}" for name, value in logs.items())
            logger.info("step %d of %d   %s", self.state.global_step, self.state.max_steps, shown)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measure retrieval on pairs: R@K and MRR as fractions, `eval_i2t_R@1` and so on."""
        pairs = self.eval_dataset if eval_dataset is None else eval_dataset
        if pairs is None:
            raise UserError("There is nothing to evaluate on; give `eval_dataset`, pairs of a validation split.")
        known, stored = self._eval_pixels
        encoder = DualEncoder(
            self.model, self.processing_class, device=self.args.device, batch_size=self.args.per_device_eval_batch_size
        )
        vectors = encoder.embed_pairs(pairs, pixels=stored if pairs is known else None)
        found = evaluate_retrieval(*vectors, pairs.caption_image)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save model and processor. A checkpoint keeps what the objective needs; any other folder holds none of it."""
        if not _internal_call:
            detach(self.model)
            # Leave mixed precision. `Accelerator.unwrap_model` would also strip decorators of transformers' forward.
            for name in ("forward", "_original_forward"):
                vars(self.model).pop(name, None)
        super().save_model(output_dir, _internal_call)
        if has_adapters(self.model) and self.args.should_save:
            name_base(output_dir or str(self.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if has_adapters(self.model):  # transformers loads adapters into peft's own models alone
            return load_adapters(self.model, resume_from_checkpoint)
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        """Load the best model, unless its checkpoint was damaged since."""
        folder = Path(str(self.state.best_model_checkpoint))
        if folder.is_dir() and (why := fault(folder, self.args.world_size)):
            raise UserError(f"The best checkpoint, {folder}, is damaged: {why}. Delete the checkpoints to train anew.")
        if has_adapters(self.model):
            return load_adapters(self.model, folder)
        super()._load_best_model()

    def spent(self) -> Spent:
        """Return the cost of all steps, including those before a resume. Every process must call it at once."""
        images, texts = self.accelerator.reduce(self.encoded.to(self.args.device), "sum").tolist()
        return self._before + self.loop.spent(images, texts)

    @cached_property
    def run(self) -> dict[str, Any]:
        """What identifies this run in its checkpoints."""
        return run_of(self.model, self.train_dataset, self.args) | self._given

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Exclude biases, norms of any kind, and the logit scale, which is a temperature."""
        matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
        return [name for name in super().get_decay_parameter_names(model) if name in matrices]

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return 0: the Trainer's formula is for language models, and takes longer than the grids of a step."""
        return 0

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any]:
        return self.sampler

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing if the run was resumed from its last step.

        The Trainer would take one more step: it asks for `should_training_stop` only after a step, so no callback can
        prevent it.
        """
        if self.state.global_step < self.state.max_steps:
            return super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.control.should_training_stop = True

    def _share(self, grids: Tensor, in_step: Tensor | None) -> Tensor | float:
        """Return the factor from a mean over this batch's grids to its share of the mean over the optimizer step."""
        if in_step is None:
            return 1.0
        cuts = self.current_gradient_accumulation_steps * self.args.world_size  # the Trainer averages over these
        return cuts * grids / in_step.clamp(min=1)


def sampler_of(rows: TrainingRows, args: RepairConfig) -> OneCaptionPerImage:
    """Create the sampler of a training's batches. An error is raised if there are fewer images than a batch needs."""
    return OneCaptionPerImage(
        rows.anchor_images,
        args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        args.seed if args.data_seed is None else args.data_seed,
        rows.neighbours if args.batches == "neighbours" else None,
    )


def run_of(model: PreTrainedModel, rows: TrainingRows, args: RepairConfig) -> dict[str, Any]:
    """Return what identifies a run in its checkpoints."""
    report = rows.report()
    data = {"model": model.name_or_path, "captions": digest(rows.captions), "rows": report}
    data |= {"global_loss": global_loss_of(model, args), "dtype": str(model.dtype).removeprefix("torch.")}
    return args.recorded(has_records="cells" in report) | data
