"""A cell of the study: one method, trained with one seed and evaluated on one split.

`cells/<name>/` gets `summary.json` (metrics and training figures), `ranks.parquet`, the loss curve
(`trainer_state.json`), and `cases.parquet` if there are compositional benchmarks. A finished cell is reused, so that a
killed study repeats only the cell it was working on. Weights are deleted after the evaluation, unless the setting
keeps them or the other split needs them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, set_seed

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.evaluation.judging import compositional_metrics, evaluate_compositional, save_cases
from repair_hf.evaluation.ranks import rank_table, ranks_by_direction, save_ranks
from repair_hf.evaluation.retrieval import rank_queries, retrieval_metrics
from repair_hf.runtime.run_folder import digest
from repair_hf.runtime.stage import Stage
from repair_hf.study.methods.method import Baseline, Method
from repair_hf.study.methods.samples import Samples, content_of
from repair_hf.study.products import Products
from repair_hf.study.repair_records import share_of_records, without_edits
from repair_hf.study.setting import Knobs, Setting
from repair_hf.study.spending import Cost, Product
from repair_hf.toyworld.truth import with_scenes
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, fill_of
from repair_hf.training.finetune import train

BASE = "base"
WEIGHTS, CURVE = "retriever", "trainer_state.json"  # in a cell's folder


@dataclass(frozen=True)
class Cell:
    """How a method is trained, and the split it is evaluated on."""

    method: str  # name of the method; `base` for the untrained retriever
    split: str  # split of the evaluation
    seed: int = 0
    knobs: Knobs | None = None  # hyperparameters; None for the base
    share: float = 1.0  # share of the samples or records that is used

    @property
    def name(self) -> str:
        if self.knobs is None:
            return f"{self.method}--{self.split}"
        share = f"--share{self.share:g}" if self.share < 1 else ""
        return f"{self.method}--{self.split}--{self.knobs.name}{share}--seed{self.seed}"


@dataclass(frozen=True)
class Measured:
    """A finished cell."""

    cell: Cell
    folder: Path
    # retrieval metrics, `n_images`, `n_texts`; on the reported split also compositional metrics
    metrics: Mapping[str, float]
    # what `train` returns: `steps`, `seconds`, `images_per_step`, `edits_reachable` and so on; empty for the base
    training: Mapping[str, Any]
    made: Mapping[str, Cost] = field(default_factory=dict)  # what it was trained on cost, by part

    @property
    def knobs(self) -> Knobs:
        assert self.cell.knobs is not None, "the base is not trained"
        return self.cell.knobs


def run_cell(
    cell: Cell, method: Method | None, setting: Setting, products: Products, *, keep_weights: bool = False
) -> Measured:
    """Train and evaluate, or read the finished cell. Weights that were trained for the validation split are reused.

    `method` is None for the base. `keep_weights` keeps the weights for the other split, or until `forget_weights`.

    Raises:
        UserError: If the folder holds a finished cell of other data or options.
    """
    folder = _folder(cell, setting)
    made = products.of(method, cell.knobs) if method and cell.knobs else {}
    resolved = _resolved(cell, method, made, setting)
    content = _content_digest(cell, made, resolved, setting)

    def work(_: Any) -> dict[str, Any]:
        if kept := setting.kept.find(cell.name, folder, content):
            return kept
        encoder, training = _retriever(cell, method, made, setting)
        metrics = _evaluate(encoder, cell, setting, folder)
        costs = {part: asdict(one.cost) for part, one in made.items()}
        return {"metrics": metrics, "training": training, "made": costs}

    with setting.sharing.lock(cell.name):
        summary = _stage(folder, resolved).run(work)
        # ranks are for intervals, which are those of the reported split
        setting.kept.keep(cell.name, content, folder, summary, with_ranks=cell.split == setting.split)
        # here, not after the evaluation: a process that is killed in between leaves the weights behind
        twin = _folder(replace(cell, split=setting.validation_split), setting)
        if setting.keep_models and cell.split == setting.split:
            if (twin / WEIGHTS).is_dir():
                (twin / WEIGHTS).replace(folder / WEIGHTS)
        elif not keep_weights:
            forget_weights(folder)
            forget_weights(twin)
    return measured(cell, folder, summary)


def measured(cell: Cell, folder: Path, summary: Mapping[str, Any]) -> Measured:
    """Return a finished cell by its summary."""
    made = {part: Cost(**cost) for part, cost in summary["made"].items()}
    return Measured(cell, folder, summary["metrics"], summary["training"], made)


def forget_weights(folder: Path) -> None:
    """Delete the weights of a cell and keep its figures."""
    shutil.rmtree(folder / WEIGHTS, ignore_errors=True)


def _resolved(cell: Cell, method: Method | None, made: Mapping[str, Product], setting: Setting) -> dict[str, Any]:
    """Return everything that decides the result."""
    return asdict(cell) | {
        "model_digest": setting.digest(setting.model if method is None else setting.model_of(method)),
        "training": setting.training_of(method),
        "products": {part: one.name for part, one in made.items()},
        "pairs_fingerprint": setting.pairs.fingerprint,
        "held_out_fingerprint": setting.held_out(cell.split).fingerprint,
        "compositional": asdict(setting.compositional),
    }


def _stage(folder: Path, resolved: dict[str, Any]) -> Stage:
    return Stage("study", folder, inputs=resolved, needs=("metrics", "training", "made"))


def _content_digest(cell: Cell, made: Mapping[str, Product], resolved: dict[str, Any], setting: Setting) -> str:
    """Digest everything that decides the result by its content: the same on any machine and in any folder."""
    samples = {part: one.data for part, one in made.items() if "text" in one.data.column_names}
    named = {part: content_of(some) for part, some in samples.items()}
    data = {
        "pairs_fingerprint": setting.content_digest(None),
        "held_out_fingerprint": setting.content_digest(cell.split),
        "products": resolved["products"] | named,
    }
    return digest(resolved | data)


def _folder(cell: Cell, setting: Setting) -> Path:
    return setting.output / "cells" / cell.name


def _retriever(
    cell: Cell, method: Method | None, made: Mapping[str, Product], setting: Setting
) -> tuple[DualEncoder, dict[str, Any]]:
    """Return the trained retriever and its training figures; the weights of the validation split are reused."""
    if method is None:
        return setting.encoder(setting.model), {}
    folder, twin = _folder(cell, setting), replace(cell, split=setting.validation_split)
    known = _folder(twin, setting)
    # the weights come first: where nothing is tuned there may be no validation split
    if (known / WEIGHTS).is_dir() and (summary := _stage(known, _resolved(twin, method, made, setting)).summary):
        shutil.copy(known / CURVE, folder)
        return setting.encoder(str(known / WEIGHTS)), summary["training"]
    encoder = setting.encoder(setting.model_of(method))
    return encoder, _train(cell, method, made, encoder, setting)


def _train(
    cell: Cell, method: Method, made: Mapping[str, Product], encoder: DualEncoder, setting: Setting
) -> dict[str, Any]:
    assert cell.knobs is not None, "a method is trained with hyperparameters"
    folder = _folder(cell, setting)
    forget_weights(folder)  # of an interrupted training
    config = RepairConfig(
        output_dir=str(folder / WEIGHTS), seed=cell.seed, **cell.knobs.as_options(), **setting.training_of(method)
    )
    set_seed(cell.seed)  # for the first weights of an objective's own head
    fill = _fill(cell, method, made, config, setting)
    objective = method.objective and method.objective(encoder, fill, config)
    callbacks: list[TrainerCallback] = [objective] if isinstance(objective, TrainerCallback) else []
    figures = train(encoder, setting.pairs, config=config, fill=fill, objective=objective, callbacks=callbacks)
    figures["images_per_step"] += config.step_size * method.more_images
    (folder / WEIGHTS / CURVE).replace(folder / CURVE)
    return figures


def _fill(cell: Cell, method: Method, made: Mapping[str, Product], config: RepairConfig, setting: Setting) -> Anchors:
    """Return the fill of a method: the same pairs and the same truth for all, and what the method adds."""
    pairs, truth = setting.pairs, setting.truth
    if isinstance(method, Baseline):
        samples = {part: made[part].data for part in method.parts}
        return Samples(pairs, samples, truth, config.draw_seed, share=cell.share)
    if not made:
        return Anchors(pairs, truth, config.draw_seed)
    records = share_of_records(made["records"].data, cell.share)
    if not method.edits:
        records = without_edits(records)
    if method.masks_scenes:
        truth = with_scenes(truth, pairs)
    if method.fill is not None:
        return method.fill(pairs, records, truth, config.draw_seed)
    return fill_of(pairs, records, config, truth)


def _evaluate(encoder: DualEncoder, cell: Cell, setting: Setting, folder: Path) -> dict[str, float]:
    pairs = setting.held_out(cell.split)
    pixels = PixelStore(pairs.images, "image", encoder.preprocessor)
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
    return metrics
