"""Make what methods train on beside the pairs, and the contrast sets; each once for all methods and seeds.

Each has a folder of its own below the study's; finished ones are reused. All pay from the study's one ledger and keep
their images in its one folder of candidates: what several ask is paid once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from repair_hf.evaluation.cases import Cases
from repair_hf.evaluation.contrast import load_contrast
from repair_hf.mining.mine import mine
from repair_hf.records.dataset import NoRecords, build
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import changed
from repair_hf.runtime.stage import Stage
from repair_hf.study.making import Maker, MakerContext
from repair_hf.study.methods import REPAIR, Method, Records
from repair_hf.study.options import parse_budget
from repair_hf.study.orders import PLACES, drawn
from repair_hf.study.random_failures import random_failures
from repair_hf.study.samples import DROPPED, SAMPLES
from repair_hf.study.setting import Setting
from repair_hf.synthesis.contrast import contrast_set
from repair_hf.synthesis.loop import run_to_end
from repair_hf.synthesis.models import ORACLE, local_weights, open_asker, open_editor, open_ledger, prompts_of
from repair_hf.synthesis.outcome import NothingRepaired
from repair_hf.synthesis.synthesize import synthesize


@dataclass(frozen=True)
class Product:
    """Samples or records that a method trains on, and what they asked, rejects and reused answers included."""

    data: Dataset
    samples: int  # records without an edit do not count
    llm_calls: int | None = None  # unknown of records from elsewhere
    images: int | None = None

    def part(self, share: float, order: str | None = None) -> Product:
        """Return a share of the data, with that share of what it asked. A larger share holds a smaller one.

        Args:
            share: Of the samples.
            order: The first in this order, one of `PLACES`; by default they are drawn.
        """
        if share >= 1:
            return self
        is_own = has_edit(self.data) if "candidate_similarities" in self.data.column_names else np.ones(self.samples)
        own = np.flatnonzero(is_own)
        places = drawn(len(own)) if order is None else PLACES[order](self.data.select(own))
        count = min(round(share * len(own)), np.isfinite(places).sum())
        kept = np.sort(own[places.argsort(kind="stable")[:count]])
        share = len(kept) / len(own)
        counts = [None if count is None else round(share * count) for count in (self.llm_calls, self.images)]
        return Product(self.data.select(kept), len(kept), *counts)


class Products:
    """The products of a study, each made on first use."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._made: dict[str, Product] = {}

    def of(self, method: Method, budget: str = "all", *, waits: bool = True) -> dict[str, Product]:
        """Return what a method trains on beside the pairs, by part, as far as a budget pays for it.

        Raises:
            NoRecords: If no failure became a record, or what the data cost is unknown.
            RunStopped: If a ceiling is reached, a provider is down, or answers will come with a batch.
            filelock.Timeout: If another process makes it, unless this one `waits`.
        """
        made = {part: self._product(source, waits) for part, source in method.sources.items()}
        share = share_of(budget, list(made.values()))
        order = budget.partition("=")[0]
        return {part: product.part(share, order if order in PLACES else None) for part, product in made.items()}

    def _product(self, source: Records | Maker, waits: bool) -> Product:
        if source.name not in self._made:
            with self.setting.lock(source.name, waits=waits):
                made = self._records(source) if isinstance(source, Records) else self._samples(source)
            if isinstance(source, Records) and source.is_capped:
                made = made.part(self._product(REPAIR, waits).samples / made.samples)
            self._made[source.name] = made
        return self._made[source.name]

    @cache  # noqa: B019
    def contrast(self, split: str) -> Cases | None:
        """Return the contrast set of a split: the one that was given, or in a toy world one that is made exactly."""
        setting = self.setting
        if setting.options.contrast is not None:
            return load_contrast(setting.options.contrast) if split == "test" else None
        if setting.world is None:
            return None
        folder, exact = setting.folder / f"contrast-{split}", {"llm": ORACLE, "editor": "world"}
        with setting.lock(f"contrast-{split}"):
            contrast_set(setting.load(split), output=folder, max_items=setting.size.kept, **exact)
        return load_contrast(str(folder))

    def _records(self, wanted: Records) -> Product:
        """Mine and repair, or take the records that were given."""
        setting, (llm, editor) = self.setting, (self.setting.llm, self.setting.editor)
        if setting.records is not None and wanted is REPAIR:
            return Product(setting.records, int(has_edit(setting.records).sum()))
        pairs, model, folder = setting.pairs, setting.options.model, setting.folder / wanted.name
        name = "failures-best"  # variants share them
        with setting.lock(name):
            output, max_queries = setting.folder / name, setting.max_queries
            failures = mine(model, pairs, output=output, max_queries=max_queries, cache_images=True)
        if wanted.is_random:
            failures = random_failures(failures, pairs, setting.base)
        failures = failures.select(np.flatnonzero(np.isin(failures["direction"][:], wanted.directions)))
        chosen = changed(llm) | changed(editor) | dict(wanted.synthesize)
        required: dict[str, Any] = {"llm": llm.llm, "editor": editor.editor, "output": folder, "check_edits": 0}
        try:
            records = synthesize(failures, pairs, model, embed_source_images=False, **chosen | required)
        except NothingRepaired as error:  # the study leaves the method out and goes on
            raise NoRecords(str(error)) from error
        summary = read_json(folder / "summary.json", needs=("llm", "images"))
        calls = sum(use["calls"] + use["replayed"] for use in summary["llm"])
        return Product(records, int(has_edit(records).sum()), calls, sum(summary["images"][k] for k in MADE))

    def _samples(self, maker: Maker) -> Product:
        setting, asks, makes = self.setting, bool(maker.prompt), bool(maker.edits or maker.draws)
        inputs: dict[str, Any] = {
            "maker": maker.name,
            "pairs_fingerprint": setting.pairs.fingerprint,
            "model_digest": setting.base.digest,
            "spacy_model": setting.spacy_model,
            "prompts": prompts_of(setting.llm).digest() if asks or makes else None,
        }
        inputs |= local_weights(setting.editor) if makes else {}
        folder = setting.folder / maker.name
        options = [setting.llm] * asks + [setting.editor] * makes
        stage = Stage("study", folder, options, inputs, writes=["samples.arrow", "dropped.arrow"])
        summary = stage.run(lambda _: self._make(maker, folder))
        samples = Dataset.from_file(str(folder / "samples.arrow"))
        return Product(samples, len(samples), summary["llm"], summary["images"])

    def _make(self, maker: Maker, folder: Path) -> dict[str, Any]:
        setting = self.setting
        # a maker without an LLM loads none, and the ceilings apply all the same
        none: dict[str, Any] = {"llm": ORACLE, "llm_base_url": None, "reasoning_effort": None, "batch": False}
        llm = setting.llm if maker.prompt else replace(setting.llm, **none)
        how: dict[str, Any] = {"spacy_model": setting.spacy_model, "save_as": setting.editor.editor_format}
        with open_ledger(llm, folder) as ledger:
            asker = open_asker(llm, ledger)
            editor = open_editor(setting.editor, setting.llm, ledger) if maker.edits or maker.draws else None
            context = MakerContext(maker, setting.pairs, setting.base, asker, editor, **how)
            samples = build(run_to_end(context.run()), folder / "samples.arrow", SAMPLES)
        build(context.dropped, folder / "dropped.arrow", DROPPED)
        dropped = Counter(row["reason"] for row in context.dropped)
        counts = {"tried": len(context.captions), "samples": len(samples), "dropped": dropped}
        return {"llm": context.llm_calls, "images": context.images, **counts}


MADE = ("made", "reused")  # candidate images of a synthesis: new ones, and those of an earlier run


def has_edit(records: Dataset) -> np.ndarray:
    """Return which records hold an edit, (n,)."""
    return np.array([similarities is not None for similarities in records["candidate_similarities"][:]], bool)


def share_of(budget: str, products: list[Product]) -> float:
    """Return the share of a method's data that a budget pays for, at most all of it."""
    if budget == "all":
        return 1.0
    kind, amount = parse_budget(budget)
    if kind not in ("samples", "calls"):
        return amount
    names = ["samples"] if kind == "samples" else ["llm_calls", "images"]
    counts = [getattr(each, name) for each in products for name in names]
    if None in counts:
        raise NoRecords(f"the budget {budget} needs what the records cost, which is unknown")
    return min(1.0, amount / sum(counts)) if any(counts) else 1.0
