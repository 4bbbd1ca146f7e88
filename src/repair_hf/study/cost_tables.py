"""Tables of what methods cost: data, money and training; the chosen hyperparameters; the paper's published figures."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE, label
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.study.running import Results
from repair_hf.study.setting import Knobs

R1 = tuple(f"{side}_R@1" for side in DIRECTIONS)
KNOBS = ("learning rate", "epochs", "lambda")
PAPER_COUNTS = {"samples": "samples (K)", "llm_calls": "LLM (K)", "image_calls": "images (K)"}


def overhead(results: Results, paper: str | None = None) -> Finding:
    """Tabulate the cost of each method's data: samples, LLM and image calls, absolute and relative to RePair."""
    costs = {name: row.cost for name, row in results.rows.items()}
    repair, published = costs.get("repair", {}), published_results(paper) if paper else {}
    rows = {}
    for name, cost in costs.items():
        cells = [NONE if cost[kind] is None else f"{cost[kind]:,}" for kind in PAPER_COUNTS]
        for kind in ("llm_calls", "image_calls"):
            is_known = repair.get(kind) and cost[kind] is not None
            cells.append(f"{cost[kind] / repair[kind]:.2f}" if is_known else NONE)
        cells += [f"{cost['llm_per_sample']:.2f}", f"{cost['images_per_sample']:.2f}"]
        cells += [NONE if cost["dollars"] is None else f"{cost['dollars']:,.2f}"]
        rows[name] = cells + [published.get(name, {}).get(kind) or NONE for kind in PAPER_COUNTS if paper]
    heads = ["method", "samples", "LLM calls", "images", "LLM x repair", "images x repair"]
    heads += ["LLM a sample", "images a sample", "dollars"]
    heads += [f"paper: {head}" for head in PAPER_COUNTS.values() if paper]
    note = (
        "Samples: encoded at least once in training. Calls and dollars as if methods shared nothing, rejects "
        "included. Calls a sample: without rejects, as in RePair's paper."
    )
    data = pd.DataFrame([{"method": name, **cost} for name, cost in costs.items()])
    return Finding("overhead", "Cost of the data", note, frame(heads, rows), data=data)


def training(results: Results) -> Finding:
    """Tabulate each method's hyperparameters, steps and training time."""
    rows, data = {}, []
    for name, row in results.rows.items():
        knobs, first = row.cells[0].knobs, row.cells[0].training
        took = {kind: first[kind] for kind in ("steps", "images_per_step", "texts_per_step")}
        took["seconds"] = statistics.fmean(cell.training["seconds"] for cell in row.cells)
        encodes = took["steps"] * (took["images_per_step"] + took["texts_per_step"])
        reach = first.get("edits_reachable", {})
        reachable = {f"edits_reachable_{way}": share for way, share in reach.items()}
        data.append({"method": name, **vars(knobs), **took, "encodes": encodes, **reachable})
        rows[name] = [*_knobs(knobs), f"{took['steps']:,}"]
        rows[name] += [f"{value:,.0f}" for value in (took["images_per_step"], took["texts_per_step"], encodes)]
        rows[name] += [f"{took['seconds']:,.0f}"]
        rows[name] += [", ".join(f"{share:.0%} {way}" for way, share in reach.items()) or NONE]
    heads = ["method", *KNOBS, "steps", "images a step", "texts a step", "encodes", "seconds", "edits that can train"]
    is_tuned = any(tuned.tried for tuned in results.tuned.values())
    note = (
        "Learning rate and epochs were tuned by R@1 on the validation split, with two seeds; so were lambda, where a "
        "method has it, and the learning rate of plain training of each length. Ablations use the hyperparameters of "
        "`repair` or `repair-paper`. Weights inside other methods' losses were not tuned."
        if is_tuned
        else "Learning rate, epochs and lambda are the same for all methods; none were tuned."
    )
    return Finding("training", "Training", note, frame(heads, rows), data=pd.DataFrame(data))


def tuning(results: Results) -> Finding | None:
    """Tabulate the chosen hyperparameters, if any were tuned; the CSV has every training on the validation split."""
    found = {tuned.tried[0].cell.method: tuned for tuned in results.tuned.values() if tuned.tried}
    if not found:
        return None
    found |= {f"{name}, {epochs:g} epochs": tuned for (name, epochs), tuned in results.lengths.items()}
    rows, data = {}, []
    for name, tuned in found.items():
        for cell in tuned.tried:
            metrics, is_chosen = {metric: cell.metrics[metric] for metric in R1}, cell.knobs == tuned.knobs
            data.append({"method": name, "seed": cell.cell.seed, **vars(cell.knobs), **metrics, "chosen": is_chosen})
        best = [cell for cell in tuned.tried if cell.knobs == tuned.knobs]
        means = [100 * statistics.fmean(cell.metrics[metric] for cell in best) for metric in R1 if best]
        rows[name] = [*_knobs(tuned.knobs), *(f"{mean:.1f}" for mean in means or [math.nan] * 2)]
    heads = ["method", *KNOBS, *(f"validation {label(metric)}" for metric in R1)]
    note = f"{len(data)} trainings were evaluated on the validation split. The table has the chosen ones, the CSV all."
    return Finding("tuning", "Hyperparameters", note, frame(heads, rows), data=pd.DataFrame(data))


@cache
def published_results(dataset: str) -> dict[str, dict[str, str]]:
    """Read what RePair's paper reports for a dataset: method -> column -> figure, empty if not reported."""
    text = (files("repair_hf.study") / "paper.csv").read_text(encoding="utf-8")
    return {row["method"]: row for row in csv.DictReader(text.splitlines()) if row["dataset"] == dataset}


def frame(heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Build a table of text with one row for each name."""
    return pd.DataFrame([[name, *cells] for name, cells in rows.items()], columns=list(heads))


def _knobs(knobs: Knobs) -> list[str]:
    weight = f"{knobs.grid_weight:g}" if knobs.grid_weight else NONE
    return [f"{knobs.learning_rate:g}", f"{knobs.epochs:g}", weight]
