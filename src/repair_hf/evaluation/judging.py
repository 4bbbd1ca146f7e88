"""Evaluate an encoder on compositional benchmarks: `cases.parquet` with one row per case and measure, and accuracies.

| column | meaning |
|---|---|
| `model` | the short name of the model |
| `benchmark`, `measure` | the question; most benchmarks have the single measure `accuracy` |
| `case_id`, `picture_id`, `group` | the case, its picture, and its category, relation or seed |
| `margin` | cosine of the right choice minus that of the best wrong choice |
| `correct` | whether the margin is above 0: a tie is wrong |

Scores come from `exact_scores`, pair by pair, so a caption that occurs twice in a case ties with itself exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from repair_hf.encoder.embedder import Embedder
from repair_hf.evaluation.cases import Cases, Metric
from repair_hf.evaluation.intervals import Draws
from repair_hf.evaluation.ranks import load_table
from repair_hf.mining.scores import exact_scores, quietly

FILE = "cases.parquet"
COLUMNS = "model benchmark measure case_id picture_id group margin correct".split()
BLOCK = 4096  # cases scored together


def evaluate_compositional(
    encoder: Embedder, sets: Sequence[Cases], model: str, own_images: np.ndarray | None = None
) -> pa.Table:
    """Score the cases of some benchmarks, in a table with the columns above.

    Args:
        encoder: The encoder to evaluate.
        sets: The benchmarks.
        model: Short name of the encoder.
        own_images: (N, D) embeddings of the pairs' images, for benchmarks about these.
    """
    return pa.concat_tables([_judge(encoder, cases, model, own_images) for cases in sets])


def compositional_metrics(table: pa.Table, sets: Sequence[Cases]) -> dict[str, float]:
    """Return each benchmark's metrics, and its counts: `{benchmark}_n_cases`, `_n_pictures`, `_n_ties`, ..."""
    metrics: dict[str, float] = {}
    for cases in sets:
        rows = _rows(table, cases)
        for metric in cases.metrics:
            means = np.nanmean(_columns(rows, metric), axis=0)  # (means,)
            metrics[f"{cases.benchmark}_{metric.name}"] = float(_weighted(means, metric))
        n_ties = rows[rows["margin"] == 0]["case_id"].nunique()
        counts = {"n_cases": len(cases), "n_pictures": len(set(cases.picture_ids)), "n_ties": n_ties, **cases.counts}
        metrics |= {f"{cases.benchmark}_{name}": value for name, value in counts.items()}
    return metrics


def resample_compositional(table: pa.Table, sets: Sequence[Cases], resamples: int) -> dict[str, np.ndarray]:
    """Return the same metrics, (R,) each, in resamples of the pictures; a picture is drawn with all of its cases."""
    samples = {}
    for cases in sets:
        rows = _rows(table, cases)
        ids, picture = np.unique(cases.picture_ids, return_inverse=True)
        draws = Draws(len(ids), resamples)
        for metric in cases.metrics:
            means = draws.means(_columns(rows, metric), picture)  # (R, means)
            samples[f"{cases.benchmark}_{metric.name}"] = _weighted(means, metric)
    return samples


def random_compositional(sets: Sequence[Cases]) -> dict[str, float]:
    """Return each benchmark's metrics of a retriever whose cosines are in random order: the mean over all orders."""
    metrics = {}
    for cases in sets:
        shape = cases.picture.shape[1], cases.caption.shape[1]
        orders = np.array(list(permutations(range(shape[0] * shape[1])))).reshape(-1, *shape)
        margins = cases.judge(orders.astype(np.float64))
        for metric in cases.metrics:
            metrics[f"{cases.benchmark}_{metric.name}"] = float((margins[metric.measure] > 0).mean())
    return metrics


def describe_cases(measured: Mapping[str, Mapping[str, Any]], sets: Sequence[Cases]) -> list[str]:
    """Describe each benchmark in a line: its size, and the ties of each model that has some, by short name."""
    lines = []
    for cases in sets:
        name, counted = cases.benchmark, next(iter(measured.values()))
        n_ties = {model: metrics[f"{name}_n_ties"] for model, metrics in measured.items()}
        ties = ", ".join(f"{count:,} ({model})" for model, count in n_ties.items() if count) or "none"
        size = f"{counted[f'{name}_n_cases']:,} cases on {counted[f'{name}_n_pictures']:,} pictures"
        lines.append(f"{name}: {size}; cases with a tie: {ties}.")
    return lines


