"""The card of a trained encoder: use, results, training, limits."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCardData

from repair_hf.evaluation.training_data import uses_records
from repair_hf.hub.evaluations import comparisons, eval_results, load_results, results_table
from repair_hf.hub.markdown import code
from repair_hf.hub.rendering import TAGS, StageFolder, render
from repair_hf.runtime.files import read_json


def model_card(
    folder: str | Path,
    repo: str,
    *,
    results: str | Path | None = None,
    license: str | None = None,
    has_open_clip: bool = False,
    model_type: str | None = None,
    is_adapter: bool = False,
) -> str:
    """Write the card of the model in the `folder` of a training; `results` is a folder of `repair-hf evaluate`.

    `model_type` is as in `config.json`, which is read by default. An adapter has none.

    Raises:
        UserError: If `results` does not fit the model; see `load_results`.
    """
    stage = StageFolder.of(folder)
    options, measured = stage.options, load_results(stage, results)
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
        "base": stage.name_of("model") if options else "A dual encoder of unknown base",
        "has_records": uses_records(options),
        "is_toy": str(options.get("model", "")).startswith("world/"),
        "is_adapter": is_adapter,
        "model_type": model_type or read_json(stage.folder / "config.json")["model_type"],
        "has_open_clip": has_open_clip,
        "results": results_table(measured) if measured else "",
        "comparisons": comparisons(measured) if measured else [],
        "measured_on": measured.run.pairs() if measured else "",
        "pairs": stage.pairs(),
        "records": _records(stage),
        "steps": f"{stage.summary['steps']:,}" if "steps" in stage.summary else "unknown",
        "seed": options.get("seed", "unknown"),
        "license": license,
    }
    return render("model_card", header, values)


def _records(stage: StageFolder) -> str:
    if not uses_records(stage.options):
        return "none" if stage.options else "unknown"
    return f"{stage.name_of('records')}, digest {code(stage.options.get('records_digest'))}"
