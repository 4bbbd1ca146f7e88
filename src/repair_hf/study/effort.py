"""What methods take: data, money, training; and the hyperparameters that were chosen for them.

In:  `Results`.
Out: `Finding`s, as those of `tables`; what RePair's paper reports, for columns of its own.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE, label
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.study.products import Made
from repair_hf.study.running import Results

R1 = tuple(f"{side}_R@1" for side in DIRECTIONS)
KNOBS = ("learning rate", "epochs", "lambda")
PAPER_COUNTS = {"samples": "samples (K)", "llm_calls": "LLM (K)", "image_calls": "images (K)"}


def overhead(results: Results, paper: str | None = None) -> Finding:
    """What the data of each method took: samples, LLM and image calls, absolute and relative to RePair."""
    own = {name: calls(row.made.values()) for name, row in results.rows.items()}
    whole, published = own.get("repair"), papers(paper) if paper else {}
    rows = {}
    for name, found in own.items():
        cells = [f"{found[kind]:,}" for kind in PAPER_COUNTS]
        cells += [_ratio(found[kind], whole and whole[kind]) for kind in ("llm_calls", "image_calls")]
        cells += [f"{found['llm_per_sample']:.2f}", f"{found['images_per_sample']:.2f}"]
        cells += [NONE if found["dollars"] is None else f"{found['dollars']:,.2f}"]
        rows[name] = cells + [published.get(name, {}).get(kind) or NONE for kind in PAPER_COUNTS if paper]
    heads = ["method", "samples", "LLM calls", "images", "LLM x repair", "images x repair"]
    heads += ["LLM a sample", "images a sample", "dollars"]
    heads += [f"paper: {head}" for head in PAPER_COUNTS.values() if paper]
    told = (
        "Calls and dollars as if nothing were shared between methods, rejects included. Calls a sample: as RePair's paper counts them, without "
        "rejects."
    )
    data = pd.DataFrame([{"method": name, **found} for name, found in own.items()])
    return Finding("overhead", "What the data took", told, frame(heads, rows), data=data)


def training(results: Results) -> Finding:
    """How each method was trained, and how long that took."""
    rows, data = {}, []
    for name, row in results.rows.items():
        knobs, first = row.cells[0].cell.knobs, row.cells[0].training
        took = {kind: first[kind] for kind in ("steps", "images_per_step", "texts_per_step")}
        took["seconds"] = statistics.fmean(cell.training["seconds"] for cell in row.cells)
        encodes = took["steps"] * (took["images_per_step"] + took["texts_per_step"])
        data.append({"method": name, **vars(knobs), **took, "encodes": encodes})
        rows[name] = [*_knobs(vars(knobs)), f"{took['steps']:,}"]
        rows[name] += [f"{value:,.0f}" for value in (took["images_per_step"], took["texts_per_step"], encodes)]
        rows[name] += [f"{took['seconds']:,.0f}"]
    heads = ["method", *KNOBS, "steps", "images a step", "texts a step", "encodes", "seconds"]
    is_tuned = any(choice.tried for choice in results.choices.values())
    told = (
        "Learning rate, epochs and lambda were chosen for each method by R@1 on the validation split, with one seed; so was the learning rate of "
        "plain training of each length that methods are compared with. Ablations of the same retriever take what RePair chose. Lambda is "
        "RePair's alone, which so had more to choose from; weights inside other methods' losses were not chosen."
        if is_tuned
        else "Learning rate, epochs and lambda are the same for all methods: none were chosen."
    )
    return Finding("training", "Training", told, frame(heads, rows), data=pd.DataFrame(data))


def tuning(results: Results) -> Finding | None:
    """What the validation split said of each set of hyperparameters, where they were chosen."""
    choices = {choice.tried[0].cell.method: choice for choice in results.choices.values() if choice.tried}
    if not choices:
        return None
    choices |= {f"{name}, {epochs:g} epochs": choice for (name, epochs), choice in results.lengths.items()}
    data = [
        {"method": name, **vars(cell.cell.knobs), **{metric: cell.metrics[metric] for metric in R1}}
        | {"chosen": cell.cell.knobs == choice.knobs}
        for name, choice in choices.items()
        for cell in choice.tried
    ]
    rows = {
        row["method"]: [*_knobs(row), *(f"{100 * row[metric]:.1f}" for metric in R1)] for row in data if row["chosen"]
    }
    heads = ["method", *KNOBS, *(f"validation {label(metric)}" for metric in R1)]
    told = (
        f"{len(data)} trainings were measured on the validation split. What was chosen stands here; the CSV has all."
    )
    return Finding("tuning", "What was chosen", told, frame(heads, rows), data=pd.DataFrame(data))


def calls(made: Iterable[Made]) -> dict[str, Any]:
    """Samples and calls of all parts of a method together.

    Args:
        made: Its products.

    Returns:
        `samples`, `llm_calls`, `image_calls`, `llm_per_sample`, `images_per_sample`, `dollars`.
    """
    parts = list(made)
    samples, dollars = sum(one.samples for one in parts), [one.dollars for one in parts]
    counts = {"samples": samples} | {
        name: sum(getattr(one, name) for one in parts) for name in ("llm_calls", "image_calls")
    }
    each = {
        name: sum(getattr(one, name) * one.samples for one in parts) / max(samples, 1)
        for name in ("llm_per_sample", "images_per_sample")
    }
    return counts | each | {"dollars": None if None in dollars else sum(dollars)}


@cache
def papers(dataset: str) -> dict[str, dict[str, str]]:
    """What RePair's paper reports of a data set: method -> column -> figure; empty where it reports none."""
    text = (files("repair_hf.study") / "paper.csv").read_text(encoding="utf-8")
    return {row["method"]: row for row in csv.DictReader(text.splitlines()) if row["dataset"] == dataset}


def frame(heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """A table of text, one row for each name."""
    return pd.DataFrame([[name, *cells] for name, cells in rows.items()], columns=list(heads))


def _knobs(values: Mapping[str, Any]) -> list[str]:
    weight = f"{values['grid_weight']:g}" if values["grid_weight"] else NONE
    return [f"{values['learning_rate']:g}", f"{values['epochs']:g}", weight]


def _ratio(count: int, whole: int | None) -> str:
    return f"{count / whole:.2f}" if whole else NONE
