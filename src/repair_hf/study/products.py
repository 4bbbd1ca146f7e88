"""What methods train on, made once for all cells of a study: samples of the baselines, records of RePair and its variants.

In:  a `Setting`, a method.
Out: `Made`: the samples or records, and what was asked for to make them.

Each product has a folder named by what it is; a maker's also holds the captions of which no sample came (`dropped.arrow`). What is finished stays; the options of a product stand in its folder, and other options are
refused. The ceilings of the study's LLM hold for all folders together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from datasets import Dataset

from repair_hf.llm.budget import BudgetSpent
from repair_hf.llm.cost import paid_in
from repair_hf.llm.journal import bills, open_journal, read_entries, shards, total
from repair_hf.llm.prompts import draw_instruction, fit_instruction, image_prompt, prompt_digest
from repair_hf.records.dataset import build
from repair_hf.runtime.run_folder import NOT_PART_OF_THE_RESULT, RunStopped, digest, finish_stage, finished, open_stage
from repair_hf.study.methods.context import Workshop
from repair_hf.study.methods.method import Baseline, Maker, Method, Repair
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.methods.samples import DROPPED, SAMPLES
from repair_hf.study.setting import Knobs, Setting
from repair_hf.study.variants import Variants, has_edit
from repair_hf.synthesis.reuse import inherit, is_inherited
from repair_hf.synthesis.models import ORACLE, LLMOptions, local_weights, open_chat, open_editor

SAMPLES_FILE, DROPPED_FILE = "samples.arrow", "dropped.arrow"


@dataclass(frozen=True)
class Made:
    """A product.

    Args:
        data: Samples or records.
        samples: How many of them were made; a record without an edit points at what the pairs hold already.
        llm_calls: LLM requests in all, of rejects too; equal requests counted each time.
        image_calls: Candidate images in all.
        llm_per_sample: LLM requests for one sample, as the paper's overhead table counts: rejects left out.
        images_per_sample: Candidate images for one sample, counted alike.
        dollars: What all that was asked for costs, whoever paid it, equal requests counted each time; None where no price is known.
        name: Names its content.
    """

    data: Dataset
    samples: int
    llm_calls: int
    image_calls: int
    llm_per_sample: float
    images_per_sample: float
    dollars: float | None
    name: str


class Products:
    """The products of a study, each made when it is first asked for.

    Args:
        setting: What they are made with.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting, self.folder = setting, setting.output / "products"
        self._variants = Variants(setting, self.folder, self._within_ceilings)
        self._made: dict[Any, Made] = {}

    def of(self, method: Method, knobs: Knobs) -> dict[str, Made]:
        """What a method trains on beside the pairs, by the part that it plays; `records` of RePair and its variants.

        Args:
            method: The method.
            knobs: Its hyperparameters; the retriever between two rounds of repair is trained with them.

        Raises:
            RunStopped: If a ceiling is reached, or a provider is down; what was answered is kept.
        """
        try:
            if isinstance(method, Baseline):
                return {part: self._samples(maker) for part, maker in method.parts.items()}
            return {"records": self._records(method, knobs)} if method.records else {}
        except BudgetSpent as error:
            dollars, calls = paid(products_in(self.folder))
            raise RunStopped(
                f"A ceiling of the study is reached at `{method.name}`: {calls:,} LLM answers and ${dollars:.4f} are paid, all products "
                "together. Every answer so far is kept; with a higher `max_usd` or `max_calls` the same command goes on."
            ) from error

    def lacks(self, method: Method) -> bool:
        """Whether something that a method trains on is still to be made."""
        if isinstance(method, Baseline):
            names = [maker.name for maker in method.parts.values()]
        else:
            names = [f"{method.product}-records"] if method.records else []
        return any(not (self.folder / name / "summary.json").is_file() for name in names)

    def _records(self, variant: Repair, knobs: Knobs) -> Made:
        key = variant.product, knobs if variant.rounds > 1 else None
        if key not in self._made:
            with self._alone():
                found = self._variants.records(variant, knobs)
            llm_each, images_each = calls_per_record(found.records, is_audited=variant.synthesize.get("audited", True))
            name = digest(found.records["record_id"][:])
            self._made[key] = Made(
                data=found.records,
                samples=int(has_edit(found.records).sum()),
                llm_calls=found.llm_calls,
                image_calls=found.image_calls,
                llm_per_sample=llm_each,
                images_per_sample=images_each,
                dollars=found.dollars,
                name=name,
            )
        return self._made[key]

    def _samples(self, maker: Maker) -> Made:
        if maker.name not in self._made:
            folder, resolved = self.folder / maker.name, self._resolved(maker)
            summary = finished(folder, resolved)
            if summary is None:
                with self._alone():
                    summary = finished(folder, resolved)  # another process may have made them meanwhile
                    if summary is None:
                        inherit([self.folder / name for name in asking_alike(maker)], folder, images=False)
                        open_stage(folder, command="study", options=resolved)
                        summary = self._make(maker, folder)
                        finish_stage(folder, summary)
            data, tried = Dataset.from_file(str(folder / SAMPLES_FILE)), max(summary["tried"], 1)
            self._made[maker.name] = Made(
                data=data,
                samples=len(data),
                llm_calls=summary["llm"],
                image_calls=summary["images"],
                llm_per_sample=summary["llm"] / tried,
                images_per_sample=summary["images"] / tried,
                dollars=summary["dollars"],
                name=name_of_samples(resolved, summary),
            )
        return self._made[maker.name]

    def _alone(self) -> filelock.FileLock:
        """Held while a product is made, by one process at a time: each counts what all have paid. What is made needs no waiting."""
        return self.setting.turns.alone("products")

    def _make(self, maker: Maker, folder: Path) -> dict[str, Any]:
        setting = self.setting
        with open_journal(folder) as journal:
            chat = open_chat(self._within_ceilings(self._llm_of(maker), folder), journal)
            editor = open_editor(setting.editor, setting.llm) if maker.edits or maker.draws else None
            workshop = Workshop(setting.pairs, setting.base, chat, editor, folder, spacy_model=setting.spacy_model)
            rows = asyncio.run(make_samples(maker, workshop))
        samples = build(rows, folder / SAMPLES_FILE, SAMPLES)
        texts = [use.dollars + use.dollars_saved for use in chat.usage.values()]
        images = [entry.spent for entry in read_entries(shards(folder, "images"))]
        dollars = None if any(use.unpriced for use in paid_in(folder).values()) else sum(texts) + sum(images)
        build(workshop.dropped, folder / DROPPED_FILE, DROPPED)
        told = {"tried": workshop.tried, "samples": len(samples), "dollars": dollars}
        return asdict(workshop.asked) | told | {"dropped": Counter(row["reason"] for row in workshop.dropped)}

    def _llm_of(self, maker: Maker) -> LLMOptions:
        """Who is asked; where nobody is, the ceilings are needed all the same, and no model is to be loaded for them."""
        if maker.asks:
            return self.setting.llm
        return replace(self.setting.llm, llm=ORACLE, llm_base_url=None, reasoning_effort=None)

    def _resolved(self, maker: Maker) -> dict[str, Any]:
        """What decides the samples; what a maker does not work with may change later."""
        setting, resolved = self.setting, {}
        options = {"llm": setting.llm, "editor": setting.editor}
        for name in sorted(maker.means & options.keys()):
            resolved |= asdict(options[name])
        for name, weights in local_weights(**options).items():
            if name.removesuffix("_digest") in maker.means:
                resolved[name] = weights
        if maker.parses:
            resolved["spacy_model"] = setting.spacy_model
        return resolved | {
            "maker": maker.name,
            "pairs_fingerprint": setting.pairs.fingerprint,
            "model_digest": setting.digest(setting.model),
            "prompts": wording_digest(maker),
        }

    def _within_ceilings(self, llm: LLMOptions, folder: Path) -> LLMOptions:
        """With what is left for all products as this folder's ceilings, which count what the folder has paid already."""
        return replace(llm, **ceilings_left(llm, products_in(self.folder), own=[folder]))


