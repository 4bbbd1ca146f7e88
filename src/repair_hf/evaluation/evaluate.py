"""Measure retrievers in both directions by full ranking, and compare them with the first."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from repair_hf.encoder.blend import blend
from repair_hf.encoder.embedder import Embedder, vectors_folder
from repair_hf.encoder.models import load_model
from repair_hf.encoder.opening import Retriever, open_retriever
from repair_hf.encoder.pixel_store import pixels_for
from repair_hf.evaluation.benchmarks import load_benchmarks
from repair_hf.evaluation.blends import CHOSEN_BY, blend_score, compare_blends, plain_blends
from repair_hf.evaluation.comparison import RECALL, Measured, compare_models, short_names
from repair_hf.evaluation.contrast import load_contrast
from repair_hf.evaluation.intervals import Draws, interval
from repair_hf.evaluation.judging import FILE as CASES
from repair_hf.evaluation.judging import (
    compositional_metrics,
    evaluate_compositional,
    load_cases,
    random_compositional,
    resample_compositional,
)
from repair_hf.evaluation.options import CompositionalOptions, EvaluateOptions
from repair_hf.evaluation.provenance import check_unseen, images_seen, plain_before, provenance
from repair_hf.evaluation.ranks import FILE as RANKS
from repair_hf.evaluation.ranks import load_ranks, rank_table, ranks_by_direction, save_table
from repair_hf.evaluation.retrieval import random_metrics, rank_queries, resample_retrieval, retrieval_metrics
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.runtime.options import UserError, expect, fill
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import write_json
from repair_hf.runtime.stage import Stage

logger = logging.getLogger(__name__)

WRITES = ("metrics.json", "differences.json", RANKS, f"also-*-{RANKS}", CASES, "blends.svg")
NEEDS = ("intervals", "random", "n_images", "n_texts")  # keys of a model's metrics


def evaluate(
    models: Retriever | Sequence[Retriever],
    pairs: Pairs,
    *,
    also: Mapping[str, Pairs] | None = None,
    blend_pairs: Pairs | None = None,
    output: str | Path | None = None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Measure retrievers by full ranking, with intervals.

    Args:
        models: One or several, as in `mine`; several are compared with the first.
        pairs: Images and captions, of a split that nothing was trained on.
        also: Further pairs by name, to rank by themselves.
        blend_pairs: Pairs of another split, on which each model's best blend is chosen.
        output: Folder for metrics and ranks, as `repair-hf evaluate` writes it; finished ones are read. None writes
            nothing.
        options: The options of `repair-hf evaluate`, such as `contrast="runs/contrast"` or `resamples=500`.

    Returns:
        The metrics of each model by its short name: R@1/5/10, MRR and median rank in both directions, `intervals` of
        95%, and their provenance; R@1 of further pairs as `NAME_i2t_R@1`; `random`, the metrics of a random retriever.
        Processes other than the first get none.

    Raises:
        UserError: If an argument is of a wrong type, a model cannot be loaded, an option is not valid, or the folder
            holds something else.

    Example:
        >>> metrics = evaluate(["world/base", "runs/train"], load_pairs("runs/world", split="test"))
        >>> metrics["train"]["t2i_R@1"], metrics["train"]["intervals"]["t2i_R@1"]
    """
    retrievers: list[Any] = list(models) if isinstance(models, list | tuple) else [models]
    names = [
        str(model) if isinstance(model, str | Path) else f"model-{number}"
        for number, model in enumerate(retrievers, 1)
    ]
    named = options | {"model": names, "also": list(also or ())}
    wanted, sets = fill([EvaluateOptions, CompositionalOptions], named, "evaluate")
    evaluation = Evaluation(retrievers, pairs, wanted, sets, also=also, blend_pairs=blend_pairs, output=output)
    evaluation.run()
    return evaluation.metrics


