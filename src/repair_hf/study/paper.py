"""What RePair's paper reports, to print beside a study's own results."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.runtime.files import read_json
from repair_hf.study.methods import PAPER, PLAIN

Figures = Mapping[str, Mapping[str, str]]  # by method, then by column; empty where the paper reports none

VARIANTS = {  # rows of the paper's method with another model, by the id of the model
    "black-forest-labs/FLUX.2-klein-4B": "klein-4b",
    "timbrooks/instruct-pix2pix": "instruct-pix2pix",
    "gemini/gemini-2.5-flash-image": "gemini-image",
    "openai/gpt-4o": "gpt-4o",
    "openai/clip-vit-large-patch14": "other-backbone",
}
ARO = {  # columns of the paper's table, by the metric of `repair-hf evaluate` that is its authors' headline
    "vg_attribution_macro_min25": "vg_attribution",
    "vg_relation_macro_excl157": "vg_relation",
    "coco_order_P@1": "coco_order",
    "flickr30k_order_P@1": "flickr30k_order",
}


def published_results(dataset: str) -> dict[str, dict[str, str]]:
    """Read what the paper reports for a dataset. A figure with a sign is a gain over plain training."""
    with (files("repair_hf.study") / "paper.csv").open(encoding="utf-8") as file:
        return {row["method"]: row for row in csv.DictReader(file) if row["dataset"] == dataset}


def results_of_setting(dataset: str, models: Sequence[str], rounds: int) -> Figures:
    """Return what the paper reports of a study's setting.

    Args:
        dataset: One of the paper's.
        models: The study's retriever, LLM and image editor.
        rounds: How many rounds of records its method trains on.
    """
    figures: Figures = published_results(dataset)
    variants = [VARIANTS[model] for model in models if model in VARIANTS]
    variants += [f"repair-{rounds}-rounds"] if rounds > 1 else []
    if not variants:
        return figures
    plain = f"{variants[0]}-vanilla" if f"{variants[0]}-vanilla" in figures else PLAIN
    changed = {PAPER: variants[0], PLAIN: plain} if len(variants) == 1 else {}
    return {method: figures[name] for method, name in changed.items() if name in figures}


def both_ways(figures: Figures, method: str, measure: str) -> str:
    """Return the figures of a measure, such as `62.64/46.11` for R@1 of I2T and T2I."""
    values = [figures.get(method, {}).get(f"{direction}_{measure}") or NONE for direction in DIRECTIONS]
    return NONE if set(values) == {NONE} else "/".join(values)


def aro_table(folders: Sequence[str], figures: Figures) -> Finding:
    """Average ARO over the seeds of each method, beside the paper's figures.

    Args:
        folders: Outputs of `repair-hf evaluate` on the `cells/*` of a study.
        figures: What the paper reports.
    """
    measured: dict[str, dict[str, list[float]]] = {}
    for folder in folders:
        for model, metrics in read_json(Path(folder) / "metrics.json", needs=None).items():
            parts = model.split("--")  # see `Cell.run`
            method = parts[1] if len(parts) == 6 and parts[4] == "all" else model
            for metric, column in ARO.items():
                if metric in metrics:
                    measured.setdefault(method, {}).setdefault(column, []).append(100 * metrics[metric])
    rows = []
    for method, columns in measured.items():
        row = {"method": method}
        for column in ARO.values():
            row[column] = f"{statistics.fmean(columns[column]):.1f}" if column in columns else NONE
            if figures:
                row[f"paper: {column}"] = figures.get(method, {}).get(column) or NONE
        rows.append(row)
    table = pd.DataFrame(rows).rename(columns=lambda head: head.replace("_", " "))
    return Finding("aro", "ARO", "Accuracy, and for the order tests P@1, in percent; means over seeds.", table)
