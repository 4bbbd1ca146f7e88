"""The loop of a training: transformers' `Trainer` for a dual encoder, and the callback that goes with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import pixels_of
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.runtime.options import UserError
from repair_hf.runtime.progress import Progress
from repair_hf.training.batches import OneCaptionPerImage
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors
from repair_hf.training.step import MAX_LOGIT_SCALE

SHOWN = {"loss": "loss", "eval_i2t_R@1": "I2T R@1", "eval_t2i_R@1": "T2I R@1"}  # of a log, beside the progress


class DualEncoderTrainer(Trainer):
    """Batches, logs and evaluation of a dual encoder on pairs. `RepairTrainer` adds the loss and the saved result."""

    args: RepairConfig
    model: Any  # the types below are not among those that the Trainer declares
    processing_class: Any
    train_dataset: Any
    eval_dataset: Any
    base: Any  # the dual encoder, without adapters' wrapper
    fill: Anchors
    sampler: OneCaptionPerImage
    loop: LoopCallback
    needs_bias: bool  # whether it trains with the sigmoid loss
    terms: dict[str, list[Tensor]]  # of the loss since the last log

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return batches of the sampler's anchors."""
        names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
        loader = DataLoader(
            self.fill,
            batch_size=self.args.train_batch_size,
            sampler=self.sampler,
            collate_fn=self.data_collator,
            drop_last=True,
            **{name: getattr(self.args, f"dataloader_{name}") for name in names},
        )
        return self.accelerator.prepare(loader)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Return no batch after the last step: a run that is resumed from there would take one more."""
        # no callback is asked before that one; seen with transformers 5.23
        if self.state.global_step >= self.state.max_steps:
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the objective's terms, the logit scale and the seconds too."""
        if "loss" in logs and self.terms:
            means = torch.stack([torch.stack(values).float().mean() for values in self.terms.values()])
            means = self.accelerator.reduce(means, "mean")
            logs |= dict(zip(self.terms, means.tolist(), strict=True))
            logs |= {"seconds": self.loop.seconds, "logit_scale": self.base.logit_scale.exp().item()}
            if self.needs_bias:
                logs["logit_bias"] = self.base.logit_bias.item()
            self.terms = {}
        super().log(logs, start_time)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measure retrieval on pairs: R@K and MRR as fractions, `eval_i2t_R@1` and so on."""
        pairs = self.eval_dataset if eval_dataset is None else eval_dataset
        if pairs is None:
            raise UserError("There is nothing to evaluate on; give `eval_dataset`, pairs of a validation split.")
        args, preprocessor = self.args, self.processing_class
        encoder = DualEncoder(self.base, preprocessor, device=args.device, batch_size=args.per_device_eval_batch_size)
        pixels = pixels_of(pairs.images, "image", preprocessor, cache_images=args.cache_images)
        vectors = encoder.embed_pairs(pairs, pixels=pixels)
        values = evaluate_retrieval(*vectors, pairs.caption_image, device=args.device)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in values.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Exclude biases, norms of any kind, and the logit scale, which is a temperature."""
        matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
        return [name for name in super().get_decay_parameter_names(model) if name in matrices]


