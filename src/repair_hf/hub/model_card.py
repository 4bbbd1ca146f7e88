"""The card of a trained encoder: what it was made of, how, and how it compares.

In:  the folder of a training, and folders of evaluations: of this model, of its base, of others.
Out: Markdown with its header. Rows are told apart by the digest of the weights that were measured, never by the name of a folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from repair_hf.analysis.tables import SIDES, interval_cells, label, metrics_table
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.hub.markdown import code, table, without_folders
from repair_hf.hub.rendering import TAGS, Stage, render
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import NOT_PART_OF_THE_RESULT
from repair_hf.training.config import RepairConfig

OWN, BASE = "this model", "base"
GRIDS = {
    "anchors": "training captions",
    "grids_3": "with a 3x3 grid",
    "grids_2": "with a 2x2 grid",
    "grids_0": "without a grid",
}
PLACES = (
    "output_dir",
    "logging_dir",
    "resume_from_checkpoint",
    "cache_folder",
    "disable_tqdm",
    "report_to",
    "run_name",
)
SENTENCE_TRANSFORMERS = """from PIL import Image
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{repo}")
images = model.encode([Image.open("photo.jpg")])
texts = model.encode(["a dog on a beach", "two cats on a sofa"])
print(model.similarity(images, texts))"""

OPEN_CLIP = """import open_clip
import torch
from PIL import Image

model, _, preprocess = open_clip.create_model_and_transforms("hf-hub:{repo}")
tokenizer = open_clip.get_tokenizer("hf-hub:{repo}")

model.eval()
with torch.no_grad():
    images = model.encode_image(preprocess(Image.open("photo.jpg"))[None], normalize=True)
    texts = model.encode_text(tokenizer(["a dog on a beach", "two cats on a sofa"]), normalize=True)
