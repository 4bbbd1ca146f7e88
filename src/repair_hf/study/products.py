"""What methods train on, made once for all cells of a study: samples of the baselines, records of RePair and its variants.

In:  a `Setting`, a maker or a variant of RePair.
Out: `Made`: the samples or records, and what was asked for to make them.

Each product has a folder named by what it is. What is finished stays; the options of a product stand in its folder, and other options are
refused. Variants of RePair begin with the answers and images of RePair itself, so that what they share is paid once.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset, concatenate_datasets
from pyarrow.parquet import read_table

from repair_hf.baselines.method import Maker, Repair
from repair_hf.baselines.samples import SAMPLES
from repair_hf.baselines.workshop import Workshop, usage_of
from repair_hf.llm.journal import open_journal, shards
from repair_hf.models import open_chat, open_editor
from repair_hf.options import UserError, as_flags
from repair_hf.records import build, load_records
from repair_hf.runs import digest, finish_stage, finished, open_stage
from repair_hf.study.setting import Setting
from repair_hf.synthesis.prompts import chat as prompt

SAMPLES_FILE = "samples.arrow"
PROMPTS = ("rewrite", "hard_negative", "noun_swap", "scene_change")


@dataclass(frozen=True)
class Made:
    """A product.

    Args:
        data: Samples or records.
        llm_calls: LLM requests in all, of rejects too; equal requests counted each time.
        image_calls: Candidate images in all.
        llm_per_sample: LLM requests for one sample, as the paper's overhead table counts: rejects left out.
        images_per_sample: Candidate images for one sample, counted alike.
        dollars: What it cost; None where no price is known.
        name: Names its content.
    """

    data: Dataset
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
        self._made: dict[str, Made] = {}

    def samples(self, maker: Maker) -> Made:
        """The samples of a baseline."""
        if maker.name not in self._made:
            self._made[maker.name] = self._samples(maker)
        return self._made[maker.name]

    def records(self, variant: Repair) -> Made:
        """The records of a variant of RePair, of both directions."""
        if variant.product not in self._made:
            self._made[variant.product] = self._records(variant)
        return self._made[variant.product]

    def _samples(self, maker: Maker) -> Made:
        setting, folder = self.setting, self.folder / maker.name
        encoder = setting.encoder(setting.model)
        resolved = (
            asdict(setting.llm) | asdict(setting.editor) | {"maker": maker.name, "spacy_model": setting.spacy_model}
        )
        resolved |= {
            "pairs_fingerprint": setting.pairs.fingerprint,
            "model_digest": encoder.digest,
            "prompts": prompts_digest(),
        }
        summary = finished(folder, resolved)
        if summary is None:
            open_stage(folder, command="study", options=resolved)
            with open_journal(folder) as journal:
                chat = open_chat(setting.llm, journal)
                editor = open_editor(setting.editor, setting.llm)
                workshop = Workshop(setting.pairs, encoder, chat, editor, folder, spacy_model=setting.spacy_model)
                rows = asyncio.run(make_samples(maker, workshop))
                use = usage_of(chat)
            samples = build(rows, folder / SAMPLES_FILE, SAMPLES)
            told = asdict(workshop.asked) | {"tried": workshop.tried, "samples": len(samples), "dollars": use.dollars}
            finish_stage(folder, told)
            summary = finished(folder, resolved)
        tried = max(summary["tried"], 1)
        return Made(
            Dataset.from_file(str(folder / SAMPLES_FILE)),
            summary["llm"],
            summary["images"],
            summary["llm"] / tried,
            summary["images"] / tried,
            summary["dollars"],
            digest([resolved, summary["samples"]]),
        )

    def _records(self, variant: Repair) -> Made:
        model = self._model(variant)
        folders = [self.folder / f"{variant.product}-records"]
        self._mine_and_repair(variant, model, variant.product, [])
        for number in range(2, variant.rounds + 1):
            name = f"{variant.product}-round-{number}"
            retriever = self._retriever(variant, folders, number - 1)
            self._mine_and_repair(variant, str(retriever), name, folders)
            folders.append(self.folder / f"{name}-records")
        records = load_records([str(folder) for folder in folders])
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
        asked = sum(use["calls"] + use["replayed"] for summary in summaries for use in summary["llm"])
        images = sum(sum(summary["images"].values()) for summary in summaries)
        dollars = sum(use["dollars"] for summary in summaries for use in summary["paid"])
        if variant.reciprocal:
            records = self._with_pointers(records, self.folder / f"{variant.product}-failures")
        llm_each, images_each = calls_per_record(records, is_audited=variant.synthesize.get("audited", True))
        return Made(records, asked, images, llm_each, images_each, dollars, digest(records["record_id"][:]))

    def _mine_and_repair(self, variant: Repair, model: str, name: str, earlier: list[Path]) -> None:
        """The failures and the records of one round, by the commands that a user types."""
        setting = self.setting
        pairs = [*as_flags(setting.pairs_options), "--model", model]
        failures, records = self.folder / f"{name}-failures", self.folder / f"{name}-records"
        setting.type_command("mine", *pairs, "--output", str(failures), *setting.mine, *words(variant.mine))
        llm, editor = setting.llm, setting.editor
        if variant.weak == "llm":
            llm = _needed(setting.weak_llm, variant, "weak_llm")
        if variant.weak == "editor":
            editor = _needed(setting.weak_editor, variant, "weak_editor")
        if variant.reciprocal:
            failures = mirror_failures(failures)
        if variant.product != "repair" and not variant.other_model and not earlier:
            inherit(self.folder / "repair-records", records)
        setting.type_command(
            "synthesize",
            *pairs,
            "--failures",
            str(failures),
            "--output",
            str(records),
            *as_flags(llm),
            *as_flags(editor),
            *setting.synthesize,
            *words(variant.synthesize),
            *(["--earlier-rounds", *map(str, earlier)] if earlier else []),
        )

    def _retriever(self, variant: Repair, folders: list[Path], number: int) -> Path:
        """The retriever that the records of earlier rounds repair, to be mined anew."""
        setting, output = self.setting, self.folder / f"{variant.product}-retriever-{number}"
        training = {name: value for name, value in setting.training.items() if name != "output_dir"}
        setting.type_command(
            "train", *as_flags(setting.pairs_options), "--model", self._model(variant), "--output", str(output),
            "--records", *map(str, folders), *words(training | dict(variant.train)),
        )  # fmt: skip
        return output

    def _model(self, variant: Repair) -> str:
        return _needed(self.setting.other_model, variant, "other_model") if variant.other_model else self.setting.model

    def _with_pointers(self, records: Dataset, failures: Path) -> Dataset:
        """Beside each mirrored record, a record without an edit that tells whom the caption was taken for."""
        kept = {(row["q_id"], row["fp_id"]) for row in records.select_columns(["q_id", "fp_id"])}
        mined = read_table(failures / "failures.parquet").to_pylist()
        pointers = [
            dict.fromkeys(records.column_names)
            | {name: row[name] for name in ("direction", "q_id", "gt_id", "fp_id", "fp_score")}
            | {"record_id": digest([row["q_id"], row["fp_id"]]), "error_types": []}
            for row in mined
            if row["direction"] == "t2i" and (row["fp_id"], row["q_id"]) in kept
        ]
        return concatenate_datasets([records, Dataset.from_list(pointers, features=records.features)])


async def make_samples(maker: Maker, workshop: Workshop) -> list[dict[str, Any]]:
    """Run a maker with the image editor ready."""
    async with workshop.open(edits=maker.edits, draws=maker.draws):
        return await maker.make(workshop)


def mirror_failures(folder: Path) -> Path:
    """Beside the failures of images, those of captions seen from the wrong image: it asks, and the caption is its false positive.

    Returns:
        A Parquet file of i2t failures, each pair of query and false positive once.
    """
    table = Dataset(read_table(folder / "failures.parquet")).to_pandas()
    is_t2i = table["direction"] == "t2i"
    mirrored = table[is_t2i].assign(
        direction="i2t", q=table["fp"], fp=table["q"], q_id=table["fp_id"], fp_id=table["q_id"]
    )
    i2t = table[~is_t2i]
    by_image = i2t.drop_duplicates("q").set_index("q")
    mirrored = mirrored[mirrored["q"].isin(by_image.index)]  # an image that was not mined has no ground truth here
    for name in ("gt", "gt_id", "gt_score", "gt_rank"):
        mirrored[name] = by_image.loc[mirrored["q"], name].to_numpy()
    both = pd.concat([i2t, mirrored]).drop_duplicates(["q", "fp"])
    file = folder / "mirrored.parquet"
    draft = file.with_name(f".{file.name}.tmp")
    both.to_parquet(draft, index=False)
    draft.replace(file)
    return file


def calls_per_record(records: Dataset, *, is_audited: bool) -> tuple[float, float]:
    """LLM requests and candidate images for a kept record: audit, instruction, and M edits."""
    columns = records.select_columns(["direction", "candidate_similarities"])
    llm = images = kept = 0
    for row in columns:
        if row["candidate_similarities"] is None:
            continue
        kept += 1
        tried = len(row["candidate_similarities"])
        llm += is_audited + 1 + (tried if row["direction"] == "i2t" else 0)
        images += tried if row["direction"] == "t2i" else 0
    return llm / max(kept, 1), images / max(kept, 1)


def inherit(source: Path, folder: Path) -> None:
    """Let a synthesis begin with the answers and the images of another: what both ask for is paid once."""
    if not (source / "summary.json").is_file() or folder.exists():
        return
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for number, path in enumerate(shards(source)):
        shutil.copyfile(path, draft / f"journal-inherited-{number}.jsonl")
    if (source / "candidates").is_dir():
        shutil.copytree(source / "candidates", draft / "candidates", copy_function=os.link)
    draft.rename(folder)


def words(options: Mapping[str, Any]) -> list[str]:
    """Options as the words of a command line."""
    found = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            found += [flag, str(value)]
    return found


def prompts_digest() -> str:
    """Names the wording of the prompts that makers use."""
    blanks = {"caption": "", "source_image": ""}
    return digest([prompt(name, **blanks) for name in PROMPTS])


def _needed(value: Any, variant: Repair, option: str) -> Any:
    if value is None:
        raise UserError(
            f"The method `{variant.name}` needs `{option}`, which is not set; give it, or leave the method out."
        )
    return value
