"""Fine-tune a dual encoder in one call."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.embedder import check_retriever
from repair_hf.encoder.opening import Retriever
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.truth import truth_of
from repair_hf.records.dataset import load_records
from repair_hf.runtime.items import check_items
from repair_hf.runtime.options import UserError, fields_of, fill
from repair_hf.training.config import RepairConfig
from repair_hf.training.options import TrainOptions
from repair_hf.training.trainer import RepairTrainer


def train(
    model: Retriever,
    pairs: Pairs,
    records: Dataset | str | Path | Sequence[str | Path] | None = None,
    config: RepairConfig | None = None,
    *,
    output: str | Path | None = None,
    validation: Pairs | None = None,
    checkpoint: str | bool | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fine-tune a dual encoder in one call, as `repair-hf train` does.

    If `model` is named, a finished folder is not trained again.

    Args:
        model: Trained in place if it is a model or a `DualEncoder`, else loaded from a folder or the Hub.
        pairs: Training pairs.
        records: What `load_records` returns, folders or Hub ids, made from failures on `pairs`; by default none.
        config: How to train; by default `RepairConfig()`.
        output: Folder of the trained model; by default `config.output_dir`.
        validation: Pairs to evaluate on.
        checkpoint: Folder to resume from; False starts anew, None follows `config.resume_from_checkpoint`.
        options: Fields of `TrainOptions`, such as `near_duplicates`, and arguments of `RepairTrainer`.

    Returns:
        `steps`, `processes`, `parameters` and `parameters_trained` (how many), `seconds` (evaluations, checkpoints and
        the time before a resume included), `seconds_per_step`, `loss` (mean over the steps), `images_per_step` and
        `texts_per_step` (encoded, all processes together), `captions_cut` (captions that the model reads in part),
        `fill` (see `Anchors.report`), `edits_reachable` (by direction, the share that can be encoded),
        `samples_encoded` (synthetic samples of each kind), `edits_trained` (the share of all edits that is encoded),
        and the metrics of the last evaluation, if any, or of the best with `load_best_model_at_end`.

    Raises:
        UserError: If an argument is of a wrong type or not valid, the records are of other pairs or another model, or
            the folder holds something else.
    """
    given = copy(config) if config is not None else RepairConfig()
    if output is not None:
        given.output_dir = str(output)
    declared = {name: options.pop(name) for name in fields_of(TrainOptions) if name in options}
    places = [records] if isinstance(records, str | Path) else records
    named = None if places is None or isinstance(places, Dataset) else [*map(str, places)]
    declared |= {"model": str(model) if isinstance(model, str | Path) else "", "records": named}
    (wanted,) = fill([TrainOptions], declared, "train")
    trainer = open_trainer(wanted, pairs, given, model=model, records=records, validation=validation, **options)
    if wanted.model and (finished := trainer.stage.summary):  # a model in memory is trained in place
        return finished
    trainer.train(checkpoint)
    return trainer.summary


def open_trainer(
    options: TrainOptions,
    pairs: Pairs,
    config: RepairConfig,
    *,
    model: Retriever | None = None,
    records: Any = None,
    validation: Pairs | None = None,
    **more: Any,
) -> RepairTrainer:
    """Load what a training needs and check everything; nothing is written yet.

    Args:
        options: The model and the records by name.
        pairs: Training pairs.
        config: How to train.
        model: The model, if it is open already.
        records: The records, if they are loaded already.
        validation: Pairs to evaluate on.
        more: Other arguments of `RepairTrainer`.

    Raises:
        UserError: As `train`.
    """
    encoder: Any = model
    if options.dtype != "float32" and config.lora_rank is None:
        raise UserError(
            f"`dtype` {options.dtype} is for the frozen weights under LoRA. Give `lora_rank` too, or `bf16` for mixed "
            "precision."
        )
    if options.model:
        how: Any = {"revision": options.model_revision, "attn_implementation": options.attn_implementation}
        encoder = DualEncoder.from_pretrained(options.model, device=config.device, dtype=options.dtype, **how)
    if options.records:
        for folder in options.records:
            check_items(folder, pairs.items)
        records = load_records(options.records, revision=options.records_revision)
        if options.model and not options.any_model:
            check_retriever(encoder, records.unique("retriever"), f"The records of {', '.join(options.records)}")
    if options.near_duplicates is not None:
        images = encoder.embed_images(pairs.images["image"])
        more["truth"], _ = truth_of(pairs, images, options.near_duplicates)
    trainer = RepairTrainer(encoder, config, pairs, validation, records=records, **more)
    one = options.records[0] if options.records and len(options.records) == 1 else options.records
    trainer.options |= {name: value for name, value in (("model", options.model), ("records", one)) if value}
    trainer.declared = [options]
    trainer.stage.check()
    return trainer
