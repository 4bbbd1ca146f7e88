"""A cell of the study: train a method with one seed, and evaluate it on one split, blended with the base.

Weights lie in `cells/` until nothing more is to be measured, so a method that was tuned is not trained again. A killed
study repeats only the training it was in.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, set_seed

from repair_hf.encoder.blend import blend
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.evaluation.cases import Cases
from repair_hf.evaluation.judging import evaluate_compositional
from repair_hf.evaluation.retrieval import DIRECTIONS, rank_queries
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.files import read_json
from repair_hf.runtime.run_folder import versions, write_json
from repair_hf.study.losses import MORE_IMAGES, OBJECTIVES
from repair_hf.study.methods import METHODS, Method
from repair_hf.study.products import Product, Products
from repair_hf.study.results import BASE, BLENDS, CONTRAST, MOST, Cell, Row, code_digest
from repair_hf.study.samples import Samples
from repair_hf.study.setting import Setting
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, fill_of
from repair_hf.training.finetune import train
from repair_hf.training.options import WITH_GRID

FIGURES = "training.json"  # written last: the weights beside it are complete


def run_cell(cell: Cell, setting: Setting, products: Products) -> list[Row]:
    """Train and evaluate a cell, and return its row for each blend.

    Raises:
        NoRecords, RunStopped: As `Products.of`.
        filelock.Timeout: If another process makes its data.
    """
    known: dict[str, Any] = {"code": code_digest(), "commit": versions()["commit"]}
    pairs, cases, kept = setting.load(cell.split), products.contrast(cell.split), setting.kept
    if cell.method == BASE:
        known |= evaluate(setting.base, pairs, cases, kept) | images_of(pairs, cases, kept)
        return [Row(cell, **known)]
    made, folder = products.of(METHODS[cell.method], cell.budget, waits=False), setting.output / "cells" / cell.run
    if not (folder / FIGURES).is_file():
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted training
        write_json(folder / FIGURES, _train(cell, made, setting, folder))
    known |= read_json(folder / FIGURES, needs=None)
    base, rows = setting.base.model.state_dict(), []
    encoder = DualEncoder.from_pretrained(folder)
    tuned = {name: value.clone() for name, value in encoder.model.state_dict().items()}
    for weight in BLENDS:
        encoder.model.load_state_dict(tuned)
        blend(encoder.model, base, weight)
        rows.append(Row(replace(cell, blend=weight), **known, **evaluate(encoder, pairs, cases, kept)))
    return rows


def evaluate(encoder: DualEncoder, pairs: Pairs, cases: Cases | None, kept: Pairs | None) -> dict[str, Any]:
    """Rank the queries of a split and of the base's own domain, and judge the contrast set: columns of a row."""
    found: dict[str, Any] = {}
    for kind, each in (("", pairs), ("kept_", kept)):
        if each is not None:
            pixels = PixelStore(each.images, "image", encoder.preprocessor)
            rankings = rank_queries(*encoder.embed_pairs(each, pixels=pixels), each.caption_image)
            ranks = {way: np.minimum(rankings[way].gt_rank, MOST) for way in DIRECTIONS}
            found |= {f"{kind}{way}_ranks": ranks[way].tolist() for way in DIRECTIONS}
    if cases is not None:
        table = evaluate_compositional(encoder, [cases], "cell").to_pandas()
        for name in CONTRAST:  # without an editor a set has captions alone
            bits = table.loc[table["measure"] == name.removeprefix("contrast_"), "correct"]
            found[name] = bits.astype(int).tolist() if len(bits) else None
    return found


def images_of(pairs: Pairs, cases: Cases | None, kept: Pairs | None) -> dict[str, Any]:
    """Return the image of each query, for intervals that resample images: columns of the base's row."""
    row = {name: place for place, name in enumerate(pairs.images["image_id"][:])}
    return {
        "caption_image": pairs.caption_image.tolist(),
        "contrast_image": None if cases is None else [row[name] for name in cases.picture_ids],
        "kept_caption_image": None if kept is None else kept.caption_image.tolist(),
    }


def _train(cell: Cell, made: Mapping[str, Product], setting: Setting, folder: Path) -> dict[str, Any]:
    """Train in a folder, and return columns of a row."""
    method, encoder = METHODS[cell.method], setting.retriever()
    config = config_of(method, setting, folder, cell)
    set_seed(cell.seed)  # for the first weights of an objective's own head
    make = OBJECTIVES.get(method.loss)
    objective = make and make(encoder, method.grid_weight)
    callbacks: list[TrainerCallback] = [objective] if isinstance(objective, TrainerCallback) else []
    fill = fill_for(method, made, setting, config)
    figures = train(encoder, setting.pairs, config=config, fill=fill, objective=objective, callbacks=callbacks)
    columns = {name: figures[name] for name in ("edits_trained", "steps", "seconds")}
    for name in ("samples", "llm_calls", "images"):
        each = [getattr(part, name) for part in made.values()]
        columns[name] = None if None in each else sum(each)
    more = config.step_size * MORE_IMAGES.get(method.loss, 0)
    return columns | {"items_per_step": figures["images_per_step"] + figures["texts_per_step"] + more}


def config_of(method: Method, setting: Setting, folder: Path, cell: Cell) -> RepairConfig:
    """Return the configuration of a method's training. A loss of the study's own takes the fill of the grid's."""
    own: dict[str, Any] = {"loss": "grid" if method.loss in OBJECTIVES else method.loss, "fill": method.fill or None}
    own |= {"grid_weight": method.grid_weight if own["loss"] in WITH_GRID else None, "grid_mean": method.grid_mean}
    own |= {"learning_rate": cell.learning_rate, "num_train_epochs": cell.epochs, "seed": cell.seed}
    return RepairConfig(str(folder), **own, **setting.training)


def fill_for(method: Method, made: Mapping[str, Product], setting: Setting, config: RepairConfig) -> Anchors:
    """Return the fill of a method: the same pairs and the same truth for all, and what the method adds."""
    pairs, truth = setting.pairs, setting.truth
    if not method.fill:
        samples: Any = {part: each.data for part, each in made.items()}
        return Samples(pairs, samples, truth, config.draw_seed)
    records = made["records"].data
    if not method.edits:  # a false positive is then opposite an annotated item
        for name in ("edit_text", "edit_image"):
            records = records.remove_columns(name).add_column(name, [None] * len(records))
    return fill_of(pairs, records, config, truth)
