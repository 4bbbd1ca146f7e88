"""`repair-hf evaluate`: measure retrievers in both directions by full ranking, and compare them with the first.

Each model gets `metrics.json` (R@1/5/10, MRR and median rank with 95% intervals, and their provenance) and
`ranks.parquet`; with compositional benchmarks also `cases.parquet`. Several models have a folder each below the output
folder, which then holds `metrics.json` of all, `differences.json` and `queries.parquet` (both ranks of each query).

Under `accelerate launch` the processes share the embedding, with the same result as one process of as many threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import suggest
from repair_hf.evaluation.compositional import CompositionalOptions
from repair_hf.runtime.command_line import as_flags
from repair_hf.runtime.options import EmbeddingOptions, PairsOptions, StageOptions, UserError, need, opt

EPILOG = """examples:
  repair-hf evaluate world/base --pairs runs/world --output runs/evaluate
  repair-hf evaluate world/base runs/train --pairs runs/world --compositional world --output runs/compare
  repair-hf evaluate openai/clip-vit-base-patch32 --pairs me/my-dataset --split test --output runs/evaluate"""


@dataclass
class EvaluateOptions(EmbeddingOptions):
    """Which retrievers are measured."""

    model: list[str] = need(
        "Retrievers: Hub id or folder of a dual encoder or SentenceTransformer, or world/base. Several are compared "
        "with the first."
    )
    resamples: int = opt(2000, "Bootstrap resamples of the images, for the 95% intervals.", least=1)


@dataclass
class TestPairsOptions(PairsOptions):
    """Which images and captions are ranked."""

    split: str = opt("test", "Split to use; `all` uses every split.")


OPTIONS = (EvaluateOptions, TestPairsOptions, StageOptions, CompositionalOptions)
BRIEF = (
    "model pairs image_folder split output compositional resamples batch_size precision cache_images dry_run".split()
)


@dataclass(frozen=True)
class _Data:
    """What every model is measured on: pairs, and the cases of compositional benchmarks."""

    pairs: Any
    options: PairsOptions
    sets: Sequence[Any]


def run(
    options: EvaluateOptions, pairs_options: TestPairsOptions, stage: StageOptions, compositional: CompositionalOptions
) -> None:
    """Measure the models, or print on what they would be measured."""
    from rich.console import Console

    from repair_hf.analysis.tables import intervals_table
    from repair_hf.evaluation.comparison import short_names
    from repair_hf.evaluation.compositional import load_benchmarks
    from repair_hf.evaluation.judging import told_cases
    from repair_hf.evaluation.provenance import describe
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import check_stage, open_stage

    names, output = short_names(options.model), Path(stage.output)
    if options.model_revision is not None and len(names) > 1:
        raise UserError(f"`model_revision` is of one model, got {len(names)}. Measure them one at a time.")
    pairs = load_wanted(pairs_options)
    data = _Data(pairs, pairs_options, load_benchmarks(compositional, pairs, pairs_options))
    resolved = asdict(pairs_options) | asdict(stage) | asdict(options) | asdict(compositional)
    resolved["pairs_fingerprint"] = pairs.fingerprint
    resolved["cases_fingerprints"] = [cases.fingerprint for cases in data.sets]
    del resolved["batch_size"]  # affects speed only
    folders = {name: output / name if len(names) > 1 else output for name in names}
    if len(names) > 1:
        check_stage(output, command="evaluate", options=resolved)
    if stage.dry_run:
        for name, model in names.items():
            _check_model(model, folders[name], options, resolved)
        return _print_plan(data, len(names))
    if len(names) > 1:
        open_stage(output, command="evaluate", options=resolved)
    measured = {
        name: _evaluate_model(name, model, folders[name], data, options, resolved) for name, model in names.items()
    }
    if not processes().is_main:
        return
    Console().print(intervals_table(measured))
    if len(names) > 1:
        _compare(output, folders, measured, data, options.resamples)
    print(
        "R@K in %: an annotated positive is in the top K. MRR: mean of 1 / rank of the best one. Ties are ranked "
        "pessimistically.\n"
        f"In brackets: 95% interval, {options.resamples:,} resamples of the images, each with its captions.\n"
        f"{describe(measured)}"
    )
    print("\n".join([*told_cases(measured, data.sets), f"-> {stage.output}"]))
    mined = PairsOptions(**asdict(pairs_options) | {"split": "train"})
    suggest("mine", *as_flags(mined), "--model", options.model[-1], "--output", "runs/failures")


def _print_plan(data: _Data, models: int) -> None:
    times = f", by each of {models} models" if models > 1 else ""
    images, captions = len(data.pairs.images), len(data.pairs.captions)
    print(f"{images:,} images and {captions:,} captions would be embedded and ranked{times}.")
    for cases in data.sets:
        print(f"{cases.benchmark}: {len(cases):,} cases of {len(cases.captions):,} captions.")


def _check_model(
    model: str, folder: Path, options: EvaluateOptions, resolved: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any] | None]:
    """Load a model and check its folder, also for a dry run.

    Returns the encoder, the model's resolved options, and its metrics if they are finished.
    """
    from repair_hf.encoder.opening import open_retriever
    from repair_hf.runtime.run_folder import check_stage, finished

    encoder = open_retriever(model, **options.how_to_load)
    own = {**resolved, "model": model, "model_digest": encoder.digest}
    metrics = finished(folder, own, needs=("intervals", "n_images", "n_texts"))
    if metrics is None:
        check_stage(folder, command="evaluate", options=own)
    return encoder, own, metrics


def _evaluate_model(
    name: str, model: str, folder: Path, data: _Data, options: EvaluateOptions, resolved: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one model's metrics, from its folder if they are finished; empty except in the main process."""
    from repair_hf.encoder.pixel_store import pixels_for
    from repair_hf.evaluation.provenance import provenance
    from repair_hf.runtime.own_files import read_json
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import finish_stage, open_stage, write_atomically

    encoder, own, metrics = _check_model(model, folder, options, resolved)
    if metrics is not None:
        return metrics
    open_stage(folder, command="evaluate", options=own)
    pairs = data.pairs
    pixels = pixels_for(pairs.images, encoder.preprocessor, options)
    images, texts = encoder.embed_pairs(pairs, pixels=pixels)  # (N, D), (M, D)
    if not processes().is_main:
        return {}
    metrics = _measure(encoder, images, texts, name, folder, data, options.resamples)
    metrics |= provenance(data.options, pairs, model, encoder.digest)
    metrics["n_texts_cut"] = encoder.report_captions(pairs.captions["caption"])
    write_atomically(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
    finish_stage(folder, metrics)
    return read_json(folder / "summary.json")  # as a later run reads them


def _measure(
    encoder: Any, images: Any, texts: Any, name: str, folder: Path, data: _Data, resamples: int
) -> dict[str, Any]:
    """Rank the queries and judge the cases; save both, and return their metrics with intervals."""
    from repair_hf.evaluation.intervals import Draws, interval
    from repair_hf.evaluation.judging import (
        compositional_metrics,
        evaluate_compositional,
        resample_compositional,
        save_cases,
    )
    from repair_hf.evaluation.ranks import rank_table, ranks_by_direction, save_ranks
    from repair_hf.evaluation.retrieval import rank_queries, resample_retrieval, retrieval_metrics

    pairs = data.pairs
    table = rank_table(rank_queries(images, texts, pairs.caption_image, fps=1), pairs, name)
    save_ranks(table, folder)
    ranks = ranks_by_direction(table)
    metrics: dict[str, Any] = dict(retrieval_metrics(ranks))
    samples = resample_retrieval(ranks, pairs.caption_image, Draws(len(pairs.images), resamples))
    if data.sets:
        cases = evaluate_compositional(encoder, data.sets, name, images)
        save_cases(cases, folder)
        metrics |= compositional_metrics(cases, data.sets)
        samples |= resample_compositional(cases, data.sets, resamples)
    return metrics | {"intervals": {metric: interval(values) for metric, values in samples.items()}}


def _compare(
    output: Path, folders: Mapping[str, Path], measured: Mapping[str, Any], data: _Data, resamples: int
) -> None:
    """Write and print what the others gain and lose against the first."""
    import pyarrow as pa
    from rich.console import Console

    from repair_hf.analysis.tables import changes_table, differences_table
    from repair_hf.evaluation.comparison import compare_queries, count_changes, differences
    from repair_hf.evaluation.intervals import Draws
    from repair_hf.evaluation.judging import load_cases, resample_compositional
    from repair_hf.evaluation.ranks import load_ranks, ranks_by_direction
    from repair_hf.evaluation.retrieval import resample_retrieval
    from repair_hf.evaluation.tables import save_table
    from repair_hf.runtime.run_folder import finish_stage, write_atomically

    pairs, draws = data.pairs, Draws(len(data.pairs.images), resamples)
    tables = {name: load_ranks(folder) for name, folder in folders.items()}
    samples = {
        name: resample_retrieval(ranks_by_direction(table), pairs.caption_image, draws)
        for name, table in tables.items()
    }
    if data.sets:
        for name, folder in folders.items():
            samples[name] |= resample_compositional(load_cases(folder), data.sets, resamples)
    reference, *others = folders
    gains = {
        name: differences(measured[reference], measured[name], samples[reference], samples[name]) for name in others
    }
    queries = {name: compare_queries(tables[reference], tables[name]) for name in others}
    counts = {name: count_changes(table) for name, table in queries.items()}
    save_table(pa.concat_tables(queries.values()), output / "queries.parquet")
    comparison = {"reference": reference, "differences": gains, "queries": counts}
    write_atomically(output / "differences.json", json.dumps(comparison, indent=2) + "\n")
    write_atomically(output / "metrics.json", json.dumps(measured, indent=2) + "\n")
    finish_stage(output, {"models": list(folders), **comparison})
    Console().print(differences_table(gains, reference))
    Console().print(changes_table(counts))
    print(
        f"*: the interval excludes 0. Queries compared with {reference}: repaired ones are ranked first only now, "
        "broken ones only before; the others changed in rank."
    )
