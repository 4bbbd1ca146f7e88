"""What a trainer cannot work with, and what it settles before it starts."""

from __future__ import annotations

import logging
import math
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.records.dataset import check_columns, one_split
from repair_hf.runtime.options import UserError, expect
from repair_hf.training.adapters import has_adapters
from repair_hf.training.checkpoints import MAX_LOGIT_SCALE
from repair_hf.training.config import RepairConfig

logger = logging.getLogger(__name__)

BEST_BY = "t2i_MRR"  # MRR changes with every rank, R@K with few


def check_arguments(args: Any, train: Any, evaluate: Any, records: Any) -> Dataset | None:
    """Check the types of a trainer's arguments, and return the records as one dataset.

    Raises:
        UserError: If one is of a wrong type, or the records lack columns.
    """
    expect(args, RepairConfig, "args", "a RepairConfig, such as `RepairConfig(OUTPUT_FOLDER)`")
    expect(train, Pairs, "train_dataset", MAKE_PAIRS)
    expect(evaluate, (Pairs, type(None)), "eval_dataset", MAKE_PAIRS)
    expect(
        records, (Dataset, DatasetDict, type(None)), "records", "a Dataset; `load_records` takes a folder or Hub id"
    )
    if isinstance(records, DatasetDict):
        records = one_split(records)
    if records is not None:
        check_columns(records)
    return records


def keep_the_best(args: RepairConfig) -> None:
    """Evaluate after each epoch and keep the best model, if the arguments neither evaluate nor save."""
    if args.eval_strategy != "no" or args.save_strategy != "no":
        return
    args.eval_strategy, args.save_strategy = IntervalStrategy.EPOCH, SaveStrategy.BEST
    args.load_best_model_at_end, args.save_total_limit = True, 1
    args.metric_for_best_model = args.metric_for_best_model or BEST_BY
    if args.greater_is_better is None:
        args.greater_is_better = True


def check_model(model: PreTrainedModel) -> None:
    """Raise an error for a model that has no `logit_scale`."""
    if "logit_scale" not in dict(model.named_parameters()):
        raise UserError(f"{type(model).__name__} has no `logit_scale`; a CLIP- or SigLIP-like dual encoder has one.")


def global_loss_of(model: PreTrainedModel, args: RepairConfig) -> str | None:
    """Return the global loss, `sigmoid` or `softmax`, for a model with a `logit_bias`; None for another: softmax."""
    if getattr(model, "logit_bias", None) is not None:
        return args.global_loss or "sigmoid"
    if args.global_loss == "sigmoid":
        raise UserError(
            f"`global_loss` sigmoid needs a `logit_bias`, which {type(model).__name__} lacks; leave it out."
        )
    return None


def check_trainable(model: PreTrainedModel, args: RepairConfig, *, needs_bias: bool = False) -> None:
    """Check what the trainer cannot work with. Without the sigmoid loss SigLIP's bias has no effect and is frozen."""
    if has_adapters(model):
        raise UserError("The model has an adapter. Give the adapter's folder, which is loaded merged into its base.")
    if args.push_to_hub:
        raise UserError(
            "`push_to_hub` of the Trainer would upload pickled arguments and no model card. Leave it out and call "
            "`trainer.push_to_hub()` after the training."
        )
    parameters = dict(model.named_parameters())
    if "logit_bias" in parameters:
        parameters["logit_bias"].requires_grad_(needs_bias)
    check_model(model)
    scale = parameters["logit_scale"].exp().item()
    is_held = not needs_bias and parameters["logit_scale"].requires_grad
    if is_held and scale > 1.001 * math.exp(MAX_LOGIT_SCALE) and args.process_index == 0:  # SigLIP's is 117
        logger.warning("The model's logit scale is %.1f; from the first step on it is held at 100 at most.", scale)
