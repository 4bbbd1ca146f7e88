"""The card of a trained encoder: use, results, training, limits.

Its results compare this model, its base and other models. A model is recognized by the digest of its weights, never by
the name of a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from repair_hf.analysis.tables import difference_cell, interval_rows, label, markdown
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import PADDED_TO_FULL_LENGTH
from repair_hf.evaluation.provenance import uses_records
from repair_hf.hub.rendering import TAGS, StageFolder, code, render, without_folders
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import UserError


def model_card(
    folder: str | Path,
    repo: str,
    *,
    results: str | Path | None = None,
    license: str | None = None,
    model_type: str | None = None,
    is_adapter: bool = False,
) -> str:
    """Write the card of the model in the `folder` of a training; `results` is a folder of `repair-hf evaluate`.

    `model_type` is as in `config.json`, which is read by default. An adapter has none.

    Raises:
        UserError: If `results` does not fit the model; see `load_results`.
    """
    stage = StageFolder.of(folder)
    measured = load_results(stage, results)
    model_type = model_type or read_json(stage.folder / "config.json")["model_type"]
    header = ModelCardData(
        base_model=next(iter(stage.hub_ids("model")), None),
        datasets=[*stage.hub_ids("records"), *stage.hub_ids("pairs")] or None,
        library_name="peft" if is_adapter else "transformers",
        license=license,
        pipeline_tag="zero-shot-image-classification",
        tags=TAGS,
        model_name=repo.split("/")[-1],
        eval_results=eval_results(measured) if measured else None,
    )
    values = {
        "title": repo.split("/")[-1],
        "repo": repo,
        "is_adapter": is_adapter,
        "model_type": model_type,
        "pads_fully": model_type in PADDED_TO_FULL_LENGTH,
        "results": results_table(measured) if measured else "",
        "comparisons": comparisons(measured) if measured else [],
        "measured_on": measured.run.pairs() if measured else "",
        "license": license,
    }
    return render("model_card", header, values | _training(stage))


def _training(stage: StageFolder) -> dict[str, Any]:
    """Return what the card says of the training."""
    options = stage.options
    model = options.get("model")
    return {
        "base": stage.name_of("model") if options else "A dual encoder of unknown base",
        "has_records": uses_records(options),
        "is_toy": str(options.get("model", "")).startswith("world/"),
        "pairs": stage.pairs(),
        "records": _records(stage),
        "blend": options.get("blend", 1),
        "blend_base": stage.name_of("base") if options.get("base", model) != model else "base",
        "steps": f"{stage.summary['steps']:,}" if "steps" in stage.summary else "unknown",
        "seed": options.get("seed", "unknown"),
    }


def _records(stage: StageFolder) -> str:
    if not uses_records(stage.options):
        return "none" if stage.options else "unknown"
    return f"{stage.name_of('records')}, digest {code(stage.options.get('records_digest'))}"


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
    names = run.summary.get("models")
    metrics = {name: StageFolder.of(run.folder / name).summary for name in names} if names else {"": run.summary}
    by_digest = {values["model_digest"]: name for name, values in metrics.items()}
    own = by_digest.get(DualEncoder.from_pretrained(stage.folder, device="cpu").digest)
    if own is None:
        raise UserError(f"--results: {folder} has no model with the weights in {stage.folder}. Evaluate it there.")
    return Results(run, metrics, own, by_digest.get(stage.options.get("model_digest")))


def results_table(results: Results) -> str:
    """Write a row per metric in Markdown; a column for a random retriever, then one per model with 95% intervals."""
    measured = {"random": results.metrics[results.own]["random"] | {"intervals": {}}, **results.metrics}
    return markdown(("", "random", *map(results.name_of, results.metrics)), interval_rows(measured)[1])


def comparisons(results: Results) -> list[str]:
    """Describe how this model's R@1 differs from that of the models before it, and how those were trained."""
    path = results.run.folder / "differences.json"
    if not path.is_file():
        return []
    compared = read_json(path, needs=("reference", "differences", "repair"))
    differences = {}  # by the model that this one is compared with
    if results.own in compared["differences"]:
        differences[compared["reference"]] = compared["differences"][results.own]
    for repair in compared["repair"]:
        if repair["model"] == results.own and repair["reference"] is not None:
            differences[repair["reference"]] = repair["differences"]
    return [
        f"against {results.name_of(name)} ({_training_of(name, results)}): "
        + ", ".join(
            f"{label(metric)} {difference_cell(metric, gain).strip()}"
            for metric, gain in gains.items()
            if metric.endswith("_R@1")
        )
        for name, gains in differences.items()
    ]


def _training_of(name: str, results: Results) -> str:
    if name == results.base:
        return "before training"
    other = StageFolder.of(str(results.metrics[name]["model"]))
    if "steps" not in other.summary:
        return "its training is unknown"
    records = "with records" if uses_records(other.options) else "without records"
    blend = other.options.get("blend", 1)
    return f"{other.summary['steps']:,} steps {records}" + ("" if blend == 1 else f", blend {blend:g}")


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
