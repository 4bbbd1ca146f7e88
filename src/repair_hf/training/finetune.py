"""Fine-tune a dual encoder in one call, and open what that needs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from repair_hf.encoder.embedder import check_retriever
from repair_hf.encoder.opening import Retriever, open_encoder
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.pairs.truth import truth_of
from repair_hf.runtime.options import UserError, expect, fields_of, fill
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import open_records
from repair_hf.training.options import TrainOptions
from repair_hf.training.trainer import RepairTrainer


def train(
    model: Retriever,
    pairs: Pairs,
    records: Dataset | DatasetDict | str | Path | Sequence[str | Path] | None = None,
    config: RepairConfig | None = None,
    *,
    output: str | Path | None = None,
    validation: Pairs | None = None,
    checkpoint: str | bool | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fine-tune a dual encoder in one call, as `repair-hf train` does. A finished folder is not trained again.

    Args:
        model: A folder or Hub id; a model or a `DualEncoder` is trained in place, in a finished folder too.
        pairs: Training pairs.
        records: What `load_records` returns, folders or Hub ids, made from failures on `pairs`; by default none.
        config: How to train; by default `RepairConfig()`.
        output: Folder of the trained model; by default `config.output_dir`.
        validation: Pairs to evaluate on.
        checkpoint: Folder to resume from; False starts anew, None follows `config`.
        options: Fields of `TrainOptions`, such as `near_duplicates`, and arguments of `RepairTrainer`.

    Returns:
        `steps`, `processes`, `parameters` and `parameters_trained` (how many), `seconds` (evaluations, checkpoints and
        the time before a resume included), `seconds_per_step`, `loss` (mean over the steps), `images_per_step` and
        `texts_per_step` (encoded, all processes together), `captions_cut` (captions that the model reads in part),
        `fill` (see `Anchors.report`), `edits_encoded` (how many, by direction), `edits_trained` (the share
        of all edits encoded), and the metrics of the last evaluation, if any, or of the best with
        `load_best_model_at_end`.

    Raises:
        UserError: If an argument is not valid, the records do not fit, or the folder holds something else.
    """
    config = copy(config) if config is not None else RepairConfig()
    config.output_dir = config.output_dir if output is None else str(output)
    trainer = open_trainer(model, pairs, records, config, validation=validation, **options)
    if isinstance(model, str | Path) and (summary := trainer.stage.summary):
        return summary
    trainer.train(checkpoint)
    return trainer.summary


def open_trainer(
    model: Retriever,
    pairs: Pairs,
    records: Any,
    config: RepairConfig,
    *,
    validation: Pairs | None = None,
    **options: Any,
) -> RepairTrainer:
    """Load what a training needs and check everything; nothing is written yet. The arguments are those of `train`."""
    expect(pairs, Pairs, "pairs", MAKE_PAIRS)
    is_named = isinstance(model, str | Path)
    named_records = [records] if isinstance(records, str | Path) else records
    places = [str(place) for place in named_records] if isinstance(named_records, list | tuple) else None
    values = {name: options.pop(name) for name in fields_of(TrainOptions) if name in options}
    values |= {"model": str(model) if is_named else "", "records": places}
    (declared,) = fill([TrainOptions], values, "train")
    if declared.dtype != "float32" and config.lora_rank is None:
        raise UserError(
            f"`dtype` {declared.dtype} is for the frozen weights under LoRA. Give `lora_rank` too, or `bf16` for "
            "mixed precision."
        )
    loading: dict[str, Any] = {}
    if is_named:
        loading = {"revision": declared.model_revision, "attn_implementation": declared.attn_implementation}
        loading["dtype"] = declared.dtype
    encoder = open_encoder(model, options.pop("processing_class", None), device=config.device, **loading)
    loaded: Any = open_records(records, pairs, declared.records_revision)
    if places and is_named and not declared.any_model:
        check_retriever(encoder, loaded.unique("retriever"), f"The records of {', '.join(places)}")
    if declared.near_duplicates is not None:
        images = encoder.embed_images(pairs.images["image"])
        options["truth"], _ = truth_of(pairs, images, declared.near_duplicates)
    trainer = RepairTrainer(encoder, config, pairs, validation, records=loaded, **options)
    if is_named:
        trainer.options["model"] = declared.model
    if places:
        trainer.options["records"] = places[0] if len(places) == 1 else places
    trainer.declared = [declared]
    trainer.stage.check()
    return trainer
