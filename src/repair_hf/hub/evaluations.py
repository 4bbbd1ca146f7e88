"""Evaluations on a model card: this model, its base and other models, all measured on the same pairs.

A model is recognized by the digest of its weights, never by the name of a folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import EvalResult

from repair_hf.analysis.tables import SIDES, interval_cells, label, markdown
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.comparison import short_names
from repair_hf.evaluation.training_data import uses_records
from repair_hf.hub.markdown import code, without_folders
from repair_hf.hub.rendering import StageFolder
from repair_hf.runtime.options import UserError

OWN, BASE = "this model", "base"


def load_evaluations(stage: StageFolder, results: Sequence[str | Path]) -> dict[str, StageFolder]:
    """Load evaluations by the model's name: the base, the others, then this model.

    `results` are folders of `repair-hf evaluate`, of one model or of several.

    Raises:
        UserError: If a folder holds no evaluation, two are of one model, none is of this model, or pairs differ.
    """
    measured: dict[str, StageFolder] = {}  # by the digest of the weights
    for run in (run for folder in results for run in _evaluations_in(folder)):
        weights = run.options["model_digest"]
        if weights in measured:
            raise UserError(f"--results: {run.folder} and {measured[weights].folder} are of one model; give one.")
        measured[weights] = run
    if not measured:
        return {}
    known = {
        stage.options.get("model_digest"): BASE,
        DualEncoder.from_pretrained(stage.folder, device="cpu").digest: OWN,
    }
    paths = {weights: str(Path(str(run.options["model"])).resolve()) for weights, run in measured.items()}
    others = short_names([BASE, OWN, *(path for weights, path in paths.items() if weights not in known)])
    names = {path: name for name, path in others.items()}
    found = {known.get(weights) or names[paths[weights]]: run for weights, run in measured.items()}
    if OWN not in found:
        raise UserError(
            f"--results: no folder is of the weights in {stage.folder}. Evaluate them, and give that folder."
        )
    if len({run.options["pairs_fingerprint"] for run in found.values()}) > 1:
        pairs = {name: f"{run.options['pairs']} ({run.options['split']})" for name, run in found.items()}
        raise UserError(f"--results were measured on different pairs: {pairs}. Evaluate all models on the same pairs.")
    return {name: found[name] for name in sorted(found, key=lambda name: (name != BASE, name == OWN, name))}


def _evaluations_in(folder: str | Path) -> list[StageFolder]:
    run = StageFolder.of(folder)
    if run.versions.get("command") != "evaluate" or not run.summary:
        raise UserError(f"--results: {folder} holds no finished evaluation; give a folder of `repair-hf evaluate`.")
    return [StageFolder.of(run.folder / name) for name in run.summary["models"]] if "models" in run.summary else [run]


def results_table(runs: Mapping[str, StageFolder]) -> str:
    """Write a row per metric and a column per model in Markdown, with 95% intervals; empty without evaluations."""
    if not runs:
        return ""
    shown = {OWN: f"**{OWN}**", BASE: BASE}
    measured = {shown.get(name) or code(name): {"intervals": {}} | run.summary for name, run in runs.items()}
    cells = interval_cells(measured)
    return markdown(("", *measured), [(label(name), *of_models) for name, of_models in cells.items()])


def comparisons(runs: Mapping[str, StageFolder]) -> list[str]:
    """Describe what this model gains in R@1 over each other model, with the steps and records of that model."""
    own, lines = runs.get(OWN), []
    for name, run in runs.items():
        if own is None or name == OWN:
            continue
        gains = ", ".join(
            f"{short} {100 * (own.summary[f'{side}_R@1'] - run.summary[f'{side}_R@1']):+.1f}"
            for side, short in SIDES.items()
        )
        made = "before training" if name == BASE else _training_of(run, own)
        lines.append(f"against {BASE if name == BASE else code(name)} ({made}): R@1 {gains} points, one run each")
    return lines


def _training_of(run: StageFolder, own: StageFolder) -> str:
    other, mine = (StageFolder.of(str(each.options["model"])) for each in (run, own))
    if "steps" not in other.summary:
        return "its training is unknown"
    steps = other.summary["steps"]
    length = f"the same number of steps, {steps:,}" if steps == mine.summary.get("steps") else f"{steps:,} steps"
    return f"{length}, {'with records' if uses_records(other.options) else 'on the pairs alone'}"


def eval_results(run: StageFolder | None) -> list[EvalResult] | None:
    """Return the results of this model for the card's header."""
    if run is None:
        return None
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
