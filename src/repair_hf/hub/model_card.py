"""The card of a trained encoder: use, results, training, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from repair_hf.analysis.tables import SIDES, label
from repair_hf.evaluation.training_data import uses_records
from repair_hf.hub.evaluations import eval_results, evaluation_values, load_evaluations
from repair_hf.hub.markdown import code
from repair_hf.hub.rendering import TAGS, Stage, render
from repair_hf.runtime.own_files import read_json

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
    model_type: str | None = None,
    is_adapter: bool = False,
) -> str:
    """Write the card of the model in the `folder` of a training; `results` are folders of `repair-hf evaluate`.

    `model_type` is as in `config.json`, which is read by default. An adapter has none.

    Raises:
        UserError: If `results` do not fit the model; see `load_evaluations`.
    """
    stage = Stage.of(folder)
    model_type = model_type or read_json(stage.folder / "config.json")["model_type"]
    runs = load_evaluations(stage, results)
    options = stage.options
    has_records = uses_records(options)
    values = {
        "title": repo.split("/")[-1],
        "repo": repo,
        "base": stage.name_of("model") if options else "A dual encoder of unknown base",
        "base_digest": options.get("model_digest"),
        "has_records": has_records,
        "is_toy": str(options.get("model", "")).startswith("world/"),
        "padding": '"max_length"' if model_type in ("siglip", "siglip2") else "True",
        "is_adapter": is_adapter,
        "model_type": model_type,
        "sentence_transformers": SENTENCE_TRANSFORMERS.format(repo=repo),
        "open_clip": OPEN_CLIP.format(repo=repo) if has_open_clip else "",
        "seed": options.get("seed", "unknown"),
        "licence": license,
    }
    values |= evaluation_values(runs) | _training(stage, has_records)
    return render("model_card", _header(stage, repo, runs, license, "peft" if is_adapter else "transformers"), values)


def _header(stage: Stage, repo: str, runs: Mapping[str, Stage], license: str | None, library: str) -> ModelCardData:
    return ModelCardData(
        base_model=next(iter(stage.hub_ids("model")), None),
        datasets=[*stage.hub_ids("records"), *stage.hub_ids("pairs")] or None,
        library_name=library,
        license=license,
        pipeline_tag="zero-shot-image-classification",
        tags=TAGS,
        model_name=repo.split("/")[-1],
        eval_results=eval_results(runs),
    )


def _training(stage: Stage, has_records: bool) -> dict[str, str]:
    """Values of the template that describe the training."""
    summary = stage.summary
    records = "none" if stage.options else "unknown"
    if has_records:
        records = f"{stage.name_of('records')}, digest {code(stage.options.get('records_digest'))}"
    steps = "unknown"
    if "steps" in summary:
        processes = f"{summary['processes']} process{'es' if summary['processes'] > 1 else ''}"
        steps = f"{summary['steps']:,}, on {processes}"
    return {
        "pairs": stage.pairs(),
        "records": records,
        "steps": steps,
        "time": f"{summary['seconds']:,.0f} s" if "seconds" in summary else "unknown",
        "loss": f"{summary['loss']:.4f}" if "loss" in summary else "unknown",
        "validation": _validation(summary),
    }


def _validation(summary: Mapping[str, Any]) -> str:
    names = [f"{side}_{kind}" for side in SIDES for kind in ("R@1", "R@5", "R@10", "MRR")]
    return ", ".join(f"{label(name)} {summary[f'eval_{name}']:.3f}" for name in names if f"eval_{name}" in summary)
