"""`repair-hf evaluate`: measure retrievers in both directions by full ranking, and compare them with the first.

Each model gets `metrics.json` (R@1/5/10, MRR and median rank with 95% intervals, and their provenance) and
`ranks.parquet`; with compositional benchmarks also `cases.parquet`. Several models have a folder each below the output
folder, which then holds `metrics.json` of all, and `differences.json`.

Under `accelerate launch` the processes share the embedding, with the same result as one process of as many threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import print_table
from repair_hf.evaluation.options import CompositionalOptions, EvaluateOptions
from repair_hf.runtime.options import PairsOptions, StageOptions, opt
from repair_hf.runtime.run_folder import write_atomically

EPILOG = """examples:
  repair-hf evaluate world/base --pairs runs/world --output runs/evaluate
  repair-hf evaluate world/base runs/train --pairs runs/world --contrast runs/contrast --also runs/web \\
      --output runs/compare
  repair-hf evaluate world/base runs/plain runs/train --blends 0.6 0.8 1 --blend-split validation \\
      --pairs runs/world --also runs/web --output runs/blends
  repair-hf evaluate openai/clip-vit-base-patch32 --pairs me/my-dataset --split test --output runs/evaluate"""

NOTE = (
    "contrast: % of questions answered rightly. A true caption must be nearer than one with a changed detail, and a "
    "picture nearer than one that fits the changed caption. Guessing gives 50%; text and image 25%, group 17%."
)


@dataclass
class TestPairsOptions(PairsOptions):
    """Which images and captions are ranked."""

    split: str = opt("test", "Split to use; `all` uses every split.", main=True)


OPTIONS = (EvaluateOptions, TestPairsOptions, StageOptions, CompositionalOptions)


def run(
    options: EvaluateOptions, pairs_options: TestPairsOptions, stage: StageOptions, compositional: CompositionalOptions
) -> None:
    """Measure the models, or print on what they would be measured."""
    from repair_hf.evaluation.comparison import short_names
    from repair_hf.evaluation.evaluate import Evaluation
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.processes import is_first

    pairs = load_wanted(pairs_options)
    places = short_names(options.also, "also").items()
    also = {name: load_wanted(TestPairsOptions(place, split=options.also_split)) for name, place in places}
    blend_pairs = None if options.blend_split is None else load_wanted(pairs_options, options.blend_split)
    further: Any = {"also": also, "blend_pairs": blend_pairs}
    evaluation = Evaluation(options.model, pairs, options, compositional, **further, output=stage.output)
    if stage.dry_run:
        evaluation.check()
        return _print_plan(evaluation)
    evaluation.run()
    if not is_first():
        return
    _print_metrics(evaluation)
    if evaluation.weights and evaluation.also:
        _draw_blends(evaluation, Path(stage.output))
    print(f"-> {stage.output}")


def _print_plan(evaluation: Any) -> None:
    times = f", by each of {len(evaluation.names)} models" if len(evaluation.names) > 1 else ""
    images, captions = len(evaluation.pairs.images), len(evaluation.pairs.captions)
    print(f"{images:,} images and {captions:,} captions would be embedded and ranked{times}.")
    for name, pairs in evaluation.also.items():
        print(f"{name}: {len(pairs.images):,} images and {len(pairs.captions):,} captions would be ranked as well.")
    for cases in evaluation.sets:
        print(f"{cases.benchmark}: {len(cases):,} cases of {len(cases.captions):,} captions.")


def _print_metrics(evaluation: Any) -> None:
    from repair_hf.analysis.tables import interval_rows
    from repair_hf.evaluation.comparison import too_few
    from repair_hf.evaluation.judging import describe_cases
    from repair_hf.evaluation.provenance import describe

    metrics, comparison = evaluation.metrics, evaluation.comparison
    if comparison:
        _print_models(metrics, comparison)
        print("*: the interval excludes 0. differences.json and metrics.json hold the other metrics and intervals.")
    else:
        (own,) = metrics.values()
        print_table(*interval_rows({"random": own["random"] | {"intervals": {}}, **metrics}))
    print(
        "R@K in %: an annotated positive is in the top K. MRR: mean of 1 / rank of the best one. Ties are ranked "
        "pessimistically.\n"
        f"In brackets: 95% interval, {evaluation.options.resamples:,} resamples of the images, each with its "
        f"captions.\n{describe(metrics)}"
    )
    for name, pairs in {"": evaluation.pairs, **evaluation.also}.items():
        if few := too_few(len(pairs.images)):
            print(f"{name}: {few}" if name else few)
    for line in describe_cases(metrics, evaluation.sets):
        print(line)
    if evaluation.unseen:
        print(f"{NOTE} {_origin(evaluation.unseen)}")
    if "blends" not in comparison:
        for repair in comparison.get("repair", ()):
            print(answer(repair))


def _print_models(metrics: Mapping[str, Any], comparison: Mapping[str, Any]) -> None:
    """Print the scores of several models, and how they differ. Of blends, averages: what is gained, what is kept."""
    from repair_hf.analysis.tables import blend_gain_rows, gain_rows, mean_rows
    from repair_hf.evaluation.comparison import decides, summary

    scores = {"random": metrics[comparison["reference"]]["random"], **metrics}
    if "blends" in comparison:
        scores = {name: summary(own) for name, own in scores.items()}
        print_table(*mean_rows("model", {name: [own] for name, own in scores.items()}, list(scores["random"])))
        if comparison["blends"]:
            print_table(*blend_gain_rows(comparison["blends"]))
        return
    shown = [name for name in dict.fromkeys(chain.from_iterable(scores.values())) if decides(name)]
    print_table(*mean_rows("model", {name: [own] for name, own in scores.items()}, shown))
    print_table(*gain_rows(comparison["differences"], f"change from {comparison['reference']}"))


def _draw_blends(evaluation: Any, folder: Path) -> None:
    """Draw what each blend gains against what it keeps of the base."""
    from repair_hf.analysis.blend_curve import blend_rows, curve
    from repair_hf.analysis.pages import render

    rows = blend_rows(evaluation.metrics, evaluation.weights, list(evaluation.also))
    write_atomically(folder / "blends.svg", render("blends.svg", plot=curve(rows)))
    print("`repair-hf export blend` writes the model at one weight.")


def answer(repair: dict[str, Any]) -> str:
    """Say whether repair helped, and by which differences: R@1, also on further pairs, and the contrast set."""
    from repair_hf.analysis.tables import gain_lines
    from repair_hf.evaluation.comparison import decides, too_few

    model, reference = repair["model"], repair["reference"]
    if reference is None:
        return (
            f"Did repair help? {model} was trained with records, and no model before it without, from the same base "
            "and for as many steps. Train one by --max-steps, without --records, and name it before."
        )
    gains = {name: gain for name, gain in repair["differences"].items() if decides(name)}
    verdict, n_images = repair["verdict"], repair["n_images"]
    few = f" ({n_images:,} images are too few)" if too_few(n_images) else ""
    return gain_lines(f"Did repair help? {model} − {reference}: {verdict}{few}.", gains)


def _origin(unseen: dict[str, bool]) -> str:
    known, unknown = ([name for name, is_sure in unseen.items() if is_sure is sure] for sure in (True, False))
    parts = [f"{', '.join(known)} saw none of their images and captions in training."] if known else []
    parts += [f"Not known for {', '.join(unknown)}: no folder says what it was trained on."] if unknown else []
    return " ".join(parts)
