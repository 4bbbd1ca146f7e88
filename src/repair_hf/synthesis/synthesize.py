"""Repair failures in one call: from failures to a folder of records, as `repair-hf synthesize` does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import ProcessorMixin

from repair_hf.encoder.embedder import check_retriever
from repair_hf.encoder.opening import Retriever, open_retriever
from repair_hf.llm.batches import open_batches
from repair_hf.llm.cost import check_paid, paid_in, usage_rows
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.ledger_file import FILE, has_payments, take_over
from repair_hf.mining.failures import load_failures, miner_of
from repair_hf.mining.filtering import FilterOptions, filter_failures
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.records.dataset import load_records, save_records, summarize
from repair_hf.runtime.items import check_items
from repair_hf.runtime.options import IN_MEMORY, UserError, expect, fields_of, fill
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import digest
from repair_hf.runtime.stage import Stage
from repair_hf.synthesis.candidates import link_candidates
from repair_hf.synthesis.models import (
    check_editor,
    check_llm,
    local_weights,
    open_chat,
    open_editor,
    open_ledger,
    prompts_of,
)
from repair_hf.synthesis.options import EditorOptions, LLMOptions, SynthesizeOptions
from repair_hf.synthesis.outcome import can_add, require_records
from repair_hf.synthesis.own import OwnEditor, OwnLLM, id_of
from repair_hf.synthesis.pipeline import Synthesizer
from repair_hf.synthesis.record_builder import RecordBuilder
from repair_hf.synthesis.rounds import earlier_rounds, leave_out, names_in
from repair_hf.synthesis.sources import SourceImages

NEEDS = ("directions", "open", "llm", "attempts", "images", "paid", "seconds")  # keys of a summary


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
    of_llm, of_editor, wanted = fill(kinds, options | named, "synthesize")
    synthesis = Synthesis(failures, pairs, model, of_llm, of_editor, wanted, output=output, processor=processor)
    summary = synthesis.run()
    if processes().is_main:
        require_records(Path(output), summary, of_llm.answer_attempts)
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
        builder = RecordBuilder(pairs, SourceImages(pairs.images))
        builder.check(table)
        self.encoder = open_retriever(model, processor, **options.how_to_load)
        if not isinstance(failures, Dataset):
            check_items(failures, pairs.items)
            if not options.any_model:
                check_retriever(self.encoder, [miner_of(failures)], f"The failures of {failures}")
        self.sources = [Path(source) for source in options.answers_from or ()]
        _check_sources(self.sources)
        earlier, self.round = earlier_rounds(options.earlier_rounds or ())
        self.mined, self.new = len(table), leave_out(table, earlier)
        self.failures, self.left_out = filter_failures(self.new, options, options.seed)
        inputs = {
            "pairs_fingerprint": pairs.fingerprint,
            "model_digest": self.encoder.digest,
            "prompt_digest": prompts_of(llm).digest(),
            "earlier_failures": digest(earlier) if earlier else None,
        }
        decides = (pairs.source, llm, editor, options)
        inputs |= local_weights(editor)
        # `model` by its digest; which failures, by those that the folder holds
        neutral = ("failures", "model", *fields_of(FilterOptions))
        named: dict[str, Any] = {"items": pairs.items, "needs": NEEDS, "otherwise": _reuse(output)}
        named["writes"] = ("README.md", "*.arrow", "records/*.parquet", "dropped/*.parquet")
        self.stage = Stage("synthesize", output, decides, inputs, neutral=neutral, **named)
        self.stage.check()
        self._has_more = self._compare(builder)

    def _compare(self, builder: RecordBuilder) -> bool:
        """Return whether failures are wanted that a finished folder lacks.

        Raises:
            UserError: If some that it holds are not wanted any more: their records would be gone.
        """
        summary, folder = self.stage.summary, self.stage.folder
        if summary is None or folder is None or summary["open"]:
            return False
        held, wanted = names_in(folder), builder.names(self.failures)
        if gone := len(held - wanted):
            raise UserError(
                f"{folder} holds {gone:,} failures that these options leave out; a finished folder can only grow. "
                f"{_reuse(folder)}"
            )
        return len(held) < len(wanted)

    @property
    def is_done(self) -> bool:
        """Whether the folder is finished, and another run could make no more of it."""
        summary, folder = self.stage.summary, self.stage.folder
        if summary is None or folder is None:
            return False
        return not self._has_more and not can_add(folder, summary, self.llm.answer_attempts)

    def check(self) -> None:
        """Check what can be checked before anything is loaded or paid: keys, ids and prices of the models, the ledger.

        Raises:
            UserError: As `synthesize`.
        """
        check_llm(self.llm)
        check_editor(self.editor, self.llm)
        assert self.stage.folder is not None, "records are written"
        check_paid(self.stage.folder, (self.stage.summary or {}).get("paid", ()))

    def run(self) -> dict[str, Any]:
        """Repair into the folder, and return its summary, which other processes than the main one lack.

        A finished folder is run again only if that can make more of it. What was finished before a stop or an
        interrupt is written before it is raised.

        Raises:
            UserError, RunStopped: As `synthesize`.
        """
        stop: BaseException | None = None
        summary, place = self.stage.summary, self.stage.folder
        assert place is not None, "records are written"
        if summary is not None and self.is_done:
            return summary
        self.check()
        processes().gather(None)  # all have read the summary, which the first one removes now

        def repair(_: Any) -> dict[str, Any]:
            nonlocal stop
            with open_ledger(self.llm, place) as ledger:
                found, stop = _repair(place, self, ledger)
                return found

        made = self.stage.run(repair, again=True)
        if stop is not None:
            raise stop
        return made


def _reuse(folder: str | Path) -> str:
    return f"Give another --output and --answers-from {folder}: what is paid there is not paid again."


def _check_sources(folders: Sequence[Path]) -> None:
    for folder in filter(open_batches, folders):
        raise UserError(
            f"`answers_from` names {folder}, whose batches are not collected yet; they would be paid again. "
            "Rerun its command first."
        )
    for folder in folders:
        if not has_payments(folder):
            raise UserError(
                f"`answers_from` names {folder}, which holds no paid answers ({FILE}). Give the --output of "
                "`repair-hf synthesize`."
            )


def _repair(folder: Path, work: Synthesis, ledger: Ledger) -> tuple[dict[str, Any], BaseException | None]:
    start, everyone = time.perf_counter(), processes()
    if everyone.is_main:
        for source in work.sources:
            link_candidates(take_over(ledger.database, ledger.run, source), ledger.folder)
    everyone.gather(None)  # what is taken over is there
    chat, images = open_chat(work.llm, ledger), open_editor(work.editor, work.llm)
    how = work.options.as_keywords() | {"save_as": work.editor.editor_format, "round": work.round}
    work.stage.begin()
    synthesizer = Synthesizer(work.pairs, work.encoder, chat, images, **how)
    records, dropped, count_open, stop = synthesizer.repair(work.failures, folder)
    if not everyone.is_main:
        return {}, stop
    save_records(folder, records, dropped, embed_source_images=work.options.embed_source_images)
    summary = {
        "directions": summarize(records, dropped),
        "open": count_open,
        "llm": usage_rows(chat.usage),
        "attempts": chat.attempts,
        "images": {
            "made": synthesizer.images_made,
            "found": synthesizer.images_found,
            "dollars": synthesizer.image_dollars,
        },
        "paid": usage_rows(paid_in(folder)),
        "seconds": time.perf_counter() - start,
    }
    return summary, stop
