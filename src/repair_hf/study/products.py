"""The data that methods train on: samples of the baselines, and records of RePair and its variants.

A product is made once for all methods and seeds, in a folder of its own below `products/`. Finished products are
reused; a folder that was made with other options raises an error. The ceilings of the study's LLM apply to all folders
together.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import filelock
from datasets import Dataset

from repair_hf.llm.budget import BudgetSpent
from repair_hf.llm.cost import paid_in
from repair_hf.llm.journal import open_journal, read_entries, shards
from repair_hf.llm.prompts import SHIPPED, Prompts, draw_instruction, fit_instruction
from repair_hf.records.dataset import NoRecords, build
from repair_hf.runtime.run_folder import NOT_PART_OF_THE_RESULT, RunStopped, digest, finish_stage, finished, open_stage
from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.method import Baseline, Maker, Method, RepairVariant
from repair_hf.study.methods.registry import load_makers
from repair_hf.study.methods.samples import DROPPED, SAMPLES
from repair_hf.study.repair_records import RepairRecords
from repair_hf.study.setting import Knobs, Setting
from repair_hf.study.spending import Cost, Product, limit_spending, paid, products_in
from repair_hf.synthesis.models import ORACLE, LLMOptions, local_weights, open_chat, open_editor, prompts_of
from repair_hf.synthesis.outcome import NothingRepaired
from repair_hf.synthesis.reuse import inherit

SAMPLES_FILE, DROPPED_FILE = "samples.arrow", "dropped.arrow"


class Products:
    """The products of a study, each made on first use."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.folder = setting, setting.output / "products"
        self._repair = RepairRecords(setting, self.folder, self._within_ceilings)
        self._made: dict[Any, Product] = {}

    def of(self, method: Method, knobs: Knobs) -> dict[str, Product]:
        """Return what a method trains on beside the pairs, by part; RePair and its variants have one part, `records`.

        The retriever between two rounds of repair is trained with `knobs`.

        Raises:
            NoRecords: If no failure became a record.
            RunStopped: If a ceiling is reached or a provider is down; answers so far are kept.
        """
        try:
            if isinstance(method, Baseline):
                return {part: self._samples(maker) for part, maker in method.parts.items()}
            return {"records": self._records(method, knobs)} if method.records else {}
        except NothingRepaired as error:  # the study leaves the method out and goes on
            raise NoRecords(str(error)) from error
        except BudgetSpent as error:
            dollars, calls = paid(products_in(self.folder))
            raise RunStopped(
                f"The study's limit is reached at `{method.name}`: {calls:,} LLM answers and ${dollars:.4f} are "
                "paid for all products together. All answers are kept; raise `max_usd` or `max_calls` to go on."
            ) from error

    def lacks(self, method: Method) -> bool:
        """Return whether something that a method trains on is still to be made."""
        if isinstance(method, Baseline):
            names = [maker.name for maker in method.parts.values()]
        else:
            names = [f"{method.product}-records"] if method.records else []
        return any(not (self.folder / name / "summary.json").is_file() for name in names)

    def _records(self, variant: RepairVariant, knobs: Knobs) -> Product:
        key = variant.product, variant.select, knobs if variant.rounds > 1 else None
        if key not in self._made:
            with self._lock():
                self._made[key] = self._repair.make(variant, knobs)
        return self._made[key]

    def _samples(self, maker: Maker) -> Product:
        if maker.name not in self._made:
            folder, resolved = self.folder / maker.name, self._resolved(maker)
            summary = finished(folder, resolved) or self._make(maker, folder, resolved)
            data, tried = Dataset.from_file(str(folder / SAMPLES_FILE)), max(summary["tried"], 1)
            cost = Cost(
                samples=len(data),
                llm_calls=summary["llm"],
                image_calls=summary["images"],
                llm_per_sample=summary["llm"] / tried,
                images_per_sample=summary["images"] / tried,
                dollars=summary["dollars"],
            )
            self._made[maker.name] = Product(data, cost, name_of_samples(resolved, summary))
        return self._made[maker.name]

    def _lock(self) -> filelock.FileLock:
        """One process at a time makes products: each counts the payments of all, and takes over their answers."""
        return self.setting.sharing.lock("products")

    def _make(self, maker: Maker, folder: Path, resolved: dict[str, Any]) -> dict[str, Any]:
        with self._lock():
            if summary := finished(folder, resolved):  # another process made them meanwhile
                return summary
            inherit([self.folder / name for name in asking_alike(maker)], folder, images=False)
            open_stage(folder, command="study", options=resolved)
            summary = self._run(maker, folder)
            finish_stage(folder, summary)
            return summary

    def _run(self, maker: Maker, folder: Path) -> dict[str, Any]:
        setting, start = self.setting, time.perf_counter()
        with open_journal(folder) as journal:
            chat = open_chat(self._within_ceilings(self._llm_of(maker), folder), journal)
            editor = open_editor(setting.editor, setting.llm) if maker.makes_images else None
            context = MakerContext(setting.pairs, setting.base, chat, editor, folder, spacy_model=setting.spacy_model)
            rows = asyncio.run(make_samples(maker, context))
        samples = build(rows, folder / SAMPLES_FILE, SAMPLES)
        texts = [use.dollars + use.dollars_saved for use in chat.usage.values()]
        images = [entry.spent for entry in read_entries(shards(folder, "images"))]
        dollars = None if any(use.unpriced for use in paid_in(folder).values()) else sum(texts) + sum(images)
        build(context.dropped, folder / DROPPED_FILE, DROPPED)
        return asdict(context.asked) | {
            "tried": context.tried,
            "samples": len(samples),
            "dollars": dollars,
            "dropped": Counter(row["reason"] for row in context.dropped),
            "seconds": time.perf_counter() - start,
        }

    def _llm_of(self, maker: Maker) -> LLMOptions:
        """Return the LLM, or the oracle for a maker without one: the ceilings apply, but no model is to be loaded."""
        if maker.asks:
            return self.setting.llm
        return replace(self.setting.llm, llm=ORACLE, llm_base_url=None, reasoning_effort=None)

    def _resolved(self, maker: Maker) -> dict[str, Any]:
        """Return the options that decide the samples. Options that a maker does not use may change later."""
        setting = self.setting
        resolved: dict[str, Any] = {}
        if "editor" in maker.means:
            resolved |= asdict(setting.editor)
        if "llm" in maker.means:
            resolved |= asdict(setting.llm)
        for name, weights in local_weights(setting.llm, setting.editor).items():
            if name.removesuffix("_digest") in maker.means:
                resolved[name] = weights
        if maker.parses:
            resolved["spacy_model"] = setting.spacy_model
        return resolved | {
            "maker": maker.name,
            "pairs_fingerprint": setting.pairs.fingerprint,
            "model_digest": setting.digest(setting.model),
            "prompts": wording_digest(maker, prompts_of(setting.llm)),
        }

    def _within_ceilings(self, llm: LLMOptions, folder: Path) -> LLMOptions:
        """Limit the ceilings to what is left for all products; the folder counts its own payments itself."""
        return limit_spending(llm, products_in(self.folder), own=[folder])


async def make_samples(maker: Maker, context: MakerContext) -> list[dict[str, Any]]:
    async with context.open(edits=maker.edits, draws=maker.draws):
        return await maker.make(context)


def asking_alike(maker: Maker) -> list[str]:
    """Return the makers that share a prompt with this one, so that common requests are paid once."""
    others = load_makers().items()
    return [name for name, other in others if name != maker.name and set(other.asks) & set(maker.asks)]


def name_of_samples(resolved: dict[str, Any], summary: dict[str, Any]) -> str:
    """Digest samples by the options that decide them. Ceilings, limits and unset options do not count."""
    kept = {key: value for key, value in resolved.items() if value and key not in NOT_PART_OF_THE_RESULT}
    return digest([kept, summary["samples"]])


def wording_digest(maker: Maker, prompts: Prompts = SHIPPED) -> str:
    """Digest the prompts for texts and images of a maker."""
    images = [prompts.image(fit_instruction(""))] if maker.edits else []
    images += [draw_instruction("")] if maker.draws else []
    return digest([prompts.digest(tuple(maker.asks)), images])
