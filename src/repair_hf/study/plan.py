"""What a study will take: hours by number of GPUs, dollars and gigabytes (`--dry-run`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from repair_hf.analysis.costs import Item, items_of
from repair_hf.llm.calls import format_dollars
from repair_hf.llm.cost import Estimate
from repair_hf.study.estimates import Estimator
from repair_hf.study.methods.method import Baseline, Method
from repair_hf.study.running import Study
from repair_hf.study.swaps import Models
from repair_hf.study.tuning import TUNING_SEEDS, has_grid_loss
from repair_hf.synthesis.models import find_editor, find_llm
from repair_hf.synthesis.options import EditorOptions, LLMOptions

GPUS = (1, 4, 8)
# Assumed, not measured: FLUX.2-klein-9B with 8 steps at 512 px, and five epochs of training on grids.
SECONDS_PER_IMAGE, STEPS, CAPTIONS_PER_HOUR = 1.0, 8, 145_000
REQUESTS_PER_MINUTE = 1000  # assumed of a provider, unless `requests_per_minute` is set
PNG_BYTES, DECODED_BYTES = 1e6 / 3, 3 * 224**2  # assumed of an image of 512 px; of one as training reads it
HEADS = ("GPUs", "hours for images", "for trainings", "LLM hours", "hours in all", "dollars", "GB")


def plan_rows(estimator: Estimator, methods: Sequence[Method], trainings: int) -> list[tuple[str, ...]]:
    """Build a row for each number of GPUs. Images are made while the LLM answers; trainings follow."""
    asked = estimator.by_models(methods)
    price = sum((each for _, each in asked), Estimate()).dollars
    training_hours = trainings * estimator.corpus.captions / CAPTIONS_PER_HOUR
    image_hours = sum(each.image_calls * seconds_per_image(models.editor) for models, each in asked) / 3600
    llm_hours = sum(each.llm_calls / (rate(models.llm) or inf) for models, each in asked) / 60
    gigabytes = sum(each.image_calls * (models.editor.editor_size / 512) ** 2 for models, each in asked) * PNG_BYTES
    gigabytes += (estimator.corpus.images + edited_images(estimator, methods)) * DECODED_BYTES
    rows = []
    for count in GPUS:
        images, training = image_hours / count, training_hours / count
        hours = (images, training, llm_hours, max(images, llm_hours) + training)
        rows.append(
            (str(count), *(f"{each:,.1f}" for each in hours), format_dollars(price), f"{gigabytes / 1e9:,.1f}")
        )
    return rows


def seconds_per_image(editor: EditorOptions) -> float:
    """Return the GPU time of an image, in proportion to the denoising steps; 0 for a hosted editor."""
    return 0.0 if find_editor(editor)[0] == "litellm" else SECONDS_PER_IMAGE * editor.editor_steps / STEPS


def rate(llm: LLMOptions) -> float:
    """Return a provider's requests per minute; 0 for a local LLM, whose time is not counted."""
    return (llm.requests_per_minute or REQUESTS_PER_MINUTE) * (find_llm(llm)[0] == "litellm")


def bill(asked: Sequence[tuple[Models, Estimate]]) -> list[Item]:
    """List what each LLM answers, then what each editor makes."""
    items = [item for models, each in asked for item in items_of(each, models.llm, models.editor) if item.number]
    return sorted(items, key=lambda item: item.kind)


def edited_images(estimator: Estimator, methods: Sequence[Method]) -> float:
    """Return how many made images the methods train on, which are decoded into files."""
    made: dict[str, float] = {}
    for method in methods:
        if isinstance(method, Baseline):
            makers = [maker for maker in method.parts.values() if maker.makes_images]
            made |= {maker.name: estimator.corpus.captions for maker in makers}
        elif method.records:
            made[method.product] = estimator.triplets(method)["t2i"] * method.rounds
    return sum(made.values())


def count_trainings(study: Study, seeds: int) -> int:
    """Count the trainings of a study, without plain trainings at equal compute."""
    methods = [study.methods[name] for name in study.wanted]
    swept = sum(bool(each.parts if isinstance(each, Baseline) else each.records) for each in methods)
    count = seeds * (len(methods) + (len(study.points) - 1) * swept)
    for name in {method.tuned_as for method in methods} if study.tune else ():
        method = study.methods[name]
        weights = len(study.space.grid_weights) - 1 if has_grid_loss(method) else 0
        tried = len(study.space.rates_and_lengths(method)) + weights
        if tried > 1:
            reused = min(seeds, TUNING_SEEDS) * (name in study.wanted)  # the best one is not trained again
            count += TUNING_SEEDS * tried - reused
    return count
