"""Make the records of RePair and its variants, with the same commands that a user types.

All variants pay from the study's ledger, so common requests are paid once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, concatenate_datasets

from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.llm.ledger_file import has_payments
from repair_hf.mining.failures import load_failures
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import changed, flags
from repair_hf.runtime.own_files import read_json
from repair_hf.runtime.run_folder import digest, write_atomically
from repair_hf.study.methods.method import RepairVariant
from repair_hf.study.methods.samples import places_of_share
from repair_hf.study.setting import Knobs, Setting
from repair_hf.study.spending import Cost, Product


class RepairRecords:
    """Mines and repairs, in one folder for the failures and one for the records of each round."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting, self.folder = setting, folder

    def make(self, variant: RepairVariant, knobs: Knobs) -> Product:
        """Mine and repair in all rounds of a variant; finished folders are reused."""
        records, folders = self.make_rounds(variant, knobs)
        llm_each, images_each = calls_per_record(records, is_audited=variant.synthesize.get("audited", True))
        everything, records = records, variant.select.of(records) if variant.select else records
        llm_calls, image_calls, dollars = cost_of(folders, _shares(records, everything))
        cost = Cost(
            samples=int(has_edit(records).sum()),
            llm_calls=llm_calls,
            image_calls=image_calls,
            llm_per_sample=llm_each,
            images_per_sample=images_each,
            dollars=dollars,
        )
        return Product(records, cost, digest(records["record_id"][:]))

    def make_rounds(self, variant: RepairVariant, knobs: Knobs) -> tuple[Dataset, list[Path]]:
        """Return the records of all rounds together, and their folders. Each round's retriever mines the next."""
        if self.setting.has_records(variant):
            return self.setting.given_records, [Path(place) for place in self.setting.records]
        folders = [self.folder / f"{variant.product}-records"]
        self._mine_and_repair(variant, self.setting.model_of(variant), variant.product, [])
        for number in range(2, variant.rounds + 1):
            name = f"{variant.product}-round-{number}--{knobs.name}"
            retriever = self.folder / f"{name}-retriever"
            self.setting.type_command(
                "train", *flags(changed(self.setting.pairs_options)), "--model", self.setting.model_of(variant),
                "--output", str(retriever), "--records", *map(str, folders),
                *flags({**self.setting.training, **variant.train, **knobs.as_options()}),
            )  # fmt: skip
            self._mine_and_repair(variant, str(retriever), name, folders)
            folders.append(self.folder / f"{name}-records")
        records = load_records([str(folder) for folder in folders])
        if variant.reciprocal:
            mined = _failures(self.folder / f"{variant.product}-failures", "t2i")
            kept = {(row["fp_id"], row["q_id"]) for row in records.select_columns(["q_id", "fp_id"])}
            records = _with_pointers(records, [row for row in mined if _pair(row) in kept])
        for side in set(DIRECTIONS) - set(variant.directions):  # failures that are not repaired cost nothing
            records = _with_pointers(records, _failures(self._mine_pointers(variant, side), side))
        return records, folders

    def _mine_pointers(self, variant: RepairVariant, side: str) -> Path:
        """Mine the failures of a direction that a variant does not repair, in a folder of their own."""
        setting, folder = self.setting, self.folder / f"{variant.product}-{side}-failures"
        none = {f"d_{repaired}": 0 for repaired in variant.directions}
        setting.type_command(
            "mine", *flags(changed(setting.pairs_options)),
            "--model", setting.model_of(variant), "--output", str(folder),
            *flags(setting.mine | dict(variant.mine) | none),
        )  # fmt: skip
        return folder

    def _mine_and_repair(self, variant: RepairVariant, model: str, name: str, earlier: list[Path]) -> None:
        """Make the failures and the records of one round."""
        setting = self.setting
        pairs = [*flags(changed(setting.pairs_options)), "--model", model]
        failures, records = self.folder / f"{name}-failures", self.folder / f"{name}-records"
        none = {f"d_{side}": 0 for side in DIRECTIONS if side not in variant.directions}
        setting.type_command(
            "mine", *pairs, "--output", str(failures), *flags(setting.mine | dict(variant.mine) | none)
        )
        if variant.reciprocal:
            failures = mirror_failures(failures)
        others = [] if earlier or not shares_answers(variant, setting) else setting.records
        paid = [place for place in others if Path(place).is_dir() and has_payments(place)]
        setting.type_command(
            "synthesize", *pairs, "--failures", str(failures), "--output", str(records),
            *flags(changed(setting.llm_of(variant))), *flags(changed(setting.editor_of(variant))),
            "--no-embed-source-images",
            *flags(variant.synthesize), *(["--earlier-rounds", *map(str, earlier)] if earlier else []),
            *(["--answers-from", *paid] if paid else []),
        )  # fmt: skip


def has_edit(records: Dataset) -> np.ndarray:
    """Return which records hold an edit, (n,); the others point at existing pairs."""
    return np.array([similarities is not None for similarities in records["candidate_similarities"][:]], bool)


