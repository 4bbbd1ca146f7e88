"""A cell of the study: train a method with one seed, evaluate it on one split, and return its row of the results.

Weights lie in `cells/` until the cell is evaluated on the reported split, so a method that was tuned is not trained
again. A killed study repeats only the training it was in.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import TrainerCallback, set_seed

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.evaluation.cases import Cases
from repair_hf.evaluation.judging import evaluate_compositional
from repair_hf.evaluation.near_misses import NAME
from repair_hf.evaluation.retrieval import DIRECTIONS, rank_queries
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.files import read_json
from repair_hf.runtime.run_folder import versions, write_json
from repair_hf.study.methods.method import Method
from repair_hf.study.methods.samples import Samples
from repair_hf.study.products import Product, Products, part_of, share_of
from repair_hf.study.results import BASE, MEASURES, MOST, Cell, Row
from repair_hf.study.setting import Setting
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, fill_of
from repair_hf.training.finetune import train

FIGURES = "training.json"  # written last: the weights beside it are complete


def run_cell(cell: Cell, setting: Setting, products: Products) -> Row:
    """Train and evaluate a cell, and return its row.

    Raises:
        NoRecords, RunStopped, BatchesOpen: As `Products.of`.
        filelock.Timeout: If another process makes its data.
    """
    method = None if cell.method == BASE else setting.methods[cell.method]
    known: dict[str, Any] = {
        "options": setting.digest(cell.method, cell.split),
        "content": setting.content(cell.split),
        "commit": versions()["commit"],
    }
    encoder = setting.base
    if method is not None:
        made = products.of(method, waits=False)
        encoder, figures = _trained(cell, method, made, setting, setting.output / "cells" / cell.run)
        known |= costs(made, figures)
    cases = products.near_misses(cell.split)
    known |= evaluate(encoder, setting.load(cell.split), cases)
    return Row(cell, **known, **(queries(setting.load(cell.split), cases) if method is None else {}))


def evaluate(encoder: DualEncoder, pairs: Pairs, cases: list[Cases]) -> dict[str, Any]:
    """Rank the queries of a split and judge its near misses: columns of a row."""
    pixels = PixelStore(pairs.images, "image", encoder.preprocessor)
    images, texts = encoder.embed_pairs(pairs, pixels=pixels)  # (N, D), (M, D)
    rankings = rank_queries(images, texts, pairs.caption_image)
    found: dict[str, Any] = {f"{way}_ranks": np.minimum(rankings[way].gt_rank, MOST).tolist() for way in DIRECTIONS}
    if cases:
        table = evaluate_compositional(encoder, cases, "cell", images).to_pandas()
        for way in DIRECTIONS:
            own = table[table["benchmark"] == f"{NAME}_{way}"]
            bits = [own.loc[own["measure"] == measure, "correct"].to_numpy(int) for measure in MEASURES]
            found[f"near_{way}"] = sum(bit << place for place, bit in enumerate(bits)).tolist() if len(own) else []
    return found


def queries(pairs: Pairs, cases: list[Cases]) -> dict[str, Any]:
    """Return the image of each query of a split, for intervals that resample images: columns of the base's row."""
    row = {name: place for place, name in enumerate(pairs.images["image_id"][:])}
    found: dict[str, Any] = {"caption_image": pairs.caption_image.tolist()}
    for each in cases:
        found[f"{each.benchmark.replace(NAME, 'near')}_image"] = [row[name] for name in each.picture_ids]
    return found


def costs(made: Mapping[str, Product], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a method's data and its training took: columns of a row."""
    found: dict[str, Any] = {}
    for name in ("samples", "llm_calls", "images", "dollars"):
        each = [getattr(one, name) for one in made.values()]
        found[name] = None if None in each else sum(each)
    found |= {name: figures[name] for name in ("steps", "images_per_step", "texts_per_step", "seconds", "share")}
    items = figures["steps"] * (figures["images_per_step"] + figures["texts_per_step"])
    return found | {"samples_encoded": sum(figures["samples_encoded"].values()), "items": items}


def _trained(
    cell: Cell, method: Method, made: Mapping[str, Product], setting: Setting, folder: Path
) -> tuple[DualEncoder, dict[str, Any]]:
    """Return the trained retriever and its figures, from its folder if it is there."""
    known = {"options": setting.digest(cell.method, ""), "content": setting.content()}
    if (folder / FIGURES).is_file():
        figures = read_json(folder / FIGURES, needs=("options", "content", "share"))
        if figures | known == figures:
            return DualEncoder.from_pretrained(folder), figures
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted training
    encoder = setting.retriever()
    config = RepairConfig(
        str(folder),
        fill=cell.fill or None,  # type: ignore[arg-type]
        loss=cell.loss or None,  # type: ignore[arg-type]
        grid_weight=cell.grid_weight,
        learning_rate=cell.learning_rate,
        num_train_epochs=cell.epochs,
        seed=cell.seed,
        **setting.training,
    )
    set_seed(cell.seed)  # for the first weights of an objective's own head
    share = share_of(cell.budget, list(made.values()))
    fill = fill_for(method, made, setting, config, share)
    objective = method.objective and method.objective(encoder, config)
    callbacks: list[TrainerCallback] = [objective] if isinstance(objective, TrainerCallback) else []
    figures = train(encoder, setting.pairs, config=config, fill=fill, objective=objective, callbacks=callbacks)
    figures["images_per_step"] += config.step_size * method.more_images
    figures |= known | {"share": share}
    write_json(folder / FIGURES, figures)
    return encoder, figures


def fill_for(
    method: Method, made: Mapping[str, Product], setting: Setting, config: RepairConfig, share: float = 1.0
) -> Anchors:
    """Return the fill of a method: the same pairs and the same truth for all, and what the method adds."""
    pairs, truth = setting.pairs, setting.truth
    if not method.fill:
        samples: Any = {part: part_of(made[part].data, share) for part in method.parts}
        return Samples(pairs, samples, truth, config.draw_seed)
    records = part_of(made["records"].data, share)
    if not method.edits:  # a false positive is then opposite an annotated item
        records = without_edits(records)
    if method.own_fill is not None:
        return method.own_fill(pairs, records, truth, config.draw_seed)
    return fill_of(pairs, records, config, truth)


def without_edits(records: Dataset) -> Dataset:
    for name in ("edit_text", "edit_image"):
        records = records.remove_columns(name).add_column(name, [None] * len(records))
    return records
