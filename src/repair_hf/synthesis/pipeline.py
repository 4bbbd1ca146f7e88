"""Synthesis: failures in, records out.

In:  mined failures (rows of `mine_false_positives`), the pairs that they were mined from, an encoder, an LLM, an image editor.
Out: records, and what was dropped with its reason, both in the order of the failures.

What was paid or drawn is on disk before it is used (the LLM's journal, the candidate images). So a run that was killed goes on with the
same call, asks again only what was in flight, and gives the same records. The candidates are chosen at the end, embedded in
batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from repair_hf.encoder import DualEncoder
from repair_hf.llm.client import ChatModel
from repair_hf.options import UserError
from repair_hf.pairs import Pairs
from repair_hf.records import build, record_id
from repair_hf.records.columns import DROPPED_FEATURES, MODALITIES, SOURCES
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.prompts import prompt_digest
from repair_hf.synthesis.selection import choose_captions, choose_images
from repair_hf.synthesis.sources import SourceImages
from repair_hf.synthesis.stream import Repair, Stream

ROUND = 1  # of repair; later rounds start from the repaired retriever
SCORES = ("fp_score", "fp_rank", "gt_score", "gt_rank")


class Synthesizer:
    """Turns mined failures into (q, gt, fp, edit) records.

    Args:
        pairs: What the failures were mined from.
        encoder: The retriever that failed; it chooses among the candidates.
        chat: The LLM, with the journal that remembers its answers.
        editor: The image editor.
        candidates: M, how many edits to make of each false positive.
        seed: Fixes the draws of the LLM and of the editor.
        attach_image: Show the query image to the LLM that edits a caption.
        workers: Failures in flight per direction.

    Example:
        >>> records, dropped = Synthesizer(pairs, encoder, chat, editor).run(failures, "runs/synthesize")
        >>> save_records("runs/synthesize", records, dropped)
    """

    def __init__(
        self,
        pairs: Pairs,
        encoder: DualEncoder,
        chat: ChatModel,
        editor: ImageEditor,
        *,
        candidates: int = 3,
        seed: int = 0,
        attach_image: bool = False,
        workers: int = 64,
    ) -> None:
        if candidates < 1 or workers < 1:
            raise UserError(f"`candidates` and `workers` must be at least 1, got {candidates} and {workers}.")
        self.pairs, self.encoder, self.chat, self.editor = pairs, encoder, chat, editor
        self.candidates, self.seed, self.attach_image, self.workers = candidates, seed, attach_image, workers
        self.images_made, self.images_found = 0, 0  # by the last run: new, and left by an earlier one
        self.sources = SourceImages(pairs.images)
        self.captions: list[str] = pairs.captions["caption"][:]
        self.ids = {"text": pairs.captions["caption_id"][:], "image": pairs.images["image_id"][:]}
        self.image_of = pairs.caption_image  # (M,)

    def run(self, failures: Dataset, folder: str | Path) -> tuple[Dataset, Dataset]:
        """Repair all failures, going on from whatever an earlier run left in `folder`.

        Args:
            failures: Rows of `mine_false_positives` on these very pairs.
            folder: Gets the candidate images, and the files behind the two datasets.

        Returns:
            records and dropped, to be saved with `save_records`.

        Raises:
            UserError: If the failures were mined from other pairs.
            RunStopped: If the provider or the editor's process failed for good; the same call goes on from there.
        """
        self._check(failures)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        repairs = [self._repair(row) for row in failures.to_list()]
        _run(self._stream(repairs, folder))
        self._select(repairs)
        made_by = {
            "round": ROUND,
            "retriever": _name(self.encoder),
            "llm": self.chat.model,
            "editor": self.editor.id,
            "prompt_digest": prompt_digest(),
            "seed": self.seed,
        }
        records = (self._record(repair) | made_by for repair in repairs if repair.reason is None)
        dropped = (self._told(repair) | made_by for repair in repairs if repair.reason is not None)
        return build(records, folder / "records.arrow"), build(dropped, folder / "dropped.arrow", DROPPED_FEATURES)

    def _check(self, failures: Dataset) -> None:
        if missing := {"direction", *SOURCES, *SCORES} - set(failures.column_names):
            raise UserError(
                f"Failures lack {sorted(missing)}; they have {failures.column_names}. Make them with `repair-hf mine`."
            )
        rows = failures.select_columns(["direction", *SOURCES]).to_list()
        counts = {kind: len(ids) for kind, ids in self.ids.items()}
        for role in SOURCES:
            is_outside = [row[role] >= counts[MODALITIES[row["direction"]][role]] for row in rows]
            named = failures[f"{role}_id"][:] if f"{role}_id" in failures.column_names else None
            is_other = [
                outside or (named is not None and self._id(row["direction"], role, row[role]) != name)
                for row, outside, name in zip(rows, is_outside, named or [None] * len(rows), strict=True)
            ]
            if any(is_other):
                raise UserError(
                    f"{sum(is_other)} of {len(rows)} failures name a {role} that these pairs do not have in that place, first in "
                    f"row {int(np.argmax(is_other))}: they were mined from other pairs. Give the pairs and the split that `repair-hf mine` had."
                )

    def _id(self, direction: str, role: str, index: int) -> str:
        return self.ids[MODALITIES[direction][role]][index]

    def _repair(self, row: dict) -> Repair:
        """The audit's ground truth is, for a caption, its own image, and for an image its first caption."""
        is_t2i = row["direction"] == "t2i"
        gt = self.image_of[row["q"]] if is_t2i else self.pairs.captions_of(row["q"])[0]
        return Repair(row, {"q": row["q"], "gt": int(gt), "fp": row["fp"]})

    async def _stream(self, repairs: list[Repair], folder: Path) -> None:
        count, seed = self.candidates, self.seed
        images = Candidates(self.editor, self.sources, folder / "candidates", count=count, seed=seed)
        with tqdm(total=len(repairs), desc="Repairing", unit=" failures", smoothing=0.05, disable=None) as bar:
            stream = Stream(
                self.chat,
                images,
                self.sources,
                self.captions,
                candidates=count,
                seed=seed,
                attach_image=self.attach_image,
                bar=bar,
            )
            await stream.run(repairs, self.workers)
        self.images_made, self.images_found = images.made, images.found

    def _select(self, repairs: list[Repair]) -> None:
        edited = [repair for repair in repairs if repair.reason is None]
        captions = [repair for repair in edited if repair.direction == "i2t"]
        images = [repair for repair in edited if repair.direction == "t2i"]
        texts = [self.captions[repair.at["fp"]] for repair in captions]
        rows = [repair.at["fp"] for repair in images]
        choices = [
            *choose_captions(self.encoder, texts, [repair.candidates for repair in captions]),
            *choose_images(self.encoder, self.sources, rows, [repair.candidates for repair in images]),
        ]
        for repair, choice in zip([*captions, *images], choices, strict=True):
            repair.choice = choice
            if choice.candidate is None:
                repair.drop("no_op", "no candidate differs from the false positive")

    def _record(self, repair: Repair) -> dict:
        row = self._told(repair)
        for role in SOURCES:
            if MODALITIES[repair.direction][role] == "image":
                row[f"{role}_image"] = self.sources.reference(repair.at[role])
        choice, edit = repair.choice, repair.candidates[repair.choice.candidate]
        if repair.direction == "t2i":
            row["edit_image"] = {"bytes": None, "path": str(edit.absolute())}
            row["record_id"] = record_id(row, edit.read_bytes())
        else:
            row["edit_text"] = edit
            row["record_id"] = record_id(row, edit)
        return row | {
            "edit_similarity": choice.similarity,
            "candidate_similarities": list(choice.similarities),
            "candidate": choice.candidate,
        }

    def _told(self, repair: Repair) -> dict:
        """The columns that records and dropped failures share."""
        row = {"direction": repair.direction} | {name: repair.row[name] for name in SCORES}
        for role in SOURCES:
            index = repair.at[role]
            row[f"{role}_id"] = self._id(repair.direction, role, index)
            if MODALITIES[repair.direction][role] == "text":
                row[f"{role}_text"] = self.captions[index]
        if repair.verdict is not None:
            row |= {"gt_reason": repair.verdict.gt_reason, "fp_reason": repair.verdict.fp_reason}
        if repair.reason is not None:
            row |= {"reason": repair.reason, "detail": repair.detail}
        return row | {"edit_instruction": repair.instruction, "error_types": repair.error_types}


def _name(encoder: DualEncoder) -> str:
    """Hub id (of a folder its last part) and digest of the weights."""
    name = encoder.model.name_or_path
    return f"{Path(name).name if Path(name).is_dir() else name}@{encoder.digest}"


def _run(work: Coroutine) -> Any:
    """Run to the end, also in a notebook, whose own event loop is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    try:
        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(loop.run_until_complete, task).result()
            except KeyboardInterrupt:
                loop.call_soon_threadsafe(task.cancel)
                raise
    finally:
        loop.close()