class Evaluation:
    """What is to be measured, loaded and checked. The arguments are those of `evaluate`.

    Attributes:
        names: The models by short name.
        sets: The cases of compositional benchmarks.
        metrics: After `run`, those of each model by short name; empty except in the first process.
        unseen: Whether it is certain that a model was not trained on the contrast set, by short name.
        comparison: After `run` of several models, what `differences.json` holds, see `_compare`.
    """

    def __init__(
        self,
        models: Sequence[Retriever],
        pairs: Pairs,
        options: EvaluateOptions,
        compositional: CompositionalOptions,
        *,
        also: Mapping[str, Pairs] | None = None,
        blend_pairs: Pairs | None = None,
        output: str | Path | None = None,
    ) -> None:
        self.also, self.blend_pairs = dict(also or {}), blend_pairs
        for name, value in {"pairs": pairs, "blend_pairs": blend_pairs or pairs, **self.also}.items():
            expect(value, Pairs, name, MAKE_PAIRS)
        self.names = dict(zip(short_names(options.model, taken="random"), models, strict=True))
        self.weights: dict[str, float] = {}  # of blends, by short name
        if options.blends:
            (base, base_model), *tuned = self.names.items()
            self._base_weights = cache(lambda: load_model(str(base_model)).state_dict())
            self.names = {base: base_model}
            for model in models:
                expect(model, (str, Path), "models", "for `blends`, Hub ids or folders")
            for name, model in tuned:
                for weight in sorted(options.blends):
                    self.names[f"{name}@{weight:g}"] = model
                    self.weights[f"{name}@{weight:g}"] = weight
        if options.model_revision is not None and len(models) > 1:
            raise UserError(f"`model_revision` is of one model, got {len(models)}. Measure them one at a time.")
        self.pairs, self.options, self.compositional = pairs, options, compositional
        self.unseen: dict[str, bool] = {}
        self.sets = load_benchmarks(compositional, pairs, pairs.source)
        if options.contrast is not None:
            cases = load_contrast(options.contrast)
            self.unseen = check_unseen(set(cases.picture_ids), options.contrast, self.names)
            self.sets.append(cases)
        self._warn_of_training_data()
        self.output = None if output is None else Path(output)
        self.stage = self._stage(self.output, {})
        if len(models) > 1:
            self.stage.check()
        self.metrics: dict[str, dict[str, Any]] = {}
        self.comparison: dict[str, Any] = {}
        self._measured: dict[str, Measured] = {}  # what is measured now

    def _warn_of_training_data(self) -> None:
        """Warn of models that were trained on images that they are measured on."""
        models = {name.rpartition("@")[0] if name in self.weights else name: self.names[name] for name in self.names}
        further = self.also | ({"blend_pairs": self.blend_pairs} if self.blend_pairs is not None else {})
        for place, pairs in {"the evaluated pairs": self.pairs, **further}.items():
            digests = pairs.items.digests["image"]
            for name, model in models.items():
                count = images_seen(model, digests)
                if count:
                    logger.warning(
                        "%s was trained on %s of the %s images of %s: its metrics there say nothing of new images. "
                        "Take a split that no model was trained on.",
                        name, f"{count:,}", f"{len(digests):,}", place,
                    )  # fmt: skip

    def check(self) -> None:
        """Open every model and check its folder, for a dry run."""
        for name in self.names:
            self._opened(name)[1].check()

    def run(self) -> None:
        """Measure the models that are not measured yet, and compare all with the first."""
        if len(self.names) == 1:
            self._evaluate_each(None)
        else:
            self.stage.run(self._evaluate_each, again=True)  # weights may have changed in their folder

    def _stage(self, folder: Path | None, inputs: Mapping[str, Any], needs: Sequence[str] = ()) -> Stage:
        data = {
            "pairs_fingerprint": self.pairs.fingerprint,
            "cases_fingerprints": [cases.fingerprint for cases in self.sets],
            "also_fingerprints": [pairs.fingerprint for pairs in self.also.values()],
            "blend_pairs_fingerprint": None if self.blend_pairs is None else self.blend_pairs.fingerprint,
        }
        options = (self.options, self.pairs.source, self.compositional)
        return Stage("evaluate", folder, options, {**data, **inputs}, needs=needs, writes=WRITES)

    def _opened(self, name: str) -> tuple[Embedder, Stage]:
        """Load a model; return it with the stage of its own folder."""
        model = self.names[name]
        encoder = open_retriever(model, **self.options.how_to_load)
        inputs: dict[str, Any] = {"model": str(model) if isinstance(model, str | Path) else encoder.origin or name}
        if name in self.weights:
            inputs["weight"] = self.weights[name]
            blend(encoder.model, self._base_weights(), self.weights[name])
        return encoder, self._stage(self._folder(name), inputs | {"model_digest": encoder.digest}, NEEDS)

    def _folder(self, name: str) -> Path | None:
        return self.output if self.output is None or len(self.names) == 1 else self.output / name

    def _evaluate_each(self, folder: Path | None) -> dict[str, Any]:
        for name in self.names:
            encoder, stage = self._opened(name)
            self.metrics[name] = stage.run(partial(self._measure, name, encoder, stage.config["model"]))
        if folder is not None:
            self.stage.begin()
        if not processes().is_main:
            self.metrics = {}
            return {}
        if len(self.names) > 1:
            self.comparison = self._compare()
        if folder is not None:
            write_json(folder / "differences.json", self.comparison)
            write_json(folder / "metrics.json", self.metrics)
        return {"models": list(self.names)}

    def _measure(self, name: str, encoder: Embedder, model: str, folder: Path | None) -> dict[str, Any]:
        """Rank the queries and judge the cases; save both, and return their metrics with intervals."""
        pairs = self.pairs
        images, table = self._rank(name, encoder, pairs, folder)
        also = {other: self._rank(name, encoder, further, folder)[1] for other, further in self.also.items()}
        chosen = None if self.blend_pairs is None else self._rank(name, encoder, self.blend_pairs, folder)[1]
        if table is None:
            return {}
        cases, metrics = None, dict[str, Any](retrieval_metrics(ranks_by_direction(table)))
        for other, ranks in also.items():
            further_metrics = retrieval_metrics(ranks_by_direction(ranks), ks=[1])
            metrics |= {f"{other}_{key}": further_metrics[key] for key in RECALL}
        if self.blend_pairs is not None:
            metrics[CHOSEN_BY] = blend_score(metrics, retrieval_metrics(ranks_by_direction(chosen), ks=[1]))
        if self.sets:
            cases = evaluate_compositional(encoder, self.sets, name, images)
            metrics |= compositional_metrics(cases, self.sets)
        samples = self._resample(table, cases, also)
        metrics["intervals"] = {metric: interval(values) for metric, values in samples.items()}
        metrics |= provenance(pairs.source, pairs, model, encoder.digest)
        metrics["random"] = self._random
        metrics["n_texts_cut"] = encoder.report_captions(pairs.captions["caption"])
        self._measured[name] = Measured(table, samples)
        if folder is not None:
            save_table(table, folder / RANKS)
            for other, ranks in also.items():
                save_table(ranks, folder / _file_of(other))
            if cases is not None:
                save_table(cases, folder / CASES)
            write_json(folder / "metrics.json", metrics)
        return metrics

    def _rank(self, name: str, encoder: Embedder, pairs: Pairs, folder: Path | None) -> tuple[np.ndarray, Any]:
        """Embed pairs and rank their queries; return the image vectors, and in the main process the ranks."""
        pixels = pixels_for(pairs.images, encoder.preprocessor, self.options)
        cache = None if folder is None else vectors_folder()
        images, texts = encoder.embed_pairs(pairs, pixels=pixels, cache_folder=cache)  # (N, D), (M, D)
        rankings = rank_queries(images, texts, pairs.caption_image, fps=1, device=encoder.device)
        return images, rank_table(rankings, pairs, name) if processes().is_main else None

    def _compare(self) -> dict[str, Any]:
        """Compare the models, see `compare_models` and `compare_blends`."""
        measured = {name: self._measured.get(name) or self._saved(name) for name in self.names}
        if not self.weights:
            return compare_models(self.metrics, measured, plain_before(self.names))
        compared = compare_models(self.metrics, measured, plain_blends(self.names, self.weights))
        split = None if self.blend_pairs is None else self.blend_pairs.source.split
        return compared | {"blends": compare_blends(self.metrics, measured, self.weights, split)}

    @cached_property
    def _random(self) -> dict[str, float]:
        """The expected metrics of a retriever that ranks at random."""
        metrics = random_metrics(self.pairs.caption_image, len(self.pairs.images))
        for name, pairs in self.also.items():
            further = random_metrics(pairs.caption_image, len(pairs.images), ks=[1])
            metrics |= {f"{name}_{key}": value for key, value in further.items()}
        return metrics | random_compositional(self.sets)

    def _saved(self, name: str) -> Measured:
        folder = self._folder(name)
        assert folder is not None, "a model in memory has just been measured"
        table, cases = load_ranks(folder), load_cases(folder) if self.sets else None
        also = {other: load_ranks(folder, _file_of(other)) for other in self.also}
        return Measured(table, self._resample(table, cases, also))

    def _resample(
        self, table: pa.Table, cases: pa.Table | None, also: Mapping[str, pa.Table]
    ) -> dict[str, np.ndarray]:
        """Compute the metrics of ranks and cases in each resample, (R,) values each."""
        samples = resample_retrieval(ranks_by_direction(table), self.pairs.caption_image, self._draws)
        for other, ranks in also.items():
            pairs = self.also[other]
            draws = Draws(len(pairs.images), self.options.resamples)
            further = resample_retrieval(ranks_by_direction(ranks), pairs.caption_image, draws, ks=[1])
            samples |= {f"{other}_{name}": further[name] for name in RECALL}
        if cases is not None:
            samples |= resample_compositional(cases, self.sets, self.options.resamples)
        return samples

    @cached_property
    def _draws(self) -> Draws:
        return Draws(len(self.pairs.images), self.options.resamples)


def _file_of(also: str) -> str:
    return f"also-{also}-{RANKS}"
