"""The trainer of a dual encoder, on pairs and on the records of their repaired failures."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PrinterCallback, ProcessorMixin, Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.opening import Retriever, open_encoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.pairs.truth import Truth
from repair_hf.runtime.disk import check_room, naming_full_disk
from repair_hf.runtime.options import UserError, expect
from repair_hf.runtime.run_folder import digest, finish_stage, open_stage
from repair_hf.training.adapters import as_json, has_adapters, limit_training, name_base
from repair_hf.training.checkpoints import LoopCallback, fault, find_checkpoint, mean_loss
from repair_hf.training.collation import Keys, collator_of, count_distinct, pixels_of
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, fill_of
from repair_hf.training.sampling import OneCaptionPerImage
from repair_hf.training.step import Objective, check_model, check_parameters, encode, objective_of, step_of

logger = logging.getLogger(__name__)

IN_MEMORY = "a dataset in memory"


class RepairTrainer(Trainer):
    """A transformers `Trainer` for dual encoders, on pairs and on records of their repaired failures.

    Logs the objective's terms (`loss_global`, `loss_grid`) and `logit_scale` (after exp) beside the Trainer's `loss`.
    Evaluation is retrieval on pairs: R@K and MRR in both directions, as `eval_i2t_R@1` and so on. If there are pairs
    to evaluate on and `args` save nothing, the model is evaluated after each epoch (or as `eval_strategy` says), and
    the best by `metric_for_best_model`, `t2i_MRR` by default, is kept.

    `train` resumes from the checkpoint that `args.resume_from_checkpoint` names; by default the last, if there is one.

    Args:
        model: A `CLIPModel` or another dual encoder of transformers, which is trained in place; a Hub id or a folder.
        args: The configuration; it is copied.
        train_dataset: Pairs to train on.
        eval_dataset: Pairs to evaluate on, of a validation split.
        processing_class: The model's processor, by default the one beside the weights; saved with every checkpoint.
        records: What `synthesize` or `load_records` returns, made from failures on `train_dataset`; a `DatasetDict` of
            one split will do. None trains on the pairs alone.
        truth: What is known to match, and is masked out of the loss; by default what `train_dataset` says.
        fill: Which pairs stand beside each training pair; by default what `args.fill` makes of `records`.
        objective: The loss; by default the one that `args.loss` names.
        peft_config: Adapters to train instead of all weights, such as `peft.LoraConfig(...)`; they are saved in place
            of the model. `args.lora_rank` is shorter.
        callbacks: As in the Trainer.
        optimizers: As in the Trainer.

    Attributes:
        options: What the folder records of this run, and the card shows.

    Raises:
        UserError: If an argument is of a wrong type, or the model cannot be trained so.

    Example:
        >>> trainer = RepairTrainer(model, RepairConfig("tuned"), pairs, validation, processor, records=records)
        >>> trainer.train()
        >>> trainer.evaluate()
        >>> trainer.push_to_hub()
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
        truth: Truth | None = None,
        fill: Anchors | None = None,
        objective: Objective | None = None,
        peft_config: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
    ) -> None:
        expect(args, RepairConfig, "args", "a RepairConfig, such as `RepairConfig(OUTPUT_FOLDER)`")
        expect(train_dataset, Pairs, "train_dataset", MAKE_PAIRS)
        expect(eval_dataset, (Pairs, type(None)), "eval_dataset", MAKE_PAIRS)
        args = args.prepared(has_validation=eval_dataset is not None)
        encoder = open_encoder(model, processing_class, device=args.device)
        self.base, base_digest = encoder.model, encoder.digest
        needs_bias = check_model(self.base, args)
        self.fill = fill or fill_of(train_dataset, records, args, truth)
        self.objective = objective or objective_of(args, self.fill, sigmoid=needs_bias)
        self.sampler = OneCaptionPerImage(train_dataset.caption_image, args.step_size, args.draw_seed)
        self.loop = LoopCallback(self, bounds_scale=not needs_bias)
        super().__init__(
            limit_training(self.base, args, peft_config),
            args,
            collator_of(encoder, train_dataset, self.fill, cache_images=args.cache_images),
            train_dataset,  # type: ignore[arg-type]
            eval_dataset=eval_dataset,  # type: ignore[arg-type]
            processing_class=encoder.preprocessor,  # type: ignore[arg-type]
            callbacks=[self.loop, *callbacks],
            optimizers=optimizers,  # type: ignore[arg-type]
        )
        if args.disable_tqdm:
            self.remove_callback(PrinterCallback)  # the loss curve goes to the log and to trainer_state.json
        self.can_return_loss = True
        self.model_accepts_loss_kwargs = False  # the loss is a mean: accumulated parts are averaged
        check_parameters(self.objective, self.model)
        self.records, self.needs_bias = records, needs_bias
        self._validation = (
            eval_dataset,
            eval_dataset and pixels_of(eval_dataset.images, "image", encoder, cache_images=args.cache_images),
        )
        self.run = {**args.recorded(has_records=self.fill.share > 0), "model": self.base.name_or_path}
        self.run |= {"sigmoid": needs_bias, "dtype": str(self.base.dtype), "peft_config": as_json(peft_config)}
        self.run |= {"objective": objective and type(objective).__name__, "fill_report": self.fill.report()}
        self.run |= {"pairs_fingerprint": train_dataset.fingerprint}
        self.options: dict[str, Any] = {"output": str(args.output_dir), "pairs": IN_MEMORY}
        self.options |= self.run | {"model": self.base.name_or_path or None, "model_digest": base_digest}
        if records is not None:
            self.options |= {"records": IN_MEMORY, "records_digest": digest(records["record_id"][:])}
        self._has_trained = False
        self._terms: dict[str, list[Tensor]] = {}  # since the last log

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and save model, processor, loss curve and summary in `args.output_dir`, as `repair-hf train` does.

        A second call trains on, from the weights as they are, in a new run.

        `resume_from_checkpoint` is a folder; True or None follows `args`, False starts anew.

        Raises:
            UserError: If the folder holds something else, or a checkpoint is incomplete or of another run.
        """
        folder, wanted = str(self.args.output_dir), resume_from_checkpoint
        if wanted is None or wanted is True:
            wanted = None if self._has_trained else self.args.resume_from_checkpoint
        checkpoint = find_checkpoint(wanted or None, self.args, self.run)
        self._has_trained, self._terms = True, {}
        if self.is_world_process_zero():
            open_stage(folder, command="train", options=self.options, is_bound=wanted == "last" and bool(checkpoint))
        size = self._space_needed()
        check_room(folder, size)
        with naming_full_disk(folder, lambda: size):
            with self._explaining_a_damaged_best():
                result = super().train(checkpoint and str(checkpoint), trial, ignore_keys_for_eval)
            self.save_model()
            self.save_state()
        self.model.eval()
        self.summary = self._summarize(result.global_step)
        if self.is_world_process_zero():
            finish_stage(folder, self.summary)
        return result

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Encode the batch's distinct items once, join the pairs of all processes, and sum the objective's terms."""
        normalize, chunk_size = self.processing_class.normalize, self.args.chunk_size
        images, texts = encode(model, inputs, normalize, inner=self.model, chunk_size=chunk_size)
        bias = self.base.logit_bias if self.needs_bias else None
        step = step_of(images, texts, inputs, self.fill.truth, self.base.logit_scale.exp(), bias)
        terms = self.objective.terms(step)
        for name, value in terms.items():
            self._terms.setdefault(name, []).append(value.detach())
        loss = torch.stack([self.objective.weights.get(name, 1.0) * value for name, value in terms.items()]).sum()
        return (loss, {"image_embeds": images, "text_embeds": texts}) if return_outputs else loss

    def get_train_dataloader(self) -> DataLoader:
        """Return batches of the sampler's anchors."""
        args, keys = self.args, Keys(len(self.train_dataset))
        loader = DataLoader(
            keys,
            batch_size=args.train_batch_size,
            sampler=self.sampler,
            collate_fn=self.data_collator,
            drop_last=True,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        return self.accelerator.prepare(loader)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Return no batch after the last step: a run that is resumed from there would take one more."""
        if self.state.global_step >= self.state.max_steps:
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the objective's terms and the logit scale too; the whole line goes to the log without a progress bar."""
        if "loss" in logs and self._terms:
            means = torch.stack([torch.stack(values).float().mean() for values in self._terms.values()])
            means = self.accelerator.reduce(means, "mean")
            logs |= dict(zip(self._terms, means.tolist(), strict=True))
            logs["seconds"] = self.loop.seconds
            logs["logit_scale"] = self.base.logit_scale.exp().item()
            if self.needs_bias:
                logs["logit_bias"] = self.base.logit_bias.item()
            self._terms = {}
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
        known, stored = self._validation
        encoder = DualEncoder(
            self.base, self.processing_class, device=self.args.device, batch_size=self.args.per_device_eval_batch_size
        )
        vectors = encoder.embed_pairs(pairs, pixels=stored if pairs is known else None)
        found = evaluate_retrieval(*vectors, pairs.caption_image)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, or its adapters, and the processor."""
        super().save_model(output_dir, _internal_call)
        if has_adapters(self.model) and self.args.should_save:
            name_base(output_dir or str(self.args.output_dir))

    def push_to_hub(  # type: ignore[override]  # one commit of a finished folder has no message and does not block
        self,
        repo: str | None = None,
        *,
        private: bool | None = None,
        tag: str | None = None,
        license: str | None = None,
        results: Sequence[str | Path] = (),
    ) -> Any:
        """Push the trained model with its processor and its card, as one commit; see `push_model`.

        Args:
            repo: Repository; by default `args.hub_model_id`, else the name of the output folder.
            private: Whether to make a new repository private; by default as `args.hub_private_repo` says.
            tag: Tag of the commit.
            license: License identifier of the Hub.
            results: Folders of `repair-hf evaluate`, for the card.

        Returns:
            Where the push went, a `Pushed`; None in other processes than the main one.

        Raises:
            UserError: If nothing is trained yet, or the Hub rejects the token, the id or the tag.
            RunStopped: If the Hub cannot be reached or fails; the same call resumes.
        """
        from repair_hf.hub.push import push_model  # the one import from a higher floor: a Trainer pushes itself

        folder, pushed = Path(str(self.args.output_dir)), None
        if self.is_world_process_zero():
            if not (folder / "summary.json").is_file():
                raise UserError(f"{folder} holds no trained model yet; call `train()` first.")
            is_private = bool(self.args.hub_private_repo if private is None else private)
            pushed = push_model(
                folder, repo or self.args.repository, private=is_private, tag=tag, results=results, license=license
            )
        self.accelerator.wait_for_everyone()
        return pushed

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Exclude biases, norms of any kind, and the logit scale, which is a temperature."""
        matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
        return [name for name in super().get_decay_parameter_names(model) if name in matrices]

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return 0: the Trainer's formula is for language models."""
        return 0

    @contextmanager
    def _explaining_a_damaged_best(self) -> Iterator[None]:
        """Raise a UserError if the best checkpoint, whose weights are loaded at the end, was damaged since."""
        error: Exception | None = None
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as failed:
            error = failed
        folder = Path(str(self.state.best_model_checkpoint))
        if self.args.load_best_model_at_end and folder.is_dir() and (why := fault(folder)):
            raise UserError(f"The best checkpoint, {folder}, is damaged: {why}. Delete the checkpoints to train anew.")
        if error is not None:
            raise error

    def _space_needed(self) -> int:
        """Return the bytes of the trained model and, if there are checkpoints, of two: weights and two moments."""
        sizes = [(weight.numel() * weight.element_size(), weight.requires_grad) for weight in self.model.parameters()]
        trained = sum(size for size, is_trained in sizes if is_trained)
        saved = trained if has_adapters(self.model) else sum(size for size, _ in sizes)
        return saved if self.args.save_strategy == "no" else saved + 2 * (saved + 2 * trained)

    def _summarize(self, steps: int) -> dict[str, Any]:
        """Return the summary that `train` describes."""
        evaluations = [line for line in self.state.log_history if "eval_i2t_R@1" in line]
        if self.args.load_best_model_at_end:
            evaluations = [line for line in evaluations if line["step"] == self.state.best_global_step]
        drawn = zip(*(self.fill.draw(*keys) for keys in self.sampler.keys(steps)), strict=True)
        images, texts = (np.concatenate(side) for side in drawn)  # (anchors, S) each
        n_images, n_texts = len(self.train_dataset.images), len(self.train_dataset)
        new = np.unique(images[images >= n_images]), np.unique(texts[texts >= n_texts])
        seconds, size = self.loop.seconds, self.args.train_batch_size
        return {
            "steps": steps,
            "processes": self.args.world_size,
            "parameters": self.base.num_parameters(),
            "parameters_trained": self.base.num_parameters(only_trainable=True),
            "seconds": seconds,
            "seconds_per_step": seconds / steps,
            "waiting": self.loop.waiting,
            "loss": mean_loss(self.state),
            "images_per_step": count_distinct(images, size) / steps,
            "texts_per_step": count_distinct(texts, size) / steps,
            "fill": self.run["fill_report"],
            "edits_reachable": self.fill.edits_reachable(),
            "samples_encoded": self.fill.samples(*new),
        } | (evaluations[-1] if evaluations else {})


def train(
    model: Retriever,
    pairs: Pairs,
    records: Dataset | None = None,
    config: RepairConfig | None = None,
    *,
    validation: Pairs | None = None,
    checkpoint: str | bool | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fine-tune a dual encoder in one call, as `RepairTrainer` does.

    To train for as long as another run took, set `max_steps` to its `seconds` divided by this kind of run's
    `seconds_per_step`. The learning rate schedule then ends where training does.

    Args:
        model: Trained in place if it is a model or a `DualEncoder`, else loaded from a folder or the Hub.
        pairs: Training pairs.
        records: What `load_records` returns, made from failures on `pairs`; None trains on the pairs alone.
        config: How to train; by default `RepairConfig()`.
        validation: Pairs to evaluate on.
        checkpoint: Folder to resume from; False starts anew, None follows `config.resume_from_checkpoint`.
        options: Other arguments of `RepairTrainer`, such as `objective` or `callbacks`.

    Returns:
        `steps`, `processes`, `parameters` and `parameters_trained` (how many), `seconds` (of the loop, with
        evaluations and checkpoints), `seconds_per_step`, `waiting` (fraction of the seconds in which the main process
        made the next batch), `loss` (mean over the steps), `images_per_step` and `texts_per_step` (encoded, all
        processes together), `fill` (how many anchors have pairs beside them, see `Anchors.report`), `edits_reachable`
        (by direction, the share that can be encoded), `samples_encoded` (synthetic samples of each kind), and the
        metrics of the last evaluation, if any, or of the best with `load_best_model_at_end`. All includes the steps
        before a resume.
    """
    trainer = RepairTrainer(model, config or RepairConfig(), pairs, validation, records=records, **options)
    trainer.train(checkpoint)
    return trainer.summary
