"""Synthesis: failures in, records out.

In:  mined failures (rows of `mine_false_positives`), the pairs that they were mined from, an encoder, an LLM, an image editor.
Out: records, and what was dropped with its reason, both in the order of the failures.

What was paid or drawn is on disk before it is used (the LLM's journal, the candidate images). So a run that was killed goes on with the
same call, asks again only what was in flight, and gives the same records. The candidates are chosen at the end, embedded in
batches.

Several processes (`accelerate launch`) share the failures out among them, so that equal work falls to one. Each leaves its answers and
images in the folder; when all are done the main process goes through all failures once more, finds everything there, and builds the
records. So it does not matter how many processes an earlier run had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from tqdm.auto import tqdm

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.client import ChatModel
from repair_hf.llm.cost import Usage
from repair_hf.llm.journal import Journal, open_journal, shards
from repair_hf.llm.prompts import prompt_digest
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.columns import DROPPED_FEATURES, MODALITIES
from repair_hf.records.dataset import build
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.rows import Rows
from repair_hf.synthesis.selection import choose_captions, choose_images
from repair_hf.synthesis.sources import LONGEST_SIDE, SourceImages, UnreadableImage
from repair_hf.synthesis.stream import Repair, Stream

RECORDS, DROPPED = "records.arrow", "dropped.arrow"


class Synthesizer:
    """Turns mined failures into (q, gt, fp, edit) records.

    Args:
        pairs: What the failures were mined from.
        encoder: The retriever that failed; it chooses among the candidates.
        chat: The LLM, with the journal that remembers its answers.
        editor: The image editor.
        candidates: M, how many edits to make of each false positive.
        select: Which of them is kept: the one `nearest` to the false positive, or the `first`.
        audited: Audit failures first; if not, every one is taken for a real one.
        seed: Fixes the draws of the LLM and of the editor.
        attach_image: Show the query image to the LLM that edits a caption.
        grouped_audit: Audit all false positives of an image in one request.
        candidates_in_one_request: Ask for the M edits of a caption in one request.
        image_side: Longest side of the images that the LLM is sent, in pixels.
        round: Number of this round of repair; later ones start from the repaired retriever.
        workers: Failures in flight per direction.

    Attributes:
        images_made: How many candidate images the last run has made, all processes together.
        images_found: How many an earlier one had left.
        watch: Told of every failure that is through, if it is set; in the main process alone.

    Example:
        >>> records, dropped = Synthesizer(pairs, encoder, chat, editor).run(failures, "runs/synthesize")
        >>> save_records("runs/synthesize", records, dropped)
    """

    def __init__(
        self,
        pairs: Pairs,
        encoder: DualEncoder,
        chat: ChatModel,
        editor: ImageEditor | HostedEditor,
        *,
        candidates: int = 3,
        select: Literal["nearest", "first"] = "nearest",
        audited: bool = True,
        seed: int = 0,
        attach_image: bool = False,
        grouped_audit: bool = False,
        candidates_in_one_request: bool = False,
        image_side: int = LONGEST_SIDE,
        round: int = 1,
        workers: int = 64,
    ) -> None:
        if candidates < 1 or workers < 1:
            raise UserError(f"`candidates` and `workers` must be at least 1, got {candidates} and {workers}.")
        self.pairs, self.encoder, self.chat, self.editor = pairs, encoder, chat, editor
        self.candidates, self.seed, self.round, self.workers = candidates, seed, round, workers
        self.grouped_audit, self.select = grouped_audit and audited, select
        self._asking = {
            "audited": audited,
            "attach_image": attach_image,
            "grouped_audit": self.grouped_audit,
            "together": candidates_in_one_request,
        }
        self.images_made, self.images_found = 0, 0
        self._image_bills: list[Usage] = []
        self.watch: Callable[[Repair], None] | None = None
        self._counted: set[Path] = set()  # journals whose payments the budget knows
        self.sources = SourceImages(pairs.images, longest_side=image_side)
        self.rows = Rows(pairs, self.sources)
        self.captions = self.rows.captions
        self.image_of = pairs.caption_image  # (M,)

    @property
    def dollars(self) -> float:
        """What this process has paid so far, for answers and for images, as far as prices are known."""
        return self.chat.dollars + sum(bill.dollars for bill in self._image_bills)

    def run(self, failures: Dataset, folder: str | Path) -> tuple[Dataset, Dataset]:
        """Repair all failures, going on from whatever an earlier run left in `folder`.

        Args:
            failures: Rows of `mine_false_positives` on these very pairs.
            folder: Gets the candidate images, and the files behind the two datasets.

        Returns:
            records and dropped, to be saved with `save_records`; the same in every process.

        Raises:
            UserError: If the failures were mined from other pairs.
            RunStopped: If a provider, the budget or the editor's process gave out, or answers come with a batch; the same call goes
                on from there.
        """
        self.rows.check(failures)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        repairs = [self._repair(row) for row in failures.to_list()]
        everyone = processes()
        self._share(repairs, folder)
        if everyone.is_main:
            self._build(repairs, folder)
        everyone.gather(None)  # the files are there
        return Dataset.from_file(str(folder / RECORDS)), Dataset.from_file(str(folder / DROPPED))

    def _share(self, repairs: list[Repair], folder: Path) -> None:
        """Take all failures through: this process its own, and then the main process all, which finds them done."""
        everyone, stopped = processes(), None
        own = [repair for repair in repairs if everyone.count == 1 or everyone.owns(self._work_name(repair))]
        with self._image_journal(folder) as journal:
            images = self._candidates(folder, journal)
            everyone.gather(None)  # all know what earlier runs have paid before one of them pays more
            try:
                _run(self._stream(own, images))
            except RunStopped as stop:  # the others may still finish their own; what they have is kept
                if everyone.count == 1:
                    raise
                stopped = str(stop)
        self._add_up(everyone.gather((stopped, images.made, images.found, self.chat.usage)))
        if everyone.count > 1 and everyone.is_main:
            self._take_over(repairs, folder)

    def _take_over(self, repairs: list[Repair], folder: Path) -> None:
        """Fill in what the other processes have found. What failed with them is asked once more, and paid for like all else."""
        replayed = {place: (use.replayed, use.dollars_saved) for place, use in self.chat.usage.items()}
        self.chat.journal.read_anew(shards(self.chat.journal.path.parent))
        with self._image_journal(folder) as journal:
            images = self._candidates(folder, journal)
            _run(self._stream(repairs, images))
        self.images_made += images.made
        for place, use in self.chat.usage.items():  # what another process has asked was not there from an earlier run
            use.replayed, use.dollars_saved = replayed.get(place, (0, 0.0))

    def _add_up(self, said: list[tuple[str | None, int, int, Usage, dict]]) -> None:
        """What the processes did, together. Where one could not finish, none goes on."""
        if reasons := [f"process {index}: {why}" for index, (why, *_) in enumerate(said) if why is not None]:
            raise RunStopped(f"{len(reasons)} of {len(said)} processes stopped. {' '.join(reasons)}")
        _, made, found, usages = zip(*said, strict=True)
        self.images_made, self.images_found = sum(made), sum(found)
        keys = {key for usage in usages for key in usage}
        self.chat.usage = {key: _sum([usage[key] for usage in usages if key in usage]) for key in keys}

    def _build(self, repairs: list[Repair], folder: Path) -> None:
        """Choose among the candidates, and write the files behind the two datasets."""
        self._select(repairs)
        made_by = {
            "round": self.round,
            "retriever": _name(self.encoder),
            "llm": self.chat.model,
            "editor": self.editor.id,
            "prompt_digest": prompt_digest(),
            "seed": self.seed,
        }
        records = (self.rows.record(repair) | made_by for repair in repairs if repair.reason is None)
        dropped = (self.rows.told(repair) | made_by for repair in repairs if repair.reason is not None)
        build(records, folder / RECORDS)
        build(dropped, folder / DROPPED, DROPPED_FEATURES)

    def _work_name(self, repair: Repair) -> str:
        """Failures of one name share questions or edits: those of one false positive, or of one query where they are audited together."""
        role = "q" if self.grouped_audit and repair.direction == "i2t" else "fp"
        at = repair.at[role]
        if MODALITIES[repair.direction][role] == "text":
            return self.captions[at]
        try:
            return self.sources.digest(at)
        except UnreadableImage:
            return self.rows.ids["image"][at]

    def _repair(self, row: dict) -> Repair:
        """The audit's ground truth is, for a caption, its own image, and for an image its first caption."""
        is_t2i = row["direction"] == "t2i"
        gt = self.image_of[row["q"]] if is_t2i else self.pairs.captions_of(row["q"])[0]
        return Repair(row, {"q": row["q"], "gt": int(gt), "fp": row["fp"]})

    async def _stream(self, repairs: list[Repair], images: Candidates) -> None:
        is_quiet = None if processes().is_main else True
        await self.chat.collect()
        with tqdm(total=len(repairs), desc="Repairing", unit=" failures", smoothing=0.05, disable=is_quiet) as bar:
            stream = Stream(
                self.chat,
                images,
                self.sources,
                self.captions,
                candidates=self.candidates,
                seed=self.seed,
                bar=bar,
                watch=self.watch,
                **self._asking,
            )
            await stream.run(repairs, self.workers)
        if stream.waiting:
            await self.chat.batches.submit()
            raise self.chat.batches.stopped()

    def _candidates(self, folder: Path, journal: Journal | None) -> Candidates:
        images = Candidates(
            self.editor,
            self.sources,
            folder / "candidates",
            count=self.candidates,
            seed=self.seed,
            budget=self.chat.budget,
            journal=journal,
        )
        self._image_bills.append(images.usage)
        return images

    def _image_journal(self, folder: Path) -> Journal | nullcontext[None]:
        """Where payments for images are written down; what stands there counts as spent."""
        if not isinstance(self.editor, HostedEditor):
            return nullcontext()
        everyone = processes()
        journal = open_journal(folder, "images", process=everyone.index, processes=everyone.count)
        if journal.path not in self._counted:
            self._counted.add(journal.path)
            self.chat.budget.count(journal.dollars)
        return journal

    def _select(self, repairs: list[Repair]) -> None:
        edited = [repair for repair in repairs if repair.reason is None]
        captions = [repair for repair in edited if repair.direction == "i2t"]
        images = [repair for repair in edited if repair.direction == "t2i"]
        texts = [self.captions[repair.at["fp"]] for repair in captions]
        rows = [repair.at["fp"] for repair in images]
        candidates = [[repair.candidates for repair in some] for some in (captions, images)]
        choices = [
            *choose_captions(self.encoder, texts, candidates[0], select=self.select),
            *choose_images(self.encoder, self.sources, rows, candidates[1], select=self.select),
        ]
        for repair, choice in zip([*captions, *images], choices, strict=True):
            repair.choice = choice
            if choice.candidate is None:
                repair.drop("no_op", "no candidate differs from the false positive")


def _sum(uses: Iterable[Usage]) -> Usage:
    return Usage(*map(sum, zip(*(vars(use).values() for use in [Usage(), *uses]), strict=True)))


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
