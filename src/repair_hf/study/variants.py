"""The records of RePair and of its variants, made by the very commands that a user types.

In:  a `Setting`, a variant.
Out: its records, and what was asked for to make them.

Each begins with the answers and images of those that were made before it, so that what they share is paid once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, concatenate_datasets
from pyarrow.parquet import read_table

from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import as_flags, flags
from repair_hf.runtime.run_folder import digest
from repair_hf.study.methods.method import Repair
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.methods.samples import places_of_share
from repair_hf.study.setting import Knobs, Setting
from repair_hf.synthesis.reuse import inherit
from repair_hf.synthesis.models import LLMOptions


@dataclass(frozen=True)
class Found:
    """Records and their price.

    Args:
        records: Those of all rounds.
        llm_calls: LLM requests in all, of rejects too; equal requests counted each time.
        image_calls: Candidate images in all.
        dollars: What all that was asked for costs, whoever paid it, equal requests counted each time; None where no price is known.
    """

    records: Dataset
    llm_calls: int
    image_calls: int
    dollars: float | None


class Variants:
    """Makes the records of RePair's variants, one folder for the failures and one for the records of each round.

    Args:
        setting: What they are made with.
        folder: Gets the folders.
        within_ceilings: Takes the options of an LLM and a folder, and gives those options with the folder's ceilings.
    """

    def __init__(
        self, setting: Setting, folder: Path, within_ceilings: Callable[[LLMOptions, Path], LLMOptions]
    ) -> None:
        self.setting, self.folder, self.within_ceilings = setting, folder, within_ceilings

    def records(self, variant: Repair, knobs: Knobs) -> Found:
        """Mine and repair, in as many rounds as the variant has."""
        folders = [self.folder / f"{variant.product}-records"]
        self._mine_and_repair(variant, self.setting.model_of(variant), variant.product, [])
        for number in range(2, variant.rounds + 1):
            name = f"{variant.product}-round-{number}--{knobs.name}"
            retriever = self.folder / f"{name}-retriever"
            self._train(variant, knobs, folders, retriever)
            self._mine_and_repair(variant, str(retriever), name, folders)
            folders.append(self.folder / f"{name}-records")
        records = load_records([str(folder) for folder in folders])
        if variant.reciprocal:
            records = self._with_pointers(records, self.folder / f"{variant.product}-failures")
        return _sum_up(records, folders)

    def _mine_and_repair(self, variant: Repair, model: str, name: str, earlier: list[Path]) -> None:
        """The failures and the records of one round."""
        setting = self.setting
        pairs = [*as_flags(setting.pairs_options), "--model", model]
        failures, records = self.folder / f"{name}-failures", self.folder / f"{name}-records"
        mine = {
            **setting.mine,
            **variant.mine,
            **{f"d_{side}": 0 for side in DIRECTIONS if side not in variant.directions},
        }
        setting.type_command("mine", *pairs, "--output", str(failures), *flags(mine))
        llm = setting.weak_llm if variant.weak == "llm" else setting.llm
        editor = setting.weak_editor if variant.weak == "editor" else setting.editor
        if variant.reciprocal:
            failures = mirror_failures(failures)
        if shares_answers(variant) and not earlier:
            others = {
                other.product
                for other in load_methods().values()
                if isinstance(other, Repair) and shares_answers(other)
            }
            inherit([self.folder / f"{other}-records" for other in sorted(others - {variant.product})], records)
        setting.type_command(
            "synthesize", *pairs, "--failures", str(failures), "--output", str(records),
            *as_flags(self.within_ceilings(llm, records)), *as_flags(editor), "--no-embed-source-images",
            *flags(variant.synthesize), *(["--earlier-rounds", *map(str, earlier)] if earlier else []),
        )  # fmt: skip

    def _train(self, variant: Repair, knobs: Knobs, folders: list[Path], output: Path) -> None:
        """Repair the retriever by the records of earlier rounds, so that it can be mined anew."""
        setting = self.setting
        setting.type_command(
            "train", *as_flags(setting.pairs_options), "--model", setting.model_of(variant), "--output", str(output),
            "--records", *map(str, folders), *flags({**setting.training, **variant.train, **knobs.as_options()}),
        )  # fmt: skip

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


def has_edit(records: Dataset) -> np.ndarray:
    """(n,) which records hold an edit; the others point at what the pairs hold."""
    return np.array([similarities is not None for similarities in records["candidate_similarities"][:]], bool)


def share_of_records(records: Dataset, share: float) -> Dataset:
    """Some of the records, drawn by chance; a record without an edit goes with the one that repairs the same two items."""
    if share >= 1:
        return records
    is_own = has_edit(records)
    own = np.flatnonzero(is_own)
    is_kept = np.zeros(len(records), bool)
    is_kept[own[places_of_share(len(own), share)]] = True
    items = list(zip(records["q_id"][:], records["fp_id"][:], strict=True))
    kept = {items[place] for place in np.flatnonzero(is_kept)}
    for place in np.flatnonzero(~is_own):
        is_kept[place] = items[place][::-1] in kept
    return records.select(np.flatnonzero(is_kept))


def shares_answers(variant: Repair) -> bool:
    """Whether a variant asks what others ask, so that it can begin with their answers, and they with its own.

    Not of another retriever's failures; and not of a weaker LLM, which is asked under a name of its own.
    """
    return variant.records and not variant.other_model and variant.weak != "llm"


def mirror_failures(folder: Path) -> Path:
    """Beside the failures of images, those of captions seen from the wrong image: it asks, and the caption is its false positive.

    Of a mirrored row `fp_score` is the same from both sides, and `fp_rank` still the rank of the image for the caption.

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


def _sum_up(records: Dataset, folders: Sequence[Path]) -> Found:
    """The records, and what they took."""
    summaries = [json.loads((folder / "summary.json").read_text(encoding="utf-8")) for folder in folders]
    asked = [use for summary in summaries for use in summary["llm"]]
    images, dollars = sum(sum(summary["images"].values()) for summary in summaries), list(map(_dollars, summaries))
    return Found(
        records,
        sum(use["calls"] + use["replayed"] for use in asked),
        images,
        None if None in dollars else sum(dollars),
    )


def _dollars(summary: Mapping[str, Any]) -> float | None:
    """What a synthesis asked for costs; its folder also holds inherited answers that it never asked for."""
    if any(use["unpriced"] for use in summary["paid"]):
        return None
    texts = sum(use["dollars"] + use["dollars_saved"] for use in summary["llm"])
    bought = [use for use in summary["paid"] if (use["stage"], use["direction"]) == ("edit", "t2i")]
    calls = sum(use["calls"] for use in bought)
    return texts + sum(use["dollars"] for use in bought) / max(calls, 1) * sum(summary["images"].values())
