"""`repair-hf evaluate`: measure retrievers in both directions, by full ranking, and compare them.

In:  pairs; a dual encoder by id or folder, or several: the others are compared with the first.
Out: of each model `metrics.json` (R@1/5/10, MRR and median rank with their 95% intervals; on what, of what and by what they were
     measured), `ranks.parquet` (what each query found) and, of compositional benchmarks, `cases.parquet` (by how much what is right
     won). One model's stand in the output folder, several models' each in a folder of its own below that; the output folder then has
     `metrics.json` of all by their short names, `differences.json` and `queries.parquet` (both ranks of each query, and what was
     repaired and broken).

Under `accelerate launch` the processes share the pairs' images and captions out among them, and one does the rest; the result is that of
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repair_hf.evaluation.compositional import CompositionalOptions
from repair_hf.runtime.options import EmbeddingOptions, PairsOptions, StageOptions, UserError, as_flags, need, opt
from repair_hf.runtime.subcommands import suggest

EPILOG = """examples:
  repair-hf evaluate world/base --pairs runs/world --output runs/evaluate
  repair-hf evaluate world/base runs/train --pairs runs/world --compositional world --output runs/compare
  repair-hf evaluate openai/clip-vit-base-patch32 --pairs me/my-dataset --split test --output runs/evaluate"""


@dataclass
class EvaluateOptions(EmbeddingOptions):
    """Which retrievers are measured."""

    _argument_group_name = "evaluate"

    model: list[str] = need(
        "The retriever: Hub id or folder of a dual encoder, or world/base. Of several, the others are compared with the first."
    )
    resamples: int = opt(2000, "Times that the images are drawn anew, with replacement, for the 95% intervals.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resamples < 1:
            raise UserError(f"`resamples` must be at least 1, got {self.resamples}.")


@dataclass
class TestPairsOptions(PairsOptions):
    """Which images and captions are ranked; the test split unless told otherwise."""

    split: str = opt("test", "Which split; `all` takes everything.")


OPTIONS = (EvaluateOptions, TestPairsOptions, StageOptions, CompositionalOptions)


def run(
    options: EvaluateOptions, pairs_options: TestPairsOptions, stage: StageOptions, compositional: CompositionalOptions
) -> None:
    """Measure, or say on what."""
    from rich.console import Console

    from repair_hf.analysis.tables import intervals_table
    from repair_hf.evaluation.compositional import load_benchmarks
    from repair_hf.evaluation.judging import told_cases
    from repair_hf.evaluation.provenance import told
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import open_stage

    names, output = short_names(options.model), Path(stage.output)
    pairs = load_wanted(pairs_options)
    sets = load_benchmarks(compositional, pairs, pairs_options)
    if stage.dry_run:
        times = f", by each of {len(names)} models" if len(names) > 1 else ""
        print(
            f"{len(pairs.images):,} images and {len(pairs.captions):,} captions would be embedded and ranked{times}."
        )
        for cases in sets:
            print(f"{cases.benchmark}: {len(cases):,} cases of {len(cases.captions):,} captions.")
        return
    resolved = (
        asdict(pairs_options)
        | asdict(stage)
        | asdict(options)
        | asdict(compositional)
        | {"pairs_fingerprint": pairs.fingerprint, "cases_fingerprints": [cases.fingerprint for cases in sets]}
    )
    del resolved["batch_size"]  # decides how fast, not what
    if len(names) > 1:
        open_stage(output, command="evaluate", options=resolved)
    folders = {name: output / name if len(names) > 1 else output for name in names}
    measured = {}
    for name, model in names.items():
        measured[name] = _measure(name, model, folders[name], pairs, sets, pairs_options, options, resolved)
    if not processes().is_main:
        return
    Console().print(intervals_table(measured))
    if len(names) > 1:
        _compare(output, folders, measured, pairs, sets, options.resamples)
    print(
        "R@K in %: some annotated positive stands in the top K. MRR: mean of 1 / rank of the best one. A tie counts against us.\n"
        f"In brackets: 95% interval, {options.resamples:,} resamples of the images, each with its captions.\n{told(measured)}"
    )
    print("\n".join([*told_cases(measured, sets), f"-> {stage.output}"]))
    mined = PairsOptions(**asdict(pairs_options) | {"split": "train"})
    suggest("mine", *as_flags(mined), "--model", options.model[-1], "--output", "runs/failures")


def short_names(models: Sequence[str]) -> dict[str, str]:
    """A name for each model, which also names its folder: as many of the last parts of its id as tell it from the others.

    Example:
        >>> short_names(["world/base", "runs/a/retriever", "runs/b/retriever"])
        {'base': 'world/base', 'a--retriever': 'runs/a/retriever', 'b--retriever': 'runs/b/retriever'}
    """
    if twice := sorted({model for model in models if list(models).count(model) > 1}):
        raise UserError(f"`model` names {', '.join(twice)} twice; a model cannot be compared with itself.")
    parts, names = [Path(model).parts for model in models], {}
    for model, own in zip(models, parts, strict=True):
        others = [other for other in parts if other is not own]
        length = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        names["--".join(own[-length:]).strip("/.") or "model"] = model
    if len(names) < len(models):
        raise UserError(
            f"`model` names {', '.join(models)}, which cannot be told apart by name; rename a folder, or leave one out."
        )
    return names


def _measure(
    name: str,
    model: str,
    folder: Path,
    pairs: Any,
    sets: Sequence[Any],
    pairs_options: PairsOptions,
    options: EvaluateOptions,
    resolved: Mapping[str, Any],
) -> dict[str, Any]:
    """One model's metrics; those of its folder, if they are of these weights and data. Nothing in any but the main process."""
    from repair_hf.encoder.dual_encoder import DualEncoder
    from repair_hf.encoder.pixel_store import PixelStore
    from repair_hf.evaluation.intervals import Draws, interval
    from repair_hf.evaluation.judging import (
        compositional_metrics,
        evaluate_compositional,
        resample_compositional,
        save_cases,
    )
    from repair_hf.evaluation.provenance import provenance
    from repair_hf.evaluation.ranks import rank_table, ranks_by_direction, save_ranks
    from repair_hf.evaluation.retrieval import rank_queries, resample_retrieval, retrieval_metrics
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import finish_stage, finished, open_stage, write_atomically

    encoder = DualEncoder.from_pretrained(model, batch_size=options.batch_size, precision=options.precision)
    resolved = {**resolved, "model": model, "model_digest": encoder.digest}
    metrics = finished(folder, resolved)
    if metrics is not None:
        return metrics
    open_stage(folder, command="evaluate", options=resolved)
    pixels = None
    if options.cache_images:
        pixels = PixelStore(
            pairs.images, "image", encoder.preprocessor, options.cache_folder, draft=options.draft_jpegs
        )
    images, texts = encoder.embed_pairs(pairs, pixels=pixels)  # (N, D), (M, D)
    if not processes().is_main:
        return {}
    rankings = rank_queries(images, texts, pairs.caption_image, fps=1)
    table = rank_table(rankings, pairs, name)
    save_ranks(table, folder)
    ranks, draws = ranks_by_direction(table), Draws(len(pairs.images), options.resamples)
    metrics = retrieval_metrics(ranks) | provenance(pairs_options, pairs, model, encoder.digest)
    metrics["n_texts_cut"] = encoder.preprocessor.report_cut(pairs.captions["caption"])
    samples = resample_retrieval(ranks, pairs.caption_image, draws)
    if sets:
        cases = evaluate_compositional(encoder, sets, name, images)
        save_cases(cases, folder)
        metrics |= compositional_metrics(cases, sets)
        samples |= resample_compositional(cases, sets, options.resamples)
    metrics["intervals"] = {metric: interval(values) for metric, values in samples.items()}
    write_atomically(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
    finish_stage(folder, metrics)
    return finished(folder, resolved)


def _compare(
    output: Path,
    folders: Mapping[str, Path],
    measured: Mapping[str, Mapping[str, Any]],
    pairs: Any,
    sets: Sequence[Any],
    resamples: int,
) -> None:
    """Write and print what the others gain and lose against the first."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from rich.console import Console

    from repair_hf.analysis.tables import changes_table, differences_table
    from repair_hf.evaluation.comparison import compare_queries, count_changes, differences
    from repair_hf.evaluation.intervals import Draws
    from repair_hf.evaluation.judging import load_cases, resample_compositional
    from repair_hf.evaluation.ranks import load_ranks, ranks_by_direction
    from repair_hf.evaluation.retrieval import resample_retrieval
    from repair_hf.runtime.run_folder import finish_stage, write_atomically

    draws = Draws(len(pairs.images), resamples)
    tables = {name: load_ranks(folder) for name, folder in folders.items()}
    samples = {
        name: resample_retrieval(ranks_by_direction(table), pairs.caption_image, draws)
        for name, table in tables.items()
    }
    if sets:
        for name, folder in folders.items():
            samples[name] |= resample_compositional(load_cases(folder), sets, resamples)
    reference, *others = folders
    found = {
        name: differences(measured[reference], measured[name], samples[reference], samples[name]) for name in others
    }
    queries = {name: compare_queries(tables[reference], tables[name]) for name in others}
    counts = {name: count_changes(table) for name, table in queries.items()}
    draft = output / ".queries.parquet.tmp"
    pq.write_table(pa.concat_tables(queries.values()), draft)
    draft.replace(output / "queries.parquet")
    told = {"reference": reference, "differences": found, "queries": counts}
    write_atomically(output / "differences.json", json.dumps(told, indent=2) + "\n")
    write_atomically(output / "metrics.json", json.dumps(measured, indent=2) + "\n")
    finish_stage(output, {"models": list(folders), **told})
    Console().print(differences_table(found, reference))
    Console().print(changes_table(counts))
    print(
        f"*: the interval leaves out 0. repaired: not first before, first now; broken: the reverse; the others by rank, against {reference}."
    )
