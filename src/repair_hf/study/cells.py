"""A cell of the study: one method, trained once and measured.

In:  a `Setting`, the `Products`, a method, a `Cell` that says how it is trained.
Out: `cells/<name>/` with `summary.json` (metrics, and what the training took), `ranks.parquet`, where there are compositional benchmarks
     `cases.parquet`, and the loss curve (`trainer_state.json`). Weights go when they are measured, unless the setting keeps them, or
     they are wanted for another split.

A cell that is finished stays, so that a study that was killed loses the cell under way and nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import set_seed

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.evaluation.judging import compositional_metrics, evaluate_compositional, save_cases
from repair_hf.evaluation.ranks import rank_table, ranks_by_direction, save_ranks
from repair_hf.evaluation.retrieval import rank_queries, retrieval_metrics
from repair_hf.runtime.run_folder import finish_stage, finished, open_stage
from repair_hf.study.methods.method import Baseline, Method
from repair_hf.study.methods.samples import SampleRows
from repair_hf.study.products import Made, Products
from repair_hf.study.setting import Knobs, Setting
from repair_hf.study.variants import share_of_records
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train

BASE = "base"
WEIGHTS, CURVE = "retriever", "trainer_state.json"  # in a cell's folder


@dataclass(frozen=True)
class Cell:
    """How a method is trained, and what it is measured on.

    Args:
        method: Its name; `base` for the retriever as it came, which is not trained.
        split: What it is measured on.
        seed: Of the training's draws.
        knobs: Its hyperparameters; None for the base.
        share: Of its samples or records that are used.
    """

    method: str
    split: str
    seed: int = 0
    knobs: Knobs | None = None
    share: float = 1.0

    @property
    def name(self) -> str:
        """Names its folder."""
        if self.knobs is None:
            return f"{self.method}--{self.split}"
        share = f"--share{self.share:g}" if self.share < 1 else ""
        return f"{self.method}--{self.split}--{self.knobs.name}{share}--seed{self.seed}"


@dataclass(frozen=True)
class Measured:
    """A finished cell.

    Args:
        cell: What it is.
        folder: Where its ranks are.
        metrics: Retrieval metrics, `n_images`, `n_texts`; of the split that is reported on, those of the compositional benchmarks too.
        training: `steps`, `seconds`, `images_per_step`, `texts_per_step`, `loss`; nothing for the base.
    """

    cell: Cell
    folder: Path
    metrics: Mapping[str, float]
    training: Mapping[str, float]


def run_cell(
    cell: Cell, method: Method | None, setting: Setting, products: Products, *, keep_weights: bool = False
) -> Measured:
    """Train and measure, or find it done. What was trained for the validation split, and is still there, is not trained again.

    Args:
        cell: How.
        method: What; None for the base.
        setting: What all cells share.
        products: Where samples and records come from.
        keep_weights: Until another split is measured, or `forget_weights` is called.

    Raises:
        UserError: If the folder holds a finished cell of other data or options, or the method lacks a part that the study was not given.
    """
    folder = _folder(cell, setting)
    made = {} if method is None else products.of(method, cell.knobs)
    resolved = _resolved(cell, method, made, setting)
    with setting.turns.alone(cell.name):
        summary = finished(folder, resolved)
        if summary is None:
            open_stage(folder, command="study", options=resolved)
            encoder, training = _retriever(cell, method, made, setting)
            metrics = _measure(encoder, cell, setting, folder)
            finish_stage(folder, {"metrics": metrics, "training": training})
            summary = finished(folder, resolved)
        # here, and not where they were measured: a process that was killed in between leaves them behind
        if not (keep_weights or setting.keep_models):
            for measured in (folder, _folder(_twin(cell, setting), setting)):
                forget_weights(measured)
    return Measured(cell, folder, summary["metrics"], summary["training"])


def forget_weights(folder: Path) -> None:
    """Delete the weights of a cell; its figures stay."""
    shutil.rmtree(folder / WEIGHTS, ignore_errors=True)


def _resolved(cell: Cell, method: Method | None, made: Mapping[str, Made], setting: Setting) -> dict[str, Any]:
    """What decides the result."""
    return asdict(cell) | {
        "model_digest": setting.digest(setting.model if method is None else setting.model_of(method)),
        "training": setting.training_of(method),
        "products": {part: one.name for part, one in made.items()},
        "pairs_fingerprint": setting.pairs.fingerprint,
        "held_out_fingerprint": setting.held_out(cell.split).fingerprint,
        "compositional": asdict(setting.compositional),
    }


def _folder(cell: Cell, setting: Setting) -> Path:
    return setting.output / "cells" / cell.name


def _twin(cell: Cell, setting: Setting) -> Cell:
    """The same training, measured on the validation split."""
    return replace(cell, split=setting.validation_split)


def _retriever(
    cell: Cell, method: Method | None, made: Mapping[str, Made], setting: Setting
) -> tuple[DualEncoder, dict[str, Any]]:
    """The retriever, and what its training took; as it was trained for the validation split, where its weights are still there."""
    if method is None:
        return setting.encoder(setting.model), {}
    folder, twin = _folder(cell, setting), _twin(cell, setting)
    known = _folder(twin, setting)
    # the weights are looked for first: where nothing was chosen there may be no validation split
    if (known / WEIGHTS).is_dir() and (summary := finished(known, _resolved(twin, method, made, setting))):
        shutil.copy(known / CURVE, folder)
        return setting.encoder(str(known / WEIGHTS)), summary["training"]
    encoder = setting.encoder(setting.model_of(method))
    return encoder, _train(cell, method, made, encoder, setting, folder)


def _train(
    cell: Cell, method: Method, made: Mapping[str, Made], encoder: DualEncoder, setting: Setting, folder: Path
) -> dict[str, Any]:
    retriever = folder / WEIGHTS
    forget_weights(folder)  # of a cell that was cut off
    config = RepairConfig(
        output_dir=str(retriever),
        seed=cell.seed,
        cache_folder=str(setting.output / "cache"),
        **cell.knobs.as_options(),
        **setting.training_of(method),
    )
    set_seed(cell.seed)  # an objective with a head of its own draws its first weights
    how: dict[str, Any] = {}
    if isinstance(method, Baseline):
        if made:
            samples = {part: one.data for part, one in made.items()}
            how["data"] = SampleRows(setting.pairs, samples, seed=cell.seed, share=cell.share)
        if method.objective is not None:
            how["objective"] = method.objective(encoder)
    elif made:
        how["records"] = share_of_records(made["records"].data, cell.share)
    told = train(encoder, setting.pairs, config=config, **how)
    (retriever / CURVE).replace(folder / CURVE)
    return told


def _measure(encoder: DualEncoder, cell: Cell, setting: Setting, folder: Path) -> dict[str, float]:
    pairs = setting.held_out(cell.split)
    pixels = PixelStore(pairs.images, "image", encoder.preprocessor, setting.output / "cache")
    images, texts = encoder.embed_pairs(pairs, pixels=pixels)  # (N, D), (M, D)
    table = rank_table(rank_queries(images, texts, pairs.caption_image, fps=1), pairs, cell.method)
    save_ranks(table, folder)
    metrics = retrieval_metrics(ranks_by_direction(table)) | {"n_images": len(images), "n_texts": len(texts)}
    if cell.split != setting.split:  # hyperparameters are chosen by retrieval alone
        return metrics
    if sets := setting.benchmarks(cell.split):
        cases = evaluate_compositional(encoder, sets, cell.method, images)
        save_cases(cases, folder)
        metrics |= compositional_metrics(cases, sets)
    if truth := setting.truth(cell.split):
        metrics |= truth.shares(images, texts)
    return metrics