async def make_samples(maker: Maker, workshop: Workshop) -> list[dict[str, Any]]:
    """Run a maker with the image editor ready."""
    async with workshop.open(edits=maker.edits, draws=maker.draws):
        return await maker.make(workshop)


def asking_alike(maker: Maker) -> list[str]:
    """The makers that use one of the same prompts: what both ask is paid once."""
    makers = {
        other.name: other
        for method in load_methods().values()
        if isinstance(method, Baseline)
        for other in method.parts.values()
    }
    return [name for name, other in makers.items() if name != maker.name and set(other.asks) & set(maker.asks)]


def products_in(folder: Path) -> list[Path]:
    """The folders of products; what is being copied into one is none yet."""
    return [path for path in folder.glob("*") if not path.name.startswith(".")]


def paid(folders: Iterable[Path]) -> tuple[float, int]:
    """Dollars and LLM answers that some products have paid for; a copy of what another of them holds was paid there."""
    files = [path for folder in folders for path in bills(folder)]
    own = list(read_entries(path for path in files if not is_inherited(path)))
    known = {entry.key for entry in own}
    copies = {entry.key: entry for entry in read_entries(filter(is_inherited, files)) if entry.key not in known}
    return total([*own, *copies.values()])


def ceilings_left(llm: LLMOptions, folders: Iterable[Path], own: Iterable[Path] = ()) -> dict[str, float]:
    """What is left of an LLM's ceilings, by the names of the options; nothing where none is set.

    Args:
        llm: With the ceilings.
        folders: Products whose payments count.
        own: Those of them that may spend what is left, and count what they have paid themselves.
    """
    if llm.max_usd is None and llm.max_calls is None:
        return {}  # to read every answer of every product takes a minute
    dollars, calls = paid(folders)
    own_dollars, own_calls = paid(own)
    left = {}
    if llm.max_usd is not None:
        left["max_usd"] = max(llm.max_usd - dollars, 0.0) + own_dollars
    if llm.max_calls is not None:
        left["max_calls"] = max(llm.max_calls - calls, 0) + own_calls
    return left


def calls_per_record(records: Dataset, *, is_audited: bool) -> tuple[float, float]:
    """LLM requests and candidate images for a kept record: audit, instruction, and M edits. Records without an edit have no part in it."""
    llm = images = 0
    kept = np.flatnonzero(has_edit(records))
    for row in records.select(kept).select_columns(["direction", "candidate_similarities"]):
        tried = len(row["candidate_similarities"])
        llm += is_audited + 1 + (tried if row["direction"] == "i2t" else 0)
        images += tried if row["direction"] == "t2i" else 0
    return llm / max(len(kept), 1), images / max(len(kept), 1)


def name_of_samples(resolved: dict[str, Any], summary: dict[str, Any]) -> str:
    """Names samples by what decides them; ceilings and limits do not, nor does an option that is not set: a new one renames no old samples."""
    kept = {key: value for key, value in resolved.items() if value and key not in NOT_PART_OF_THE_RESULT}
    return digest([kept, summary["samples"]])


def wording_digest(maker: Maker) -> str:
    """Names the words in which a maker asks for texts and for images."""
    images = (
        [image_prompt(ask("")) for ask in (draw_instruction, fit_instruction)] if maker.edits or maker.draws else []
    )
    return digest([prompt_digest(tuple(maker.asks)), images])