print((model.logit_scale.exp() * images @ texts.T).softmax(-1))"""


def model_card(
    folder: str | Path,
    repo: str,
    *,
    results: Sequence[str | Path] = (),
    license: str | None = None,
    has_open_clip: bool = False,
) -> str:
    """Write the card of a model.

    Args:
        folder: Of the training.
        repo: Id of the model.
        results: Folders of `repair-hf evaluate`, all on the same pairs.
        license: Identifier of the Hub.
        has_open_clip: Whether the repository holds the model in open_clip's format too.

    Raises:
        UserError: If a folder of `results` is none of an evaluation, they are on different pairs, or none is of this model.
    """
    stage = Stage.of(folder)
    config = json.loads((stage.folder / "config.json").read_text(encoding="utf-8"))
    runs = _runs(stage, results)
    has_records = stage.options.get("records") is not None and stage.options.get("negatives") != "none"
    values = {
        "title": repo.split("/")[-1],
        "repo": repo,
        "base": stage.name_of("model") if stage.options else "A dual encoder whose base is not on record",
        "base_digest": stage.options.get("model_digest"),
        "has_records": has_records,
        "is_toy": str(stage.options.get("model", "")).startswith("world/"),
        "padding": '"max_length"' if config["model_type"] in ("siglip", "siglip2") else "True",
        "model_type": config["model_type"],
        "sentence_transformers": SENTENCE_TRANSFORMERS.format(repo=repo),
        "open_clip": OPEN_CLIP.format(repo=repo) if has_open_clip else "",
        "results": _results(runs),
        "comparisons": _comparisons(runs),
        "measured_on": _measured_on(runs),
        "compositional": _compositional(runs),
        "validation": _validation(stage.summary),
        "pairs": _pairs(stage),
        "records": _records(stage, has_records),
        "steps": _steps(stage.summary),
        "time": f"{stage.summary['seconds']:,.0f} s" if "seconds" in stage.summary else "not on record",
        "loss": f"{stage.summary['loss']:.4f}" if "loss" in stage.summary else "not on record",
        "grids": _grids(stage.summary) if has_records else "",
        "hyperparameters": _hyperparameters(stage.options),
        "no_hyperparameters": "None differs." if stage.options else "They are not on record.",
        "curve": _curve(stage.folder / "trainer_state.json"),
        "seeds": f"One training run, seed {stage.options.get('seed', 'not on record')}: another seed gives other numbers. How far they spread was not "
        "measured here.",
        "licence": license,
    }
    return render("model_card", _header(stage, repo, runs, license), values | stage.told(_defaults()))


def _runs(stage: Stage, results: Sequence[str | Path]) -> dict[str, Stage]:
    """What was evaluated, by a name: this model, its base, then the others by their folder."""
    if not results:
        return {}
    own = DualEncoder.from_pretrained(stage.folder, device="cpu").digest
    named = {own: OWN, stage.options.get("model_digest"): BASE}
    runs: dict[str, Stage] = {}
    for folder in results:
        run = Stage.of(folder)
        if run.versions.get("command") != "evaluate" or not run.summary:
            raise UserError(f"--results: {folder} holds no finished evaluation; give folders of `repair-hf evaluate`.")
        if "model_digest" not in run.options:
            raise UserError(
                f"--results: {folder} compares several models; give the folders below it, one for each model."
            )
        name = named.get(run.options["model_digest"], Path(str(run.options["model"])).name)
        if name in runs:
            raise UserError(f"--results: {folder} and {runs[name].folder} both are of `{name}`; give one of them.")
        runs[name] = run
    if OWN not in runs:
        raise UserError(
            f"--results: none of {list(map(str, results))} is of {stage.folder} as its weights are now; evaluate it."
        )
    if len({run.options["pairs_fingerprint"] for run in runs.values()}) > 1:
        told = {name: f"{run.options['pairs']} ({run.options['split']})" for name, run in runs.items()}
        raise UserError(f"--results were measured on different pairs: {told}. Evaluate all on the same.")
    return {name: runs[name] for name in sorted(runs, key=lambda name: (name != BASE, name == OWN, name))}


def _trained(run: Stage) -> Stage:
    """The training of the model that a run has measured, if it lies beside it."""
    return Stage.of(str(run.options["model"]))


def _results(runs: Mapping[str, Stage]) -> str:
    if not runs:
        return ""
    rows = {}
    for name, run in runs.items():
        length = {key: value for key, value in _trained(run).summary.items() if key in ("seconds", "steps")}
        rows[_shown(name)] = [run.summary | length]
    return metrics_table(rows)[1]


def _shown(name: str) -> str:
    return f"**{OWN}**" if name == OWN else BASE if name == BASE else code(name)


def _compositional(runs: Mapping[str, Stage]) -> str:
    """What benchmarks of almost right captions gave, and on how many cases; empty where none was put to any of the models."""
    measured = {_shown(name): {"intervals": {}} | run.summary for name, run in runs.items()}
    found = {name: cells for name, cells in interval_cells(measured).items() if name[:4] not in ("i2t_", "t2i_")}
    if not found:
        return ""
    suffix = "_n_cases"
    counts = {key: value for metrics in measured.values() for key, value in metrics.items() if key.endswith(suffix)}
    cases = ", ".join(f"{count:,} of {key.removesuffix(suffix)}" for key, count in counts.items())
    rows = table(("%", *measured), [(label(name), *cells) for name, cells in found.items()])
    return f"{rows}\n\nCases: {cases}."


def _comparisons(runs: Mapping[str, Stage]) -> list[str]:
    """This model less each other one, with what the other was: at equal steps or not, with records or without."""
    if not runs:
        return []
    own, lines = runs[OWN].summary, []
    own_steps = _trained(runs[OWN]).summary.get("steps")
    for name, run in runs.items():
        if name == OWN:
            continue
        gains = ", ".join(
            f"{told} {100 * (own[f'{side}_R@1'] - run.summary[f'{side}_R@1']):+.1f}" for side, told in SIDES.items()
        )
        what = "before any of this" if name == BASE else _what_it_was(_trained(run), own_steps)
        lines.append(f"against {BASE if name == BASE else code(name)} ({what}): R@1 {gains} points, one run each")
    return lines


def _what_it_was(other: Stage, own_steps: int | None) -> str:
    if "steps" not in other.summary:
        return "how it was trained is not on record"
    steps = other.summary["steps"]
    length = f"as many steps, {steps:,}" if steps == own_steps else f"{steps:,} steps"
    is_plain = other.options.get("records") is None or other.options.get("negatives") == "none"
    return f"{length}, {'on the pairs alone' if is_plain else 'with records'}"


def _measured_on(runs: Mapping[str, Stage]) -> str:
    if not runs:
        return ""
    run = runs[OWN]
    return f"{run.name_of('pairs')}, split {code(run.options['split'])}, fingerprint {code(run.options['pairs_fingerprint'])}"


def _header(stage: Stage, repo: str, runs: Mapping[str, Stage], license: str | None) -> ModelCardData:
    base = next(iter(stage.hub_ids("model")), None)
    measured = []
    if runs:
        run = runs[OWN]
        name = f"{without_folders(run.options['pairs'])}, split {run.options['split']}"
        measured = [
            EvalResult(
                task_type="image-text-retrieval",
                dataset_type=next(iter(run.hub_ids("pairs")), "image-caption-pairs"),
                dataset_name=name,
                dataset_split=str(run.options["split"]),
                metric_type="mrr" if metric.endswith("MRR") else "recall",
                metric_name=f"{SIDES[metric[:3]]} {metric[4:]}",
                metric_value=round(value, 6),
            )
            for metric, value in run.summary.items()
            if metric[:4] in ("i2t_", "t2i_") and not metric.endswith("median_rank")  # no task of the Hub has it
        ]
    return ModelCardData(
        base_model=base,
        datasets=[*stage.hub_ids("records"), *stage.hub_ids("pairs")] or None,
        library_name="transformers",
        license=license,
        pipeline_tag="zero-shot-image-classification",
        tags=TAGS,
        model_name=repo.split("/")[-1],
        eval_results=measured or None,
    )


def _pairs(stage: Stage) -> str:
    told = stage.name_of("pairs")
    if "split" not in stage.options:
        return told
    return f"{told}, split {code(stage.options['split'])}, fingerprint {code(stage.options.get('pairs_fingerprint'))}"


def _records(stage: Stage, has_records: bool) -> str:
    if not has_records:
        return "none" if stage.options else "not on record"
    return f"{stage.name_of('records')}, digest {code(stage.options.get('records_digest'))}"


def _steps(summary: Mapping[str, Any]) -> str:
    if "steps" not in summary:
        return "not on record"
    return f"{summary['steps']:,}, on {summary['processes']} process{'es' if summary['processes'] > 1 else ''}"


def _grids(summary: Mapping[str, Any]) -> str:
    report = summary.get("grids", {})
    return table(("grids", ""), [(told, report[name]) for name, told in GRIDS.items()]) if report else ""


def _validation(summary: Mapping[str, Any]) -> str:
    names = [
        f"eval_{side}_{kind}"
        for side in SIDES
        for kind in ("R@1", "R@5", "R@10", "MRR")
        if f"eval_{side}_{kind}" in summary
    ]
    return ", ".join(f"{SIDES[name[5:8]]} {name[9:]} {summary[name]:.3f}" for name in names)


def _defaults() -> dict[str, Any]:
    """Of training, by name, whatever this machine would train on."""
    return RepairConfig(use_cpu=True).to_dict() | {"use_cpu": False}


def _hyperparameters(options: Mapping[str, Any]) -> str:
    defaults = _defaults()
    rows = [
        (code(name), code(without_folders(value)), code(defaults[name]))
        for name, value in options.items()
        if name in defaults and value != defaults[name] and name not in (*PLACES, *NOT_PART_OF_THE_RESULT)
    ]
    return table(("", "here", "default"), rows, labels=3) if rows else ""


def _curve(path: Path) -> str:
    if not path.is_file():
        return ""
    lines = [line for line in json.loads(path.read_text(encoding="utf-8"))["log_history"] if "loss_global" in line]
    heads = [
        name
        for name in ("step", "loss", "loss_global", "loss_grid", "logit_scale")
        if any(name in line for line in lines)
    ]
    return table(heads, [[line.get(name) for name in heads] for line in lines], labels=0) if lines else ""