def encode(
    model: nn.Module,
    batch: dict[str, Any],
    normalize: Callable[[Tensor], Tensor],
    *,
    inner: nn.Module,
    in_chunks: bool = False,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Tensor, Tensor]:
    """Encode the distinct images and captions of a batch: (n_images, D) and (n_texts, D) unit vectors.

    There is one forward for each group of captions, with its share of the images. In chunks, a step needs the memory
    of one forward and has the same gradient: the loss needs the embeddings alone, and the backward pass computes the
    rest again (gradient caching: Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup").

    Args:
        model: A dual encoder; under DDP, its wrapper.
        batch: What `PairCollator` returns.
        normalize: Turns uint8 pixels into `pixel_values`.
        inner: The model without the wrapper of DDP, which allows one forward for each backward.
        in_chunks: Keep the embeddings alone, and run each forward again in the backward pass.
        autocast: Context of the mixed precision, so that each weight is cast once. In chunks it is not used: the cast
            weights would stay in memory.
    """
    pixels, texts = batch["pixels"], batch["texts"]

    def forward(modules: list[nn.Module], images: Tensor, captions: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        module = modules.pop(0) if len(modules) > 1 else modules[0]  # an objective may run backward several times
        output = module(pixel_values=normalize(images), **captions)
        return output.image_embeds, output.text_embeds

    parts: list[tuple[Tensor, Tensor]] = []
    with nullcontext() if in_chunks else autocast():
        for images, captions in zip(pixels.tensor_split(len(texts)), texts, strict=True):
            modules = [inner if parts else model, inner]  # of this forward, and of its repetitions
            if in_chunks:
                parts.append(checkpoint(forward, modules, images, captions, use_reentrant=False))
            else:
                parts.append(forward(modules, images, captions))
    return torch.cat([images for images, _ in parts]), torch.cat([captions for _, captions in parts])


class LoopCallback(TrainerCallback):
    """Start the sampler's epochs, show and time the loop, check steps, and bound a softmax's scale.

    Args:
        trainer: Has `sampler`, `base` (the dual encoder), `accelerator`, `optimizer`, `clip` and `terms` of the loss.
        bounds_scale: Whether the logit scale is at most 100.
    """

    def __init__(self, trainer: Any, *, bounds_scale: bool) -> None:
        self.trainer, self.bounds_scale = trainer, bounds_scale
        self.began = 0.0
        self.before = 0.0  # seconds before a resume
        self.shown: dict[str, float] = {}
        self.bar = Progress()  # shows nothing, such as of an evaluation by itself

    @property
    def seconds(self) -> float:
        """Seconds of the run's loop, evaluations and checkpoints and those before a resume included."""
        return self.before + time.perf_counter() - self.began

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # a checkpoint is saved after a log, see `on_step_end`
        self.before = max((line.get("seconds", 0.0) for line in state.log_history), default=0.0)
        self.began = time.perf_counter()
        self.bar = Progress(
            total=state.max_steps,
            desc="Training",
            unit=" steps",
            initial=state.global_step,
            disable=args.disable_tqdm,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # After a resume, accelerate does not reach the sampler through the sharded batch sampler that skips batches.
        sampler: OneCaptionPerImage = self.trainer.sampler
        sampler.set_epoch(state.global_step // sampler.batches)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        terms = {name: values[-1] for name, values in trainer.terms.items()}
        numbers = [value.float() for value in terms.values()]
        if trainer.accelerator.scaler is None:  # that of fp16 skips a step whose gradient is too large: that is right
            numbers.append(trainer.clip.norm.float())
        if torch.stack(numbers).isfinite().all():
            return
        values = ", ".join(f"{name} {value.item():g}" for name, value in terms.items())
        raise UserError(
            f"Step {state.global_step + 1}: the loss or its gradient is not finite ({values}, learning rate "
            f"{trainer.optimizer.param_groups[0]['lr']:g}, logit scale {trainer.base.logit_scale.exp().item():g}). "
            "Lower `learning_rate`. Nothing of this step was saved."
        )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        scale = self.trainer.base.logit_scale
        if self.bounds_scale and scale.requires_grad:
            scale.data.clamp_(max=MAX_LOGIT_SCALE)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.update()
        # A resumed run would lose a mean that spans a checkpoint. `best` saves only after an evaluation.
        control.should_log |= control.should_save or (args.save_strategy == "best" and control.should_evaluate)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_log = True  # so that the last step of a run is in the curve

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.shown |= {SHOWN[name]: value for name, value in (logs or {}).items() if name in SHOWN}
        self.bar.set_postfix_str(", ".join(f"{name} {value:.4g}" for name, value in self.shown.items()), refresh=False)


class NormKeepingClip:
    """Clip gradients as `clip` does, and keep the norm that they had."""

    def __init__(self, clip: Callable[..., Tensor]) -> None:
        self.clip, self.norm = clip, torch.zeros(())

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        self.norm = self.clip(*args, **options)
        return self.norm
