"""Fine-tune a dual encoder in one call."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from repair_hf.encoder.opening import Retriever
from repair_hf.pairs.dataset import Pairs
from repair_hf.training.config import RepairConfig
from repair_hf.training.trainer import RepairTrainer


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

    Args:
        model: Trained in place if it is a model or a `DualEncoder`, else loaded from a folder or the Hub.
        pairs: Training pairs.
        records: What `load_records` returns, made from failures on `pairs`; None trains on the pairs alone.
        config: How to train; by default `RepairConfig()`.
        validation: Pairs to evaluate on.
        checkpoint: Folder to resume from; False starts anew, None follows `config.resume_from_checkpoint`.
        options: Other arguments of `RepairTrainer`, such as `objective` or `callbacks`.

    Returns:
        `steps`, `processes`, `parameters` and `parameters_trained` (how many), `seconds` (evaluations, checkpoints and
        the time before a resume included), `seconds_per_step`, `loss` (mean over the steps), `images_per_step` and
        `texts_per_step` (encoded, all processes together), `fill` (see `Anchors.report`), `edits_reachable` (by
        direction, the share that can be encoded), `samples_encoded` (synthetic samples of each kind), and the metrics
        of the last evaluation, if any, or of the best with `load_best_model_at_end`.
    """
    trainer = RepairTrainer(model, config or RepairConfig(), pairs, validation, records=records, **options)
    trainer.train(checkpoint)
    return trainer.summary
