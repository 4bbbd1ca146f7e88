"""An evaluation on a model card: this model, its base and other models.

A model is recognized by the digest of its weights, never by the name of a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from repair_hf.analysis.tables import difference_cell, interval_cells, label, markdown
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.training_data import uses_records
from repair_hf.hub.markdown import code, without_folders
from repair_hf.hub.rendering import StageFolder
from repair_hf.runtime.options import UserError


@dataclass(frozen=True)
class Results:
    """An evaluation of this model, and perhaps of others."""

    run: StageFolder
    metrics: Mapping[str, Mapping[str, Any]]  # by short name, in the order of the evaluation
    own: str  # short name of this model
    base: str | None  # that of its base, if it was measured

    def name_of(self, model: str) -> str:
        return {self.own: "**this model**", self.base: "base"}.get(model) or code(model)


def load_results(stage: StageFolder, folder: str | Path | None) -> Results | None:
    """Load the folder of a `repair-hf evaluate` in which the model of a training was measured.

    Raises:
        UserError: If the folder holds no evaluation, or none of this model.
    """
    if folder is None:
        return None
    run = StageFolder.of(folder)
    if run.versions.get("command") != "evaluate" or not run.summary:
        raise UserError(f"--results: {folder} holds no finished evaluation; give a folder of `repair-hf evaluate`.")
    several = run.summary.get("models")
    metrics = {name: StageFolder.of(run.folder / name).summary for name in several} if several else {"": run.summary}
    digests = {each["model_digest"]: name for name, each in metrics.items()}
    own = digests.get(DualEncoder.from_pretrained(stage.folder, device="cpu").digest)
    if own is None:
        raise UserError(f"--results: {folder} has no model with the weights in {stage.folder}. Evaluate it there.")
    return Results(run, metrics, own, digests.get(stage.options.get("model_digest")))


def results_table(results: Results) -> str:
    """Write a row per metric and a column per model in Markdown, with 95% intervals."""
    heads = ("", *map(results.name_of, results.metrics))
    return markdown(heads, [(label(name), *cells) for name, cells in interval_cells(results.metrics).items()])


def comparisons(results: Results) -> list[str]:
    """Describe how this model's R@1 differs from that of the models before it, and how those were trained."""
    found = results.run.summary
    compared = [
        {"model": name, "reference": found["reference"], "differences": gains}
        for name, gains in found.get("differences", {}).items()
    ]
    compared += [*found.get("previous", ()), *(one for one in found.get("repair", ()) if one["reference"] is not None)]
    gains = {one["reference"]: one["differences"] for one in compared if one["model"] == results.own}
    return [
        f"against {results.name_of(name)} ({_training_of(name, results)}): "
        + ", ".join(
            f"{label(key)} {difference_cell(key, gain).strip()}" for key, gain in each.items() if key.endswith("_R@1")
        )
        for name, each in gains.items()
    ]


def _training_of(name: str, results: Results) -> str:
    if name == results.base:
        return "before training"
    other = StageFolder.of(str(results.metrics[name]["model"]))
    if "steps" not in other.summary:
        return "its training is unknown"
    return f"{other.summary['steps']:,} steps {'with records' if uses_records(other.options) else 'without records'}"


def eval_results(results: Results) -> list[EvalResult]:
    """Return the results of this model for the card's header."""
    run = results.run
    return [
        EvalResult(
            task_type="image-text-retrieval",
            dataset_type=next(iter(run.hub_ids("pairs")), "image-caption-pairs"),
            dataset_name=f"{without_folders(run.options['pairs'])}, split {run.options['split']}",
            dataset_split=str(run.options["split"]),
            metric_type="mrr" if metric.endswith("MRR") else "recall",
            metric_name=label(metric),
            metric_value=round(value, 6),
        )
        for metric, value in results.metrics[results.own].items()
        if metric[:4] in ("i2t_", "t2i_") and not metric.endswith("median_rank")  # the Hub has no such metric
    ]
