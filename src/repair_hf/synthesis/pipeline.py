"""Synthesis: turn mined failures into records.

Every answer and every candidate image is on disk before it is used. After a crash the same call asks again only what
was in flight, and gives the same records. Candidates are selected at the end, embedded in batches.

Several processes (`accelerate launch`) share the failures, so that equal work falls to one process. All pay from one
ledger, and the main process builds the records. The number of processes may change between runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from repair_hf.encoder.embedder import Embedder
from repair_hf.llm.client import ChatModel
from repair_hf.llm.cost import merged_usage
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.ledger_file import FILE
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.columns import DROPPED_FEATURES
from repair_hf.records.dataset import build
from repair_hf.runtime.processes import processes
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.options import Format, RepairOptions
from repair_hf.synthesis.own import OwnEditor, OwnLLM, PythonEditor, id_of, own_llm
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.selection import select_captions, select_images
from repair_hf.synthesis.sources import SourceImages
from repair_hf.synthesis.workers import RepairWorkers

RECORDS, DROPPED = "records.arrow", "dropped.arrow"


class Repaired(NamedTuple):
    """What became of failures: records, dropped ones, and how many are still open because `stop` ended the run."""

    records: Dataset
    dropped: Dataset
    open: int
    stop: BaseException | None


class Synthesizer:
    """Turn mined failures into (q, gt, fp, edit) records.

    Args:
        pairs: What the failures were mined from.
        encoder: The retriever that failed; it chooses among the candidates.
        chat: The LLM: a `ChatModel` with the ledger that keeps its answers, beside which candidate images lie; or a
            function, as for `synthesize`, whose ledger is in the folder of the run.
        editor: The image editor: an `ImageEditor`, a `HostedEditor`, or a function, as for `synthesize`.
        round: Number of this round of repair; later rounds start from the repaired retriever.
        save_as: Format of new candidate images.
        options: Fields of `RepairOptions`, such as `candidates=5` or `audited=False`.

    Attributes:
        images_made: How many candidate images the last run made, in all processes.
        images_found: How many were there from an earlier run.
        image_dollars: What these and those have cost at a provider.

    Example:
        >>> records, dropped = Synthesizer(pairs, encoder, chat, editor).run(failures, "runs/synthesize")
        >>> save_records("runs/synthesize", records, dropped)
    """

    def __init__(
        self,
        pairs: Pairs,
        encoder: Embedder,
        chat: ChatModel | OwnLLM,
        editor: ImageEditor | HostedEditor | OwnEditor,
        *,
        round: int = 1,
        save_as: Format = "png",
        **options: Any,
    ) -> None:
        self.options, self.round = RepairOptions(**options), round
        self.save_as, self.encoder, self._llm = save_as, encoder, None if isinstance(chat, ChatModel) else id_of(chat)
        if isinstance(chat, ChatModel):
            self.chat = chat
        is_editor = isinstance(editor, HostedEditor) or hasattr(editor, "edit")
        self.editor: Any = editor if is_editor else PythonEditor(id_of(editor))  # type: ignore[arg-type]
        self.builder = RecordBuilder(pairs, SourceImages(pairs.images, longest_side=self.options.image_side))
        self.images_made, self.images_found, self.image_dollars = 0, 0, 0.0

    def run(self, failures: Dataset, folder: str | Path) -> tuple[Dataset, Dataset]:
        """Repair all failures, continuing from what an earlier run left in `folder`.

        Args:
            failures: Rows of `mine_false_positives` on the same pairs.
            folder: Gets the files behind the two datasets.

        Returns:
            records and dropped, to be saved with `save_records`; the same in every process.

        Raises:
            UserError: If the failures were mined from other pairs.
            RunStopped: If a provider or the editor failed, a ceiling is reached, or answers will come with a batch.
                The same call continues from there.
        """
        done = self.repair(failures, folder)
        if done.stop is not None:
            raise done.stop
        return done.records, done.dropped

    def repair(self, failures: Dataset, folder: str | Path) -> Repaired:
        """As `run`, but if it is stopped, or interrupted, return what was finished until then."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self._llm is None:
            return self._repair(failures, folder)
        with Ledger(folder / FILE) as ledger:
            self.chat = ChatModel(self._llm, ledger=ledger, provider=own_llm(self._llm))
            return self._repair(failures, folder)

    def _repair(self, failures: Dataset, folder: Path) -> Repaired:
        self.builder.check(failures)
        tasks, stop = self._share([self.builder.task(row) for row in failures.to_list()])
        if processes().is_main:
            self._build(tasks, folder)
        processes().gather(None)  # the files are there
        records, dropped = (Dataset.from_file(str(folder / name)) for name in (RECORDS, DROPPED))
        return Repaired(records, dropped, len(failures) - len(tasks), stop)

    def _share(self, tasks: list[RepairTask]) -> tuple[list[RepairTask], BaseException | None]:
        """Finish this process's own tasks; return the finished ones of all processes in their order, and what stopped.

        Raises:
            KeyboardInterrupt: With several processes, of which the others may be gone.
        """
        everyone, stop = processes(), None
        own = dict(enumerate(tasks))
        if everyone.count > 1:  # tasks that share questions or edits fall to one process
            own = {at: task for at, task in own.items() if everyone.owns(self.builder.content(task, "fp"))}
        images = Candidates(
            self.editor,
            self.builder.sources,
            self.chat.ledger,
            count=self.options.candidates,
            seed=self.options.seed,
            save_as=self.save_as,
        )
        try:
            run_to_end(self._work(list(own.values()), images))
        except (RunStopped, KeyboardInterrupt) as error:
            if everyone.count > 1 and isinstance(error, KeyboardInterrupt):
                raise
            stop = error
        own = {at: task for at, task in own.items() if task.is_finished}
        why = None if stop is None else str(stop)
        dollars = images.usage.dollars + images.usage.dollars_saved
        reports = everyone.gather((why, own, images.made, images.found, dollars, self.chat.usage))
        reasons = [f"process {index}: {why}" for index, (why, *_) in enumerate(reports) if why is not None]
        if reasons and everyone.count > 1:
            stop = RunStopped(f"{len(reasons)} of {len(reports)} processes stopped. {' '.join(reasons)}")
        _, parts, made, found, image_dollars, usages = zip(*reports, strict=True)
        self.images_made, self.images_found, self.image_dollars = sum(made), sum(found), sum(image_dollars)
        self.chat.usage = merged_usage(usages)
        finished = {at: task for part in parts for at, task in part.items()}
        return [finished[at] for at in sorted(finished)], stop

    def _build(self, tasks: list[RepairTask], folder: Path) -> None:
        """Select among the candidates, and write the files behind the two datasets."""
        self._select(tasks)
        made_by = {
            "round": self.round,
            "retriever": self.encoder.name,
            "llm": self.chat.model,
            "editor": self.editor.id,
            "prompt_digest": self.chat.prompts.digest(),
            "seed": self.options.seed,
        }
        records = (self.builder.record(task) | made_by for task in tasks if task.reason is None)
        dropped = (self.builder.columns(task) | made_by for task in tasks if task.reason is not None)
        build(records, folder / RECORDS)
        build(dropped, folder / DROPPED, DROPPED_FEATURES)

    def _select(self, tasks: list[RepairTask]) -> None:
        edited = [task for task in tasks if task.reason is None]
        captions = [task for task in edited if task.direction == "i2t"]
        images = [task for task in edited if task.direction == "t2i"]
        texts = [self.builder.captions[task.at["fp"]] for task in captions]
        selections = [
            *select_captions(self.encoder, texts, [task.candidates for task in captions], select=self.options.select),
            *select_images(
                self.encoder,
                self.builder.sources,
                [task.at["fp"] for task in images],
                [task.candidates for task in images],
                select=self.options.select,
            ),
        ]
        for task, selection in zip([*captions, *images], selections, strict=True):
            task.selection = selection
            if selection.candidate is None:
                task.drop("no_op", "no candidate differs from the false positive")

    async def _work(self, tasks: list[RepairTask], images: Candidates) -> None:
        await self.chat.collect()
        with Progress(total=len(tasks), desc="Repairing", unit=" failures", smoothing=0.05) as bar:
            workers = RepairWorkers(self.chat, images, self.builder, self.options, bar=bar)
            await workers.run(tasks)
        await self.chat.submit(workers.waiting)


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
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
                thread.submit(loop.run_until_complete, task).result()
            except KeyboardInterrupt:
                loop.call_soon_threadsafe(task.cancel)
                raise
    finally:
        loop.close()
