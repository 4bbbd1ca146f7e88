"""The trainer of a dual encoder, on pairs and on the records of their repaired failures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import ProcessorMixin, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import TrainOutput  # seen with transformers 5.23

from repair_hf.encoder.adapters import as_json, check_model, limit_training
from repair_hf.encoder.blend import blend, untrained
from repair_hf.encoder.models import MODEL_FILES, weights_dtype
from repair_hf.encoder.opening import Retriever, open_encoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.pairs.truth import Truth
from repair_hf.runtime.options import IN_MEMORY, UserError, expect, flags, neutral_names
from repair_hf.runtime.run_folder import digest
from repair_hf.runtime.stage import Stage
from repair_hf.training.batches import OneCaptionPerImage, collator_of
from repair_hf.training.checkpoints import STATE, RunOptions, find_checkpoint
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, fill_of, open_records
from repair_hf.training.loop import DualEncoderTrainer, LoopCallback, NormKeepingClip, encode
from repair_hf.training.report import plan, summarize, warn_of_plan
from repair_hf.training.step import Objective, PairObjective, step_of

NEEDS = ("fill", "steps", "seconds", "seconds_per_step", "loss")  # keys of a summary


class RepairTrainer(DualEncoderTrainer):
    """A transformers `Trainer` for dual encoders, on pairs and on records of their repaired failures.

    It logs the objective's terms (`loss_global`, `loss_grid`) and `logit_scale` (after exp). Evaluation is retrieval
    on pairs: R@K and MRR in both directions. With pairs to evaluate on, unless `args` save checkpoints, it keeps the
    best model by `metric_for_best_model` (`t2i_MRR` by default), measured after each epoch or as `eval_strategy` says.

    Args:
        model: A `CLIPModel` or another dual encoder of transformers, which is trained in place; a Hub id or a folder.
        args: The configuration, which is copied; by default `RepairConfig()`.
        train_dataset: Pairs to train on.
        eval_dataset: Pairs to evaluate on, of a validation split.
        processing_class: The model's processor, by default the one beside the weights; saved with every checkpoint.
        records: Records of failures on `train_dataset`: what `synthesize` or `load_records` returns, or folders or Hub
            ids of it. None trains on the pairs alone.
        truth: What is known to match, and is masked out of the loss; by default what `train_dataset` says.
        fill: Which pairs stand beside each training pair; by default what `args.fill` makes of `records`.
        objective: The loss; by default the one that `args.loss` names.
        peft_config: Adapters to train instead of all weights, such as `peft.LoraConfig(...)`.
        callbacks, optimizers: As in the Trainer.

    Attributes:
        options: What identifies this run beside `declared`; the folder records both, and the card shows them.
        declared: Dataclasses of options beside the configuration.
        summary: After `train`, what the function of this name returns.

    Raises:
        UserError: If an argument is of a wrong type, or the model cannot be trained so.

    Example:
        >>> trainer = RepairTrainer(model, RepairConfig("tuned"), pairs, validation, processor, records=records)
        >>> trainer.train()
        >>> trainer.push_to_hub()
    """

    summary: dict[str, Any]
    declared: Sequence[Any] = ()

    def __init__(
        self,
        model: Retriever,
        args: RepairConfig | None = None,
        train_dataset: Pairs = None,  # type: ignore[assignment]  # checked below
        eval_dataset: Pairs | None = None,
        processing_class: ProcessorMixin | Preprocessor | None = None,
        *,
        records: Dataset | DatasetDict | str | Path | Sequence[str | Path] | None = None,
        truth: Truth | None = None,
        fill: Anchors | None = None,
        objective: Objective | None = None,
        peft_config: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
    ) -> None:
        args = RepairConfig() if args is None else args
        _check_types(args, train_dataset, eval_dataset)
        args = args.prepared(has_validation=eval_dataset is not None)
        loaded_records = open_records(records, train_dataset)
        encoder = open_encoder(model, processing_class, device=args.device)
        self.base, model_digest = encoder.model, encoder.digest  # before adapters are added
        self.needs_bias = check_model(self.base, args.global_loss)
        self.fill = fill or fill_of(train_dataset, loaded_records, args, truth)
        self.objective: Objective = objective or _objective_of(args, self.fill, sigmoid=self.needs_bias)
        self.sampler = OneCaptionPerImage(train_dataset.caption_image, args.step_size, args.draw_seed)
        self.loop = LoopCallback(self, bounds_scale=not self.needs_bias)
        self.run_options = RunOptions()
        limits = {name: getattr(args, name) for name in ("freeze", "lora_rank", "lora_towers", "seed")}
        super().__init__(
            limit_training(self.base, **limits, peft_config=peft_config),
            args,
            collator_of(encoder, train_dataset, self.fill, args),
            train_dataset,
            eval_dataset=eval_dataset,
            processing_class=encoder.preprocessor,  # type: ignore[arg-type]
            callbacks=[self.loop, self.run_options, *callbacks],
            optimizers=optimizers,  # type: ignore[arg-type]
        )
        for callback in (PrinterCallback, ProgressCallback):  # `LoopCallback` shows the progress
            self.remove_callback(callback)
        _check_parameters(self.objective, self.model)
        self.clip = NormKeepingClip(self.accelerator.clip_grad_norm_)
        self.accelerator.clip_grad_norm_ = self.clip
        self.model_accepts_loss_kwargs = False  # the loss is a mean: accumulated parts are averaged
        self.options = self._options(peft_config, objective) | {"model_digest": model_digest}
        self.options |= _options_of_records(records, loaded_records)
        self._untrained = None if args.blend == 1 else untrained(self.model)
        self._has_trained = False
        self.terms: dict[str, list[Tensor]] = {}  # since the last log

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and save model, processor, loss curve and summary in `args.output_dir`, as `repair-hf train` does.

        With `args.blend` below 1, the saved model is blended with its base; checkpoints are not. A second call trains
        on, in a new run. `resume_from_checkpoint` is a folder; True or None follows `args`, False starts anew.

        Raises:
            UserError: If the folder holds something else, or a checkpoint is incomplete or of another run.
        """
        folder = str(self.args.output_dir)
        if resume_from_checkpoint is None or resume_from_checkpoint is True:
            resume_from_checkpoint = None if self._has_trained else self.args.resume_from_checkpoint
        is_main = self.is_world_process_zero()
        stage = self.stage
        checkpoint = find_checkpoint(resume_from_checkpoint or None, folder, stage.deciding, logs=is_main)
        self.run_options.options = stage.deciding
        self._has_trained = True
        self.terms = {}
        if is_main:
            warn_of_plan(self.plan)
        outputs: list[TrainOutput] = []

        def work(_: Any) -> dict[str, Any]:
            stage.begin()
            start = str(checkpoint) if checkpoint else None
            try:
                outputs.append(super(RepairTrainer, self).train(start, trial, ignore_keys_for_eval))
            finally:
                self.loop.bar.close()
            if self._untrained is not None:
                blend(self.model, self._untrained, self.args.blend)
                if self.eval_dataset is not None:
                    self.evaluate()  # what is saved, not what was trained
            self.save_model()
            self.save_state()
            self.model.eval()
            return summarize(self, outputs[0].global_step)

        self.summary = stage.run(work, again=True)
        return outputs[0]

    @cached_property
    def plan(self) -> dict[str, Any]:
        """What this training encodes: `steps`, `pairs_per_step`, counts of pairs and edits; see `summary`."""
        return plan(self)

    @property
    def stage(self) -> Stage:
        """The folder of this training."""
        return Stage(
            "train",
            str(self.args.output_dir),
            (self.train_dataset.source, *self.declared),
            self.options,
            items=self.train_dataset.items,
            needs=NEEDS,
            neutral=neutral_names(RepairConfig),
            words=flags(self.args.changed | {"output_dir": None}),
            writes=(*MODEL_FILES, STATE, "training_args.bin"),
        )

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Encode the batch's distinct items once, join the pairs of all processes, and sum the objective's terms."""
        images, texts = encode(
            model,
            inputs,
            self.processing_class.normalize,
            inner=self.model,
            in_chunks=self.args.chunk_size is not None,
            autocast=self.accelerator.autocast,
        )
        bias = self.base.logit_bias if self.needs_bias else None
        step = step_of(images, texts, inputs, self.fill.truth, self.base.logit_scale.exp(), bias)
        terms = self.objective.terms(step)
        for name, value in terms.items():
            self.terms.setdefault(name, []).append(value.detach())
        loss = torch.stack([self.objective.weights.get(name, 1.0) * value for name, value in terms.items()]).sum()
        return (loss, {"image_embeds": images, "text_embeds": texts}) if return_outputs else loss

    def push_to_hub(self, repo: str | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Push the trained model with its processor and its card, as one commit; see `push_model`.

        By default `repo` is the name of the output folder. Processes other than the main one get None.
        """
        from repair_hf.hub.push import push_model  # the one import from a higher floor: a Trainer pushes itself

        pushed, folder = None, os.path.abspath(str(self.args.output_dir))
        if self.is_world_process_zero():
            pushed = push_model(folder, repo or os.path.basename(folder), **options)
        self.accelerator.wait_for_everyone()
        return pushed

    def _options(self, peft_config: Any, objective: Objective | None) -> dict[str, Any]:
        """Return what identifies this run beside its records and its model's digest."""
        return self.args.recorded() | {
            "pairs_fingerprint": self.train_dataset.fingerprint,
            "model": self.base.name_or_path or None,
            "sigmoid": self.needs_bias,
            "dtype": str(weights_dtype(self.base)),
            "peft_config": as_json(peft_config),
            "objective": objective and type(objective).__name__,
        }