def share_of_records(records: Dataset, share: float) -> Dataset:
    """Select a random share of the records with an edit.

    A record without an edit stays with the one that repairs the same pair; if there is none it always stays.
    """
    if share >= 1:
        return records
    is_own = has_edit(records)
    own = np.flatnonzero(is_own)
    is_kept = np.zeros(len(records), bool)
    is_kept[own[places_of_share(len(own), share)]] = True
    items = list(zip(records["q_id"][:], records["fp_id"][:], strict=True))
    lost = {items[place] for place in np.flatnonzero(is_own & ~is_kept)}
    for place in np.flatnonzero(~is_own):
        is_kept[place] = items[place][::-1] not in lost
    return records.select(np.flatnonzero(is_kept))


def without_edits(records: Dataset) -> Dataset:
    """Leave the edits of records out; a false positive is then opposite an annotated item."""
    for name in ("edit_text", "edit_image"):
        records = records.remove_columns(name).add_column(name, [None] * len(records))
    return records


def shares_answers(variant: RepairVariant, setting: Setting) -> bool:
    """Return whether a variant makes the same requests as others, so that they can share answers.

    Another retriever has other failures, and another LLM gives other answers.
    """
    return variant.records and not variant.other_model and setting.llm_of(variant) == setting.llm


def calls_per_record(records: Dataset, *, is_audited: bool) -> tuple[float, float]:
    """Return LLM requests and candidate images for a record with an edit: audit, instruction, and M edits."""
    llm = images = 0
    kept = np.flatnonzero(has_edit(records))
    for row in records.select(kept).select_columns(["direction", "candidate_similarities"]):
        candidates = len(row["candidate_similarities"])
        llm += is_audited + 1 + (candidates if row["direction"] == "i2t" else 0)
        images += candidates if row["direction"] == "t2i" else 0
    return llm / max(len(kept), 1), images / max(len(kept), 1)


def cost_of(folders: Sequence[Path], shares: Mapping[str, float]) -> tuple[int | None, int | None, float | None]:
    """Return the LLM requests, the candidate images and the dollars of a share of each direction's synthesis.

    All are unknown if one of the folders is not of a synthesis on this machine, such as a dataset of the Hub.
    """
    if not all((folder / "summary.json").is_file() for folder in folders):
        return None, None, None
    summaries = [read_json(folder / "summary.json", needs=("llm", "paid", "images")) for folder in folders]
    uses = [use for summary in summaries for use in summary["llm"]]
    llm_calls = sum((use["calls"] + use["replayed"]) * shares.get(use["direction"], 1.0) for use in uses)
    images = sum(summary["images"]["made"] + summary["images"]["found"] for summary in summaries) * shares.get(
        "t2i", 1.0
    )
    dollars = [price for summary in summaries if (price := _dollars(summary, shares)) is not None]
    return round(llm_calls), round(images), sum(dollars) if len(dollars) == len(summaries) else None


def _dollars(summary: Mapping[str, Any], shares: Mapping[str, float]) -> float | None:
    """Price of the requests of one synthesis, also of those that were paid before."""
    if any(use["unpriced"] for use in summary["paid"]):
        return None
    texts = sum((use["dollars"] + use["dollars_saved"]) * shares.get(use["direction"], 1.0) for use in summary["llm"])
    images = summary["images"].get("dollars")  # earlier versions did not write it
    return None if images is None else texts + images * shares.get("t2i", 1.0)


def _shares(some: Dataset, all_of_them: Dataset) -> dict[str, float]:
    """Return by direction the share of the edits that `some` records hold."""
    counts = [Counter(np.array(records["direction"][:])[has_edit(records)]) for records in (some, all_of_them)]
    return {direction: counts[0][direction] / count for direction, count in counts[1].items()}


def mirror_failures(folder: Path) -> Path:
    """Turn a caption's failure into one of the wrong image: the image asks, and the caption is its false positive.

    `fp_score` is the same from both sides; `fp_rank` stays the rank of the image for the caption. The Parquet file
    that is returned has each pair of query and false positive once.
    """
    table = load_failures(folder).to_pandas()
    is_t2i = table["direction"] == "t2i"
    mirrored = table[is_t2i].assign(
        direction="i2t", q=table["fp"], fp=table["q"], q_id=table["fp_id"], fp_id=table["q_id"]
    )
    i2t = table[~is_t2i]
    by_image = i2t.drop_duplicates("q").set_index("q")
    mirrored = mirrored[mirrored["q"].isin(by_image.index)]  # no ground truth is known for other images
    for name in ("gt", "gt_id", "gt_score", "gt_rank"):
        mirrored[name] = by_image.loc[mirrored["q"], name].to_numpy()
    both = pd.concat([i2t, mirrored]).drop_duplicates(["q", "fp"])
    file = folder / "mirrored.parquet"
    write_atomically(file, both.to_parquet(index=False))
    return file


def _failures(folder: Path, direction: str) -> list[dict[str, Any]]:
    return [row for row in load_failures(folder).to_list() if row["direction"] == direction]


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["q_id"], row["fp_id"]


def _with_pointers(records: Dataset, failures: Sequence[Mapping[str, Any]]) -> Dataset:
    """Add a record without an edit for each of some failures."""
    pointers = [
        dict.fromkeys(records.column_names)
        | {name: row[name] for name in ("direction", "q_id", "gt_id", "fp_id", "fp_score")}
        | {"record_id": digest([*_pair(row)]), "error_types": []}
        for row in failures
    ]
    return (
        concatenate_datasets([records, Dataset.from_list(pointers, features=records.features)])
        if pointers
        else records
    )
