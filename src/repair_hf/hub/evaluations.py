"""Evaluations on a model card: this model, its base and other models, all measured on the same pairs.

A model is recognized by the digest of its weights, never by the name of a folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from repair_hf.analysis.tables import SIDES, interval_cells, label, markdown, metrics_table
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.comparison import short_names
from repair_hf.evaluation.training_data import uses_records
from repair_hf.hub.markdown import code, without_folders
from repair_hf.hub.rendering import Stage
from repair_hf.runtime.options import UserError

OWN, BASE = "this model", "base"
CASES = "_n_cases"  # ends the metric that holds the number of cases of a benchmark


def load_evaluations(stage: Stage, results: Sequence[str | Path]) -> dict[str, Stage]:
    """Load folders of `repair-hf evaluate` by name: the base, the others by parts of their path, then this model.

    Raises:
        UserError: If a folder holds no evaluation, two are of one model, none is of this model, or pairs differ.
    """
    if not results:
        return {}
    measured: dict[str, Stage] = {}  # by the digest of the weights
    for folder in results:
        run = Stage.of(folder)
        if run.versions.get("command") != "evaluate" or not run.summary:
            raise UserError(f"--results: {folder} holds no finished evaluation; give folders of `repair-hf evaluate`.")
        if "model_digest" not in run.options:
            raise UserError(f"--results: {folder} compares several models; give its subfolders, one for each model.")
        weights = run.options["model_digest"]
        if weights in measured:
            raise UserError(f"--results: {folder} and {measured[weights].folder} are both of one model; give one.")
        measured[weights] = run
    own = DualEncoder.from_pretrained(stage.folder, device="cpu").digest
    known = {stage.options.get("model_digest"): BASE, own: OWN}
    paths = {weights: str(Path(str(run.options["model"])).resolve()) for weights, run in measured.items()}
    others = short_names([BASE, OWN, *(path for weights, path in paths.items() if weights not in known)])
    names = {path: name for name, path in others.items()}
    found = {known.get(weights) or names[paths[weights]]: run for weights, run in measured.items()}
    if OWN not in found:
        raise UserError(
            f"--results: none of {list(map(str, results))} measured the current weights in {stage.folder}; "
            "evaluate them."
        )
    if len({run.options["pairs_fingerprint"] for run in found.values()}) > 1:
        pairs = {name: f"{run.options['pairs']} ({run.options['split']})" for name, run in found.items()}
        raise UserError(f"--results were measured on different pairs: {pairs}. Evaluate all models on the same pairs.")
    return {name: found[name] for name in sorted(found, key=lambda name: (name != BASE, name == OWN, name))}


def evaluation_values(runs: Mapping[str, Stage]) -> dict[str, Any]:
    """Values of the model card's template; empty if nothing was evaluated."""
    if not runs:
        return {"results": "", "comparisons": [], "measured_on": "", "compositional": ""}
    return {
        "results": _results(runs),
        "comparisons": _comparisons(runs),
        "measured_on": runs[OWN].pairs(),
        "compositional": _compositional(runs),
    }


def eval_results(runs: Mapping[str, Stage]) -> list[EvalResult] | None:
    """Results of this model for the card's header."""
    if not runs:
        return None
    run = runs[OWN]
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
        for metric, value in run.summary.items()
        if metric[:4] in ("i2t_", "t2i_") and not metric.endswith("median_rank")  # the Hub has no such metric
    ]


def _trained(run: Stage) -> Stage:
    return Stage.of(str(run.options["model"]))


def _shown(name: str) -> str:
    return f"**{OWN}**" if name == OWN else BASE if name == BASE else code(name)


def _results(runs: Mapping[str, Stage]) -> str:
    rows = {}
    for name, run in runs.items():
        length = {key: value for key, value in _trained(run).summary.items() if key in ("seconds", "steps")}
        rows[_shown(name)] = [run.summary | length]
    return metrics_table(rows)[1]


def _compositional(runs: Mapping[str, Stage]) -> str:
    """Results of benchmarks of almost right captions, and their numbers of cases; empty if none was run."""
    measured = {_shown(name): {"intervals": {}} | run.summary for name, run in runs.items()}
    found = {name: cells for name, cells in interval_cells(measured).items() if name[:4] not in ("i2t_", "t2i_")}
    if not found:
        return ""
    counts = {key: value for metrics in measured.values() for key, value in metrics.items() if key.endswith(CASES)}
    cases = ", ".join(f"{count:,} of {key.removesuffix(CASES)}" for key, count in counts.items())
    rows = markdown(("%", *measured), [(label(name), *cells) for name, cells in found.items()])
    return f"{rows}\n\nCases: {cases}."


def _comparisons(runs: Mapping[str, Stage]) -> list[str]:
    """Differences of this model to each other model, with the steps and records of that model."""
    own, lines = runs[OWN].summary, []
    own_steps = _trained(runs[OWN]).summary.get("steps")
    for name, run in runs.items():
        if name == OWN:
            continue
        gains = ", ".join(
            f"{short} {100 * (own[f'{side}_R@1'] - run.summary[f'{side}_R@1']):+.1f}" for side, short in SIDES.items()
        )
        what = "before training" if name == BASE else _training_of(_trained(run), own_steps)
        lines.append(f"against {BASE if name == BASE else code(name)} ({what}): R@1 {gains} points, one run each")
    return lines


def _training_of(other: Stage, own_steps: int | None) -> str:
    if "steps" not in other.summary:
        return "its training is unknown"
    steps = other.summary["steps"]
    length = f"the same number of steps, {steps:,}" if steps == own_steps else f"{steps:,} steps"
    return f"{length}, {'with records' if uses_records(other.options) else 'on the pairs alone'}"
