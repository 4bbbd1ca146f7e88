"""Did repair help? One sentence and the differences of the decisive comparison, then all that was measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.analysis.blend_curve import blend_rows, curve
from repair_hf.analysis.evaluations import Comparison, Evaluations, stages_below
from repair_hf.analysis.forest import forest
from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import difference_cell, label
from repair_hf.encoder.blend import training_of
from repair_hf.evaluation.comparison import RECALL, decides, too_few
from repair_hf.evaluation.provenance import plain_before, uses_records
from repair_hf.runtime.files import read_yaml
from repair_hf.runtime.options import PairsOptions, changed, fields_of, flags
from repair_hf.runtime.stage import is_finished

MEASURES = {"mean_R@1": "R@1, both directions", "kept_R@1": "R@1 on further pairs", "contrast": "contrast set"}


def repair_findings(root: Path | None, evaluations: Evaluations) -> list[Finding]:
    """Return what opens a report, then what was measured, all differences, and how the ranks of queries changed."""
    title = "Did repair help?"
    if not evaluations.measured:
        return [Finding("repair", title, f"Not measured. {_what_to_run(root, evaluations)}")]
    if evaluations.decisive is None:
        note = (
            "Not known: no model was measured that was trained without records, from the same base, for as many steps."
        )
        return [Finding("repair", title, f"{note} {_what_to_run(root, evaluations)}"), _levels(evaluations)]
    names = evaluations.title(evaluations.decisive)
    means = [
        {"name": MEASURES[metric], "metric": metric} | gain
        for metric, gain in evaluations.decisive.row["summary"].items()
    ]
    table = pd.DataFrame({"": row["name"], names: difference_cell(row["metric"], row)} for row in means)
    data = pd.DataFrame(means)
    helped = Finding(
        "repair", title, _answer(evaluations, evaluations.decisive), table, data=data, plot=forest(names, data)
    )
    return [helped, _levels(evaluations), _differences(evaluations), _ranks(evaluations)]


def blend_finding(evaluations: Evaluations) -> Finding | None:
    """What blends gain, and keep on further pairs: those of the first folder of `repair-hf evaluate --blends`."""
    for folder in dict.fromkeys(model.parent for model in evaluations.measured):
        metrics = {model.name: own for model, own in evaluations.measured.items() if model.parent == folder}
        configs = {name: read_yaml(folder / name / "config.yaml") for name in metrics if "@" in name}
        weights = {name: config["weight"] for name, config in configs.items() if "weight" in config}
        also = [key.removesuffix("_i2t_R@1") for key in next(iter(metrics.values())) if key.endswith("_i2t_R@1")]
        if weights and also:
            rows = blend_rows(metrics, weights, also)
            table = rows.assign(blend=rows["blend"].map("{:g}".format))
            table = table.assign(**{name: rows[name].map("{:.1f}".format) for name in ("gained", "kept")})
            note = (
                "R@1 of both directions in %: gained on these pairs, kept on further ones. Blend: the weight of the "
                "tuned model; 0 is the base. `repair-hf export blend` writes the model at one weight."
            )
            return Finding("blends", "What is gained, and what is kept?", note, table, data=rows, plot=curve(rows))
    return None


def _answer(evaluations: Evaluations, decisive: Comparison) -> str:
    row, plain, measured = decisive.row, evaluations.names[decisive.reference], evaluations.measured[decisive.model]
    gains = [
        f"{difference_cell(metric, row['differences'][metric]).strip(' *')} in {label(metric)}"
        for metric in RECALL
        if metric in row["differences"]
    ]
    return (
        f"{row['verdict'].capitalize()}: {evaluations.title(decisive)} is {' and '.join(gains)}, in points, "
        f"on the split {measured['split']}. "
        f"{plain} was trained without records, from the same base, for as many steps. "
        f"{too_few(measured['n_images'])}".rstrip()
    )


def _levels(evaluations: Evaluations) -> Finding:
    rows: list[dict[str, str]] = []
    for folder, own in evaluations.measured.items():
        keys = [key for key in own["intervals"] if decides(key)]
        for name, scores in (("random", own["random"]), (evaluations.names[folder], own)):
            row = {"model": name} | {label(key): f"{100 * scores[key]:.1f}" for key in keys}
            rows += [row] if row not in rows else []  # a random retriever scores the same beside each model
    return Finding("models", "What was measured", "In %.", pd.DataFrame(rows))


def _differences(evaluations: Evaluations) -> Finding:
    data = pd.DataFrame(
        {"comparison": evaluations.title(comparison), "metric": metric} | gain
        for comparison in (*evaluations.repairs, *evaluations.others)
        for metric, gain in comparison.row["differences"].items()
        if decides(metric)
    )
    table = data[["comparison"]].assign(
        metric=data["metric"].map(label),
        difference=[difference_cell(row["metric"], row) for row in data.to_dict("records")],
    )
    note = "Every training against training without records. In points; *: the 95% interval excludes 0."
    return Finding("comparisons", "All differences", note, table, data=data)


def _ranks(evaluations: Evaluations) -> Finding:
    rows = [
        {"comparison": evaluations.title(comparison), "direction": direction} | counts
        for comparison in evaluations.repairs
        for direction, counts in comparison.row["queries"].items()
    ]
    note = "repaired: first only with records; broken: first only without; improved, worsened: first with neither."
    return Finding("ranks", "Ranks with and without records", note, pd.DataFrame(rows))


def _what_to_run(root: Path | None, evaluations: Evaluations) -> str:
    """Name the commands that give an answer, with the paths of the models that are there."""
    trained = [str(folder) for folder in stages_below(root, "train") if is_finished(folder)]
    trained += [own["model"] for own in evaluations.measured.values() if own["model"] not in trained]
    options = {model: training_of(model)[1] for model in trained}
    repaired = next((model for model, own in options.items() if uses_records(own)), None)
    if repaired is None:
        return (
            "Run `repair-hf train` with and without `--records`, then `repair-hf evaluate BASE PLAIN REPAIRED "
            "--output …` with a folder below this one."
        )
    own = options[repaired]
    source = PairsOptions(**{name: own[name] for name in fields_of(PairsOptions) if name in own})
    base, pairs = str(own.get("model")), changed(source)
    others = [model for model in trained if model != repaired]
    baselines = plain_before({model: model for model in (*others, repaired)})[repaired]
    plain = baselines[0] if baselines else str(Path(repaired).parent / "plain")
    output = (Path(repaired).parent if root is None else root) / "validation"
    validation = flags(pairs | {"split": "validation"})
    evaluate = _command("evaluate", base, plain, repaired, *validation, "--output", output)
    if baselines:
        return f"Run {evaluate}."
    steps = training_of(repaired)[2].get("steps")
    train = _command("train", "--model", base, *flags(pairs), "--max-steps", steps, "--output", plain)
    return f"Run {train}, then {evaluate}."


def _command(*words: Any) -> str:
    return f"`{shlex.join(['repair-hf', *map(str, words)])}`"
