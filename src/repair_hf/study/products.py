"""The data that methods train on: samples of the baselines, and records of RePair and its variants.

A product is made once for all methods and seeds, in a folder of its own below `products/`. Finished products are
reused; a folder that was made with other options raises an error. The ceilings of the study's LLM apply to all folders
together.

Several processes make products side by side. All products pay from one ledger, so common questions are paid once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from repair_hf.llm.batches import BatchesOpen
from repair_hf.llm.cost import known_dollars
from repair_hf.llm.ledger import BudgetSpent
from repair_hf.llm.ledger_file import paid_by
from repair_hf.llm.prompts import SHIPPED, Drawing, Prompts, fit_instruction
from repair_hf.records.dataset import NoRecords, build
from repair_hf.runtime.run_folder import RunStopped, digest
from repair_hf.runtime.stage import Stage
from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.method import Baseline, Maker, Method, RepairVariant
from repair_hf.study.methods.samples import DROPPED, SAMPLES
from repair_hf.study.repair_records import RepairRecords
from repair_hf.study.setting import Knobs, Setting
from repair_hf.study.spending import Cost, Product, products_in
from repair_hf.synthesis.candidates import link_candidates
from repair_hf.synthesis.models import ORACLE, local_weights, open_chat, open_editor, open_ledger, prompts_of
from repair_hf.synthesis.options import LLMOptions
from repair_hf.synthesis.outcome import NothingRepaired

SAMPLES_FILE, DROPPED_FILE = "samples.arrow", "dropped.arrow"


class Products:
    """The products of a study, each made on first use."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.folder = setting, setting.output / "products"
        self._repair = RepairRecords(setting, self.folder)
        self._made: dict[Any, Product] = {}
        self._with_provider: dict[str, BatchesOpen] = {}  # products that wait for a batch, in this run

    def of(self, method: Method, knobs: Knobs) -> dict[str, Product]:
        """Return what a method trains on beside the pairs, by part; RePair and its variants have one part, `records`.

        The retriever between two rounds of repair is trained with `knobs`.

        Raises:
            NoRecords: If no failure became a record.
            RunStopped: If a ceiling is reached or a provider is down; answers so far are kept.
            BatchesOpen: If answers will come with a batch.
        """
        try:
            if isinstance(method, Baseline):
                return self.setting.sharing.run_all(
                    {str(part): partial(self._samples, maker) for part, maker in method.parts.items()}
                )
            return {"records": self._records(method, knobs)} if method.records else {}
        except NothingRepaired as error:  # the study leaves the method out and goes on
            raise NoRecords(str(error)) from error
        except BudgetSpent as error:
            dollars, calls = paid_by(products_in(self.folder))
            raise RunStopped(
                f"The study's limit is reached at `{method.name}`: {calls:,} LLM answers and ${dollars:.4f} are "
                "paid for all products together. All answers are kept; raise `max_usd` or `max_calls` to go on."
            ) from error

    def lacks(self, method: Method) -> bool:
        """Return whether something that a method trains on is still to be made."""
        if isinstance(method, Baseline):
            return any(self._is_missing(maker.name) for maker in method.parts.values())
        is_made = not method.records or self.setting.has_records(method)
        return not is_made and self._is_missing(f"{method.product}-records")

    def _is_missing(self, folder: str) -> bool:
        return not (self.folder / folder / "summary.json").is_file()

    def _records(self, variant: RepairVariant, knobs: Knobs) -> Product:
        key = variant.product, variant.select, knobs if variant.rounds > 1 else None
        make = partial(self._repair.make, variant, knobs)
        return self._once(key, variant.product, make)

    def _samples(self, maker: Maker) -> Product:
        return self._once(maker.name, maker.name, partial(self._made_samples, maker))

    def _once(self, key: Any, name: str, make: Callable[[], Product]) -> Product:
        """Make a product, as the only process."""
        if name in self._with_provider:
            raise self._with_provider[name]
        if key not in self._made:
            with self.setting.sharing.lock(f"product--{name}"):
                try:
                    self._made[key] = make()
                except BatchesOpen as stop:
                    self._with_provider[name] = stop
                    raise
        return self._made[key]

    def _made_samples(self, maker: Maker) -> Product:
        folder, stage = self.folder / maker.name, self._stage(maker)
        summary = stage.run(lambda _: self._make(maker, folder))
        data, tried = Dataset.from_file(str(folder / SAMPLES_FILE)), max(summary["tried"], 1)
        cost = Cost(
            samples=len(data),
            llm_calls=summary["llm"],
            image_calls=summary["images"],
            llm_per_sample=summary["llm"] / tried,
            images_per_sample=summary["images"] / tried,
            dollars=summary["dollars"],
        )
        return Product(data, cost, name_of_samples(stage.deciding, summary))

    def _make(self, maker: Maker, folder: Path) -> dict[str, Any]:
        setting, start, llm = self.setting, time.perf_counter(), self._llm_of(maker)
        with open_ledger(llm, folder) as ledger:
            link_candidates(folder, ledger.folder)  # before there were ledgers, each product had its own images
            chat = open_chat(llm, ledger)
            editor = open_editor(setting.editor, setting.llm) if maker.makes_images else None
            context = MakerContext(setting.pairs, setting.base, chat, editor, spacy_model=setting.spacy_model)
            rows = asyncio.run(make_samples(maker, context))
        samples = build(rows, folder / SAMPLES_FILE, SAMPLES)
        texts, images = known_dollars(chat.usage.values()), context.image_dollars
        saved = sum(use.dollars_saved for use in chat.usage.values())
        build(context.dropped, folder / DROPPED_FILE, DROPPED)
        return asdict(context.asked) | {
            "tried": context.tried,
            "samples": len(samples),
            "dollars": None if texts is None or images is None else texts + saved + images,
            "dropped": Counter(row["reason"] for row in context.dropped),
            "seconds": time.perf_counter() - start,
        }

    def _llm_of(self, maker: Maker) -> LLMOptions:
        """Return the LLM, or the oracle for a maker without one: the ceilings apply, but no model is to be loaded."""
        if maker.asks:
            return self.setting.llm
        return replace(self.setting.llm, llm=ORACLE, llm_base_url=None, reasoning_effort=None, batch=False)

    def _stage(self, maker: Maker) -> Stage:
        """Return the folder of a maker's samples. Options that it does not use may change later."""
        setting = self.setting
        used = {"editor": setting.editor, "llm": setting.llm}
        weights = local_weights(setting.editor).items()
        inputs: dict[str, Any] = {
            name: value for name, value in weights if name.removesuffix("_digest") in maker.means
        }
        if maker.parses:
            inputs["spacy_model"] = setting.spacy_model
        inputs |= {
            "maker": maker.name,
            "pairs_fingerprint": setting.pairs.fingerprint,
            "model_digest": setting.digest(setting.model),
            "prompts": wording_digest(maker, prompts_of(setting.llm)),
        }
        options = [value for name, value in used.items() if name in maker.means]
        return Stage("study", self.folder / maker.name, options, inputs)


async def make_samples(maker: Maker, context: MakerContext) -> list[dict[str, Any]]:
    await context.chat.collect()
    async with context.open(edits=maker.edits, draws=maker.draws):
        return await maker.make(context)


def name_of_samples(deciding: dict[str, Any], summary: dict[str, Any]) -> str:
    """Digest samples by the options that decide them; unset ones do not count."""
    kept = {key: value for key, value in deciding.items() if value}
    return digest([kept, summary["samples"]])


def wording_digest(maker: Maker, prompts: Prompts = SHIPPED) -> str:
    """Digest the prompts for texts and images of a maker."""
    images = [prompts.image(fit_instruction(""))] if maker.edits else []
    images += [Drawing("")] if maker.draws else []
    return digest([prompts.digest(tuple(maker.asks)), images])
