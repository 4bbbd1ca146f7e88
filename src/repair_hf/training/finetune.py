"""Fine-tune a dual encoder in one call."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.embedder import check_retriever
from repair_hf.encoder.opening import Retriever
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.truth import truth_of
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import UserError, fields_of, fill
from repair_hf.runtime.stage import is_finished
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import open_records
from repair_hf.training.options import TrainOptions
from repair_hf.training.trainer import RepairTrainer

Setting = TypeVar("Setting")  # such as a learning rate
RATES = "rates"  # folder of the trainings with each learning rate
OF_STAGE = ("config.yaml", "command.txt", "versions.json", "items.parquet", "summary.json", ".lock")


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
    """Fine-tune a dual encoder in one call, as `repair-hf train` does. A finished folder is not trained again.

    Args:
        model: A folder or Hub id; a model or a `DualEncoder` is trained in place, in a finished folder too.
        pairs: Training pairs.
        records: What `load_records` returns, folders or Hub ids, made from failures on `pairs`; by default none.
        config: How to train; by default `RepairConfig()`.
        output: Folder of the trained model; by default `config.output_dir`.
        validation: Pairs to evaluate on.
        checkpoint: Folder to resume from; False starts anew, None follows `config`.
        options: Fields of `TrainOptions`, such as `learning_rates`, and arguments of `RepairTrainer`.

    Returns:
        `steps`, `processes`, `parameters` and `parameters_trained` (how many), `seconds` (evaluations, checkpoints and
        the time before a resume included), `seconds_per_step`, `loss` (mean over the steps), `images_per_step` and
        `texts_per_step` (encoded, all processes together), `captions_cut` (captions that the model reads in part),
        `fill` (see `Anchors.report`), `samples_encoded` (synthetic samples of each kind), `edits_trained` (the share
        of all edits encoded), and the metrics of the last evaluation, if any, or of the best with
        `load_best_model_at_end`.

    Raises:
        UserError: If an argument is not valid, the records do not fit, or the folder holds something else.
    """
    given = copy(config) if config is not None else RepairConfig()
    given.output_dir = given.output_dir if output is None else str(output)
    declared = {name: options.pop(name) for name in fields_of(TrainOptions) if name in options}
    places = [records] if isinstance(records, str | Path) else records
    named = None if places is None or isinstance(places, Dataset) else [*map(str, places)]
    declared |= {"model": str(model) if isinstance(model, str | Path) else "", "records": named}
    (wanted,) = fill([TrainOptions], declared, "train")
    how: Any = {"model": model, "records": records, "validation": validation, **options}
    if wanted.learning_rates:
        return train_each(wanted, pairs, given, **how)
    trainer = open_trainer(wanted, pairs, given, **how)
    if wanted.model and (finished := trainer.stage.summary):  # a model in memory is trained in place
        return finished
    trainer.train(checkpoint)
    return trainer.summary


def train_each(
    options: TrainOptions, pairs: Pairs, config: RepairConfig, *, validation: Pairs | None, **more: Any
) -> dict[str, Any]:
    """Train with each of `options.learning_rates`, and keep the model with the best mean R@1 on validation pairs.

    Each is trained in a folder of its own below the output folder, and a rerun goes on. At the end the best is copied
    to the output folder, and these folders are deleted. The arguments are those of `open_trainer`.

    Returns:
        The summary of the best, with its `learning_rate`, and in `learning_rates` R@1 of each, I2T and T2I.

    Raises:
        UserError: As `train`; or if there are no validation pairs, or the model is in memory.
    """
    if validation is None or not options.model:
        raise UserError("`learning_rates` needs validation pairs, and a model by Hub id or folder: each starts anew.")
    folder, rates = Path(str(config.output_dir)), options.learning_rates

    def opened(rate: float, place: Path, **changes: Any) -> RepairTrainer:
        own = copy(config)
        own.learning_rate, own.output_dir = rate, str(place)
        own.given = config.given | ({"learning_rate": rate} if changes else {})
        return open_trainer(replace(options, **changes), pairs, own, validation=validation, **more | {"model": None})

    before = read_json(folder / "summary.json") if is_finished(folder) else {}
    if finished := opened(before.get("learning_rate", rates[0]), folder).stage.summary:  # it checks the folder, too
        return finished
    made = {}
    for rate in rates:
        trainer = opened(rate, folder / RATES / f"{rate:g}", learning_rates=[])
        made[rate] = trainer.stage.summary or (trainer.train(), trainer.summary)[1]
    found = {f"{rate:g}": [each["eval_i2t_R@1"], each["eval_t2i_R@1"]] for rate, each in made.items()}
    best = best_of({rate: found[f"{rate:g}"] for rate in rates})
    trainer = opened(best, folder)

    def adopt(_: Any) -> dict[str, Any]:
        for path in (folder / RATES / f"{best:g}").iterdir() if trainer.is_world_process_zero() else ():
            if path.is_file() and path.name not in OF_STAGE:
                shutil.copy2(path, folder)
        return made[best] | {"learning_rate": best, "learning_rates": found}

    summary = trainer.stage.run(adopt)
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        shutil.rmtree(folder / RATES)
    return summary


def best_of(found: Mapping[Setting, Sequence[float]]) -> Setting:
    """Return the setting with the highest R@1 on validation, the mean of both directions; of equals the first."""
    return max(found, key=lambda setting: sum(found[setting]))


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
        records = open_records(options.records, pairs, options.records_revision)
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
