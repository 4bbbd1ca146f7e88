"""Make what methods train on beside the pairs: samples of the baselines, and records of RePair and its variants.

Each is made once for all methods and seeds, in a folder of its own below the dataset's; finished ones are reused.
All pay from the study's one ledger and keep their images in its one folder of candidates: what several ask is paid
once.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from repair_hf.evaluation.cases import Cases
from repair_hf.evaluation.near_misses import load_near_misses
from repair_hf.llm.ledger_file import has_payments, take_over
from repair_hf.llm.prompts import Drawing, fit_instruction
from repair_hf.mining.mine import mine
from repair_hf.records.dataset import NoRecords, build
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import changed
from repair_hf.runtime.run_folder import digest, write_json
from repair_hf.runtime.stage import Stage
from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.method import Maker, Method, Records
from repair_hf.study.methods.repair import REPAIR
from repair_hf.study.methods.samples import DROPPED, SAMPLES
from repair_hf.study.options import parse_budget
from repair_hf.study.setting import NEAR_MISSES, Setting
from repair_hf.synthesis.candidate_files import link_candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.models import ORACLE, local_weights, open_chat, open_editor, open_ledger, prompts_of
from repair_hf.synthesis.outcome import NothingRepaired
from repair_hf.synthesis.synthesize import synthesize
from repair_hf.training.fills import uniforms

KEEP_STREAM, EPOCH = 3, 2**31  # of the draws that choose a share of the data
SAMPLES_FILE, DROPPED_FILE = "samples.arrow", "dropped.arrow"
UNSELECTED = "unselected.json"  # candidate images to delete once the samples are finished


@dataclass(frozen=True)
class Product:
    """Samples or records that a method trains on, and what they cost, rejects included.

    Calls and dollars count every request, also repeated and reused ones, as if methods shared nothing. They are None
    if unknown, as for records from the Hub.
    """

    data: Dataset
    samples: int  # records without an edit do not count
    llm_calls: int | None
    images: int | None  # candidate images
    dollars: float | None  # list price


class Products:
    """The products of a study on one dataset, each made on first use."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._made: dict[str, Product] = {}

    def of(self, method: Method, *, waits: bool = True) -> dict[str, Product]:
        """Return what a method trains on beside the pairs, by part.

        Raises:
            NoRecords: If no failure became a record.
            RunStopped: If a ceiling is reached or a provider is down; answers so far are kept.
            BatchesOpen: If answers will come with a batch.
            filelock.Timeout: If another process makes it, unless this one `waits`.
        """
        for part in method.parts.values():
            if part.name not in self._made:
                with self.setting.lock(part.name, waits=waits):
                    made = self._records(part) if isinstance(part, Records) else self._samples(part)
                    self._made[part.name] = made
        return {kind: self._made[part.name] for kind, part in method.parts.items()}

    @cache  # noqa: B019
    def near_misses(self, split: str) -> list[Cases]:
        """Return the near misses of a split: those that were given, or in a toy world those that this makes there."""
        options, pairs = self.setting.options, self.setting.load(split)
        if options.near_misses:
            return load_near_misses(list(options.near_misses), pairs) if split == options.test_split else []
        if self.setting.world is None:
            return []
        folder, model = self.setting.folder / f"near-misses-{split}", options.model
        with self.setting.lock(f"near-misses-{split}"):
            most = min(NEAR_MISSES, self.setting.max_queries or NEAR_MISSES)
            mined = mine(model, pairs, output=folder / "failures", max_queries=most, d_i2t=1, cache_images=True)
            failures = mined.select(np.flatnonzero(np.array(mined["gt_rank"]) > 1))
            exact: dict[str, Any] = {"llm": ORACLE, "editor": "world", "candidates": 1, "ledger": options.output}
            records = synthesize(failures, pairs, model, output=folder / "records", embed_source_images=False, **exact)
        return load_near_misses(records, pairs)

    def _records(self, wanted: Records) -> Product:
        """Mine and repair, or take the records that were given."""
        given = self.setting.options.records
        if given and wanted == REPAIR:
            folders, records = [Path(place) for place in given], self.setting.records
        else:
            folders = [self.setting.folder / wanted.name]
            records = self._repair(wanted, folders[0])
        return Product(records, int(has_edit(records).sum()), *cost_of(folders))

    def _repair(self, wanted: Records, folder: Path) -> Dataset:
        setting, (llm, editor) = self.setting, self.setting.models_of(wanted.name)
        pairs, model = setting.pairs, setting.options.model
        self._take_over()
        name = f"failures-{'-'.join(wanted.mine.values()) or 'best'}"  # variants share them
        with setting.lock(name):
            how = setting.mining(wanted)
            failures = mine(model, pairs, output=setting.folder / name, cache_images=True, **how)
        if len(wanted.directions) == 1:
            failures = failures.select(np.flatnonzero(np.isin(failures["direction"][:], wanted.directions)))
        options = changed(llm) | changed(editor) | dict(wanted.synthesize)
        required = {"llm": llm.llm, "editor": editor.editor, "output": folder}
        try:
            return synthesize(failures, pairs, model, embed_source_images=False, **options | required)
        except NothingRepaired as error:  # the study leaves the method out and goes on
            raise NoRecords(str(error)) from error

    def _take_over(self) -> None:
        """Let methods that ask what existing records have paid for take it from there, once."""
        setting = self.setting
        paid = [Path(place) for place in setting.options.records if Path(place).is_dir() and has_payments(place)]
        if paid and not (setting.folder / "failures-best").exists():
            with open_ledger(setting.models[None].llm, setting.folder) as ledger:
                for place in paid:
                    link_candidates(take_over(ledger.database, ledger.run, place), ledger.folder)

    def _samples(self, maker: Maker) -> Product:
        folder = self.setting.folder / maker.name
        summary = self._stage(maker, folder).run(lambda _: self._make(maker, folder))
        if (folder / UNSELECTED).is_file():
            for path in read_json(folder / UNSELECTED, needs=None):
                Path(path).unlink(missing_ok=True)
            (folder / UNSELECTED).unlink()
        samples = Dataset.from_file(str(folder / SAMPLES_FILE))
        return Product(samples, len(samples), summary["llm"], summary["images"], summary["dollars"])

    def _make(self, maker: Maker, folder: Path) -> dict[str, Any]:
        models = self.setting.models[None]
        # a maker without an LLM loads none, and the ceilings apply all the same
        none: dict[str, Any] = {"llm": ORACLE, "llm_base_url": None, "reasoning_effort": None, "batch": False}
        llm = models.llm if maker.prompt else replace(models.llm, **none)
        with open_ledger(llm, folder) as ledger:
            chat = open_chat(llm, ledger)
            editor = open_editor(models.editor, models.llm) if "editor" in maker.means else None
            pairs, base, parser = self.setting.pairs, self.setting.base, self.setting.spacy_model
            save_as = models.editor.editor_format
            context = MakerContext(maker, pairs, base, chat, editor, spacy_model=parser, save_as=save_as)
            rows = asyncio.run(context.run())
        if not (models.editor.keep_candidates or isinstance(editor, HostedEditor)):
            made = {str(path.absolute()) for path in context.files}
            selected = {row["edit_image"]["path"] for row in rows if row.get("edit_image")}
            write_json(folder / UNSELECTED, sorted(made - selected))
        samples = build(rows, folder / SAMPLES_FILE, SAMPLES)
        build(context.dropped, folder / DROPPED_FILE, DROPPED)
        return {
            "llm": context.llm_calls,
            "images": context.images,
            "tried": len(context.captions),
            "samples": len(samples),
            "dollars": context.dollars,
            "dropped": Counter(row["reason"] for row in context.dropped),
        }

    def _stage(self, maker: Maker, folder: Path) -> Stage:
        """Return the folder of a maker's samples. Options that it does not use may change later."""
        models = self.setting.models[None]
        prompts, means = prompts_of(models.llm), maker.means
        images = [prompts.image(fit_instruction(""))] if maker.edits else []
        images += [Drawing("")] if maker.draws else []
        inputs: dict[str, Any] = local_weights(models.editor) if "editor" in means else {}
        inputs |= {"spacy_model": self.setting.spacy_model} if maker.parses else {}
        inputs |= {
            "maker": maker.name,
            "pairs_fingerprint": self.setting.pairs.fingerprint,
            "model_digest": self.setting.base.digest,
            "prompts": digest([prompts.digest((maker.prompt,) if maker.prompt else ()), images]),
        }
        used = {"editor": models.editor, "llm": models.llm}
        return Stage("study", folder, [options for name, options in used.items() if name in means], inputs)