def load_cases(folder: str | Path) -> pa.Table:
    """Read the cases of a model from the folder of its evaluation.

    Raises:
        UserError: If the file is missing.
    """
    return load_table(Path(folder) / FILE, "of an evaluation with --compositional", COLUMNS)


def _judge(encoder: Embedder, cases: Cases, model: str, own_images: np.ndarray | None) -> pa.Table:
    texts = encoder.embed_texts(cases.captions, desc=f"Embedding captions of {cases.benchmark}")
    if cases.pictures is not None:
        images = encoder.embed_images(
            cases.pictures.resized(encoder.preprocessor),
            desc=f"Embedding pictures of {cases.benchmark}",
            ids=_first_cases(cases, len(cases.pictures)),
        )
    else:
        assert own_images is not None, f"{cases.benchmark} is about the pairs' images; give their embeddings."
        images = own_images
    margins: dict[str, list[np.ndarray]] = {}
    for start in range(0, len(cases), BLOCK):
        picture, caption = cases.picture[start : start + BLOCK], cases.caption[start : start + BLOCK]
        for measure, margin in cases.judge(_scores(images, texts, picture, caption)).items():
            margins.setdefault(measure, []).append(margin)
    return pa.concat_tables(
        [_table(model, cases, measure, np.concatenate(parts)) for measure, parts in margins.items()]
    )


def _first_cases(cases: Cases, n_pictures: int) -> list[str]:
    """Name each picture by the first case that it is in: a picture of a dataset has no name of its own."""
    rows, first = np.unique(cases.picture.ravel(), return_index=True)
    names = dict(zip(rows.tolist(), (first // cases.picture.shape[1]).tolist(), strict=True))
    return [f"{row} (of case {cases.case_ids[names[row]]})" for row in range(n_pictures)]


def _table(model: str, cases: Cases, measure: str, margin: np.ndarray) -> pa.Table:
    names = {"model": model, "benchmark": cases.benchmark, "measure": measure}
    columns = {name: [value] * len(margin) for name, value in names.items()}
    columns |= {"case_id": cases.case_ids, "picture_id": cases.picture_ids, "group": cases.groups}
    return pa.table(columns | {"margin": margin, "correct": margin > 0})


@quietly()
def _scores(rows: np.ndarray, others: np.ndarray, row: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the cosines of each case's rows with its others: (R, D), (O, D), (n, a), (n, b) to (n, a, b)."""
    left, right = np.broadcast_arrays(row[:, :, None], other[:, None, :])
    pairs, place = np.unique(left.ravel() * len(others) + right.ravel(), return_inverse=True)  # each once
    left_of, right_of = np.divmod(pairs, len(others))
    return exact_scores(rows, left_of, others, right_of)[place].reshape(left.shape)


def _rows(table: pa.Table, cases: Cases) -> pd.DataFrame:
    return table.filter(pc.equal(table["benchmark"], cases.benchmark)).to_pandas()


def _columns(rows: pd.DataFrame, metric: Metric) -> np.ndarray:
    """Return each case's value in each mean of a metric, (n, means); NaN if it is excluded from it."""
    measured = rows[rows["measure"] == metric.measure]
    margin, group = measured["margin"].to_numpy()[:, None], measured["group"].to_numpy(object)[:, None]
    right = (margin >= 0 if metric.ties_right else margin > 0).astype(np.float64)
    if metric.groups is None:
        return right
    is_in = group == np.array(metric.groups, object)  # (n, groups)
    return np.where(is_in if metric.weights else is_in.any(1, keepdims=True), right, np.nan)


def _weighted(means: np.ndarray, metric: Metric) -> np.ndarray:
    """Return the weighted mean over the last axis without NaN: a resample may lack a group."""
    weights = np.where(np.isfinite(means), np.array(metric.weights or (1.0,)), 0)
    with np.errstate(invalid="ignore"):
        return np.nansum(means * weights, axis=-1) / weights.sum(-1)
