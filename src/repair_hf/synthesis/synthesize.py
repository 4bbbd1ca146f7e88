"""Repair failures in one call: from failures to a folder of records, as `repair-hf synthesize` does.

Every answer and every candidate image is on disk before it is used. After a crash the same call asks again only what
was in flight, and gives the same records. Candidates are selected at the end, embedded in batches.

Several processes (`accelerate launch`) share the failures, so that equal work falls to one process. All pay from one
ledger, and the main process builds the records. The number of processes may change between runs.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import ProcessorMixin

from repair_hf.encoder.embedder import check_retriever
from repair_hf.encoder.opening import Retriever, open_retriever
from repair_hf.llm.asker import Asker
from repair_hf.llm.cost import format_dollars, known_dollars, merged_usage, paid_in, usage_rows
from repair_hf.llm.ledger_file import place_of
from repair_hf.mining.failures import load_failures, miner_of
from repair_hf.mining.filtering import FilterOptions, filter_failures
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.records.columns import DIRECTIONS
from repair_hf.records.dataset import load_records, summarize
from repair_hf.runtime.items import check_items
from repair_hf.runtime.options import IN_MEMORY, UserError, expect, fields_of, fill
from repair_hf.runtime.processes import processes
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.run_folder import RunStopped, digest
from repair_hf.runtime.stage import Stage
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.checks import ALL
from repair_hf.synthesis.finished import Finish, FinishedTasks, TaskFile
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.loop import run_to_stop, work_through
from repair_hf.synthesis.models import (
    check_models,
    local_weights,
    open_asker,
    open_editor,
    open_ledger,
    prompts_of,
)
from repair_hf.synthesis.options import EditorOptions, LLMOptions, SynthesizeOptions
from repair_hf.synthesis.outcome import can_add, count_unanswered, require_records
from repair_hf.synthesis.own import OwnEditor, OwnLLM, id_of
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.rounds import earlier_rounds, leave_out, names_in
from repair_hf.synthesis.sources import SourceImages
from repair_hf.synthesis.steps import repair

# Keys of a summary.
NEEDS = ("directions", "checked", "to_check", "open", "unanswered", "llm", "attempts", "images", "paid", "seconds")


def synthesize(
    failures: Dataset | str | Path,
    pairs: Pairs,
    model: Retriever,
    *,
    llm: str | OwnLLM,
    editor: str | OwnEditor,
    output: str | Path,
    processor: ProcessorMixin | None = None,
    **options: Any,
) -> Dataset:
    """Audit failures and edit their false positives into records, in a folder; the same call resumes.

    Args:
        failures: What `mine` returned, or a folder of `repair-hf mine`.
        pairs: What the failures were mined from.
        model: The retriever that failed, as in `mine`; it selects among the edits.
        llm: Id of the LLM, such as `gemini/gemini-3.5-flash-lite`, or a function that takes a request in OpenAI's chat
            format (a dict with `messages` and more) and returns the text of the answer.
        editor: Id of the image editor, such as `black-forest-labs/FLUX.2-klein-4B`, or a function that takes a PIL
            image, an instruction and a seed, and returns the edited image.
        output: Folder for records, ledger and candidate images, as `repair-hf synthesize` writes it.
        processor: The model's processor.
        options: Other options of `repair-hf synthesize`, such as `max_usd=5` or `limit=100`.

    Returns:
        The records, see `load_records`.

    Raises:
        UserError: If an argument is of a wrong type or not valid, or the failures are not of these pairs.
        RunStopped: If a provider or the budget stopped the run, or no failure became a record. `load_records` reads
            what was finished until then.

    Example:
        >>> records = synthesize(failures, pairs, model, llm="world/oracle", editor="world", output="runs/records")
    """
    expect(failures, (Dataset, str, Path), "failures", "what `mine` returns, or a folder of `repair-hf mine`")
    named = {"failures": IN_MEMORY if isinstance(failures, Dataset) else str(failures)}
    named |= {"llm": id_of(llm), "editor": id_of(editor)}
    named["model"] = str(model) if isinstance(model, str | Path) else IN_MEMORY
    kinds = (LLMOptions, EditorOptions, SynthesizeOptions)
    filled = fill(kinds, options | named, "synthesize")
    synthesis = Synthesis(failures, pairs, model, *filled, output=output, processor=processor)
    summary = synthesis.run()
    if processes().is_main:
        require_records(Path(output), summary, synthesis.llm.answer_attempts)
    processes().gather(None)
    return load_records(output)


class Synthesis:
    """What is to be repaired, loaded and checked; nothing is paid yet. The arguments are those of `synthesize`.

    Attributes:
        mined: Number of all failures.
        new: Failures that no earlier round has seen.
        failures: Those of them to repair.
        left_out: How many failures each option leaves out.
        stage: The folder.
    """

    def __init__(
        self,
        failures: Dataset | str | Path,
        pairs: Pairs,
        model: Retriever,
        llm: LLMOptions,
        editor: EditorOptions,
        options: SynthesizeOptions,
        *,
        output: str | Path,
        processor: ProcessorMixin | None = None,
    ) -> None:
        expect(pairs, Pairs, "pairs", MAKE_PAIRS)
        self.pairs, self.llm, self.editor, self.options = pairs, llm, editor, options
        table = failures if isinstance(failures, Dataset) else load_failures(failures)
        self.builder = RecordBuilder(pairs, SourceImages(pairs.images, longest_side=options.image_side))
        self.builder.check(table)
        self.encoder = open_retriever(model, processor, **options.how_to_load)
        if not isinstance(failures, Dataset):
            check_items(failures, pairs.items)
            if not options.any_model:
                check_retriever(self.encoder, [miner_of(failures)], f"The failures of {failures}")
        earlier, self.round = earlier_rounds(options.earlier_rounds or ())
        self.mined, self.new = len(table), leave_out(table, earlier)
        self.failures, self.left_out = filter_failures(self.new, options, options.seed)
        inputs = {
            "pairs_fingerprint": pairs.fingerprint,
            "model_digest": self.encoder.digest,
            "check_edits_all": options.check_edits == ALL,
            "prompt_digest": prompts_of(llm).digest(),
            "earlier_failures": digest(earlier) if earlier else None,
        }
        decides = (pairs.source, llm, editor, options)
        inputs |= local_weights(editor)
        # `model` by its digest; which failures, by those that the folder holds; a number of checks decides no record
        neutral = ("failures", "model", "check_edits", *fields_of(FilterOptions))
        named: dict[str, Any] = {"items": pairs.items, "needs": NEEDS, "otherwise": self._other_output(output)}
        named["writes"] = ("README.md", "*.arrow", "records/*.parquet", "dropped/*.parquet")
        self.stage = Stage("synthesize", output, decides, inputs, neutral=neutral, **named)
        self.stage.check()
        self._has_more = self._compare(Path(output))

    def _other_output(self, output: str | Path) -> str:
        path, _ = place_of(output, self.llm.ledger)
        return f"Give another --output, and --ledger {path}: what is paid there is not paid again."

    def _compare(self, folder: Path) -> bool:
        """Return whether failures are wanted that a finished folder lacks, or more checks than it has made.

        Raises:
            UserError: If some that it holds are not wanted any more: their records would be gone.
        """
        summary = self.stage.summary
        if summary is None or summary["open"]:
            return False
        held, wanted = names_in(folder), self.builder.names(self.failures)
        if gone := len(held - wanted):
            raise UserError(
                f"{folder} holds {gone:,} failures that these options leave out; a finished folder can only grow. "
                f"{self._other_output(folder)}"
            )
        kept, count = sum(way["kept"] for way in summary["directions"].values()), self.options.check_edits
        return len(held) < len(wanted) or (count != ALL and summary["to_check"] < min(count, kept))

    @property
    def is_done(self) -> bool:
        """Whether the folder is finished, and another run could make no more of it."""
        summary = self.stage.summary
        return summary is not None and not self._has_more and not can_add(summary, self.llm.answer_attempts)

    def run(self) -> dict[str, Any]:
        """Repair into the folder, and return its summary, which other processes than the main one lack.

        A finished folder is run again only if that can make more of it. What was finished before a stop or an
        interrupt is written before it is raised.

        Raises:
            UserError, RunStopped: As `synthesize`.
        """
        stop: BaseException | None = None
        summary = self.stage.summary
        if summary is not None and self.is_done:
            return summary
        check_models(self.llm, self.editor)
        processes().gather(None)  # all have read the summary, which the first one removes now

        def work(folder: Any) -> dict[str, Any]:
            nonlocal stop
            processes().gather(None)  # the first one has claimed the folder, in which all open the ledger now
            with open_ledger(self.llm, folder) as ledger:
                asker, editor = open_asker(self.llm, ledger), open_editor(self.editor, self.llm, ledger)
                self.stage.begin()
                summary, stop = self.repair_into(folder, asker, editor)
                return summary

        made = self.stage.run(work, again=True)
        if stop is not None:
            raise stop
        return made

    def repair_into(
        self, folder: Path, asker: Asker, editor: ImageEditor | HostedEditor
    ) -> tuple[dict[str, Any], BaseException | None]:
        """Repair what this process owns, and save the records in the main one; return the summary, and what stopped.

        Raises:
            KeyboardInterrupt: With several processes, of which the others may be gone.
        """
        start = time.perf_counter()
        everyone, ledger = processes(), asker.ledger
        settings: Any = {"count": self.options.candidates, "seed": self.options.seed}
        settings["save_as"] = self.editor.editor_format
        candidates = Candidates(editor, self.builder.sources, ledger.folder, **settings)
        finished = TaskFile(folder / f".finished-{everyone.index}.tmp", len(self.failures))
        stop: BaseException | None = run_to_stop(self._work(asker, candidates, finished))
        if everyone.count > 1 and isinstance(stop, KeyboardInterrupt):
            raise stop
        why = None if stop is None else str(stop)
        reports = everyone.gather((why, finished, candidates.made, candidates.reused, asker.usage))
        reasons = [f"process {index}: {why}" for index, (why, *_) in enumerate(reports) if why is not None]
        if reasons and everyone.count > 1:
            stop = RunStopped(f"{len(reasons)} of {len(reports)} processes stopped. {' '.join(reasons)}")
        if not everyone.is_main:
            return {}, everyone.gather(None)[0]  # what stopped the main process, which checks the edits
        _, files, made, reused, usages = zip(*reports, strict=True)
        finish = Finish(
            folder, FinishedTasks(files), self.builder, self.encoder, self.options, self._made_by(asker, editor.id)
        )
        checks, stop = finish.check(asker, stop)
        everyone.gather(stop and RunStopped(str(stop)))
        records, dropped = finish.save(checks)
        return {
            "directions": summarize(records, dropped),
            "checked": checks.rows(),
            "to_check": self.options.check_edits,
            "open": len(self.failures) - len(records) - len(dropped),
            "unanswered": count_unanswered(zip(dropped["reason"][:], dropped["detail"][:], strict=True)),
            "llm": usage_rows(merged_usage([asker.usage, *usages[1:]])),
            "attempts": asker.attempts,
            "images": {"made": sum(made), "reused": sum(reused)},
            "paid": usage_rows(paid_in(ledger.path, ledger.run)),
            "seconds": time.perf_counter() - start,
        }, stop

    def _made_by(self, asker: Asker, editor: str) -> dict[str, Any]:
        """Return the columns that say who made a record."""
        return {
            "round": self.round,
            "retriever": self.encoder.name,
            "llm": asker.model,
            "editor": editor,
            "prompt_digest": asker.prompts.digest(),
            "seed": self.options.seed,
        }

    async def _work(self, asker: Asker, candidates: Candidates, finished: TaskFile) -> None:
        """Repair the failures that this process owns: those that share a false positive fall to one process."""
        everyone, outcomes = processes(), Counter[str]()
        owns = everyone.owns if everyone.count > 1 else None

        async def work(task: RepairTask) -> None:
            await repair(task, asker, candidates, self.builder, self.options)
            finished.add(task)
            outcomes[task.reason or "edited"] += 1
            uses = [*asker.usage.values(), *([editor.usage] if isinstance(editor, HostedEditor) else [])]
            dollars, edited = known_dollars(uses), outcomes["edited"]
            paid = "unknown cost" if dollars is None else format_dollars(dollars)
            bar.set_postfix_str(f"{edited} edited, {outcomes.total() - edited} dropped, {paid}", refresh=False)
            bar.update()

        editor = candidates.editor
        queues = [self.builder.tasks(self.failures, way, owns) for way in DIRECTIONS]
        total = len(self.failures) // everyone.count
        with Progress(total=total, desc="Repairing", unit=" failures", smoothing=0.05) as bar:
            await work_through(asker, queues, work, candidates)