def has_edit(records: Dataset) -> np.ndarray:
    """Return which records hold an edit, (n,)."""
    return np.array([similarities is not None for similarities in records["candidate_similarities"][:]], bool)


def part_of(data: Dataset, share: float) -> Dataset:
    """Select a random share of samples, or of records with an edit; a larger share contains every smaller one."""
    if share >= 1:
        return data
    own = np.flatnonzero(has_edit(data)) if "candidate_similarities" in data.column_names else np.arange(len(data))
    chance = uniforms(0, np.full(len(own), EPOCH), np.arange(len(own)), KEEP_STREAM)
    return data.select(np.sort(own[np.argsort(chance, kind="stable")[: round(share * len(own))]]))


def cost_of(folders: Sequence[Path]) -> tuple[int | None, int | None, float | None]:
    """Return the LLM requests, the candidate images and the dollars of syntheses, also of what was paid before.

    All are unknown if one of the folders is not of a synthesis on this machine, such as a dataset of the Hub.
    """
    if not all((folder / "summary.json").is_file() for folder in folders):
        return None, None, None
    calls, images, dollars = 0, 0, 0.0
    for folder in folders:
        summary = read_json(folder / "summary.json", needs=("llm", "paid", "images"))
        made, is_unpriced = summary["images"], any(use["unpriced"] for use in summary["paid"])
        calls += sum(use["calls"] + use["replayed"] for use in summary["llm"])
        images += made["made"] + made["found"]
        dollars += sum(use["dollars"] + use["dollars_saved"] for use in summary["llm"])
        dollars += math.nan if is_unpriced else made.get("dollars", math.nan)  # earlier versions did not write it
    return calls, images, None if math.isnan(dollars) else dollars


def share_of(budget: str, products: Sequence[Product]) -> float:
    """Return the share of a method's data that a budget pays for, at most all of it.

    Raises:
        NoRecords: If what the data cost is unknown.
    """
    amount, takes = parse_budget(budget)
    whole = 0.0
    for each in products:
        counts = each.samples, each.llm_calls, each.images
        if any(count is None for one, count in zip(takes, counts, strict=True) if one):
            raise NoRecords(f"the budget {budget} needs what the records cost, which is unknown")
        whole += sum(one * (count or 0) for one, count in zip(takes, counts, strict=True))
    return min(1.0, amount / whole) if whole else 1.0