def _options_of_records(records: Any, loaded_records: Dataset | None) -> dict[str, Any]:
    if loaded_records is None:
        return {}
    name = IN_MEMORY if isinstance(records, Dataset | DatasetDict) else records
    return {"records": name, "records_digest": digest(loaded_records["record_id"][:])}


def _check_types(args: Any, train_dataset: Any, eval_dataset: Any) -> None:
    expect(args, RepairConfig, "args", "a RepairConfig: `RepairConfig(OUTPUT_FOLDER)`")
    expect(train_dataset, Pairs, "train_dataset", MAKE_PAIRS)
    expect(eval_dataset, (Pairs, type(None)), "eval_dataset", MAKE_PAIRS)


def _objective_of(args: RepairConfig, fill: Anchors, *, sigmoid: bool) -> PairObjective:
    """Return the loss that a configuration names; without any pair beside an anchor, that of the anchors alone."""
    loss = args.loss if args.loss and fill.share else "none"
    return PairObjective(loss, args.grid_weight, args.grid_mean, sigmoid=sigmoid)


def _check_parameters(objective: nn.Module, model: nn.Module) -> None:
    """Raise an error for an objective with parameters outside the model, which would not be trained."""
    known = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in known for parameter in objective.parameters()):
        raise UserError(
            f"{type(objective).__name__} has parameters of its own, which would not be trained. Make them a part of "
            "the model while it trains."
        )
