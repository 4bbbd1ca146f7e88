"""`repair-hf synthesize`: audit mined failures and edit their false positives into records.

Writes a folder with the configs `records` and `dropped`, the ledger of what was paid, the candidate images and
`summary.json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import print_table, suggest
from repair_hf.cli.synthesis_estimate import LeftOut, print_estimate
from repair_hf.mining.filtering import described, filter_failures
from repair_hf.runtime.options import PairsOptions, StageOptions, changed, flags
from repair_hf.synthesis.options import EditorOptions, LLMOptions, SynthesizeOptions

EPILOG = """examples:
  repair-hf synthesize --pairs runs/world --failures runs/failures --model world/base \\
      --llm world/oracle --editor world --output runs/records
  repair-hf synthesize --pairs annotations.json --image-folder train2014 --failures runs/failures \\
      --model openai/clip-vit-base-patch32 --llm gemini/gemini-3.5-flash-lite \\
      --editor black-forest-labs/FLUX.2-klein-4B --output runs/records --dry-run

You can stop it at any time: the same command resumes and pays for no answer twice."""


OPTIONS = (PairsOptions, StageOptions, LLMOptions, EditorOptions, SynthesizeOptions)


def run(
    pairs_options: PairsOptions,
    stage: StageOptions,
    llm: LLMOptions,
    editor: EditorOptions,
    options: SynthesizeOptions,
) -> None:
    """Repair the failures, or print an estimate of calls and cost."""
    from repair_hf.runtime.processes import processes
    from repair_hf.synthesis.synthesize import check_models

    ready = _check(pairs_options, stage, llm, editor, options)
    if stage.dry_run:
        print_estimate(ready.work.pairs, ready.work.failures, ready.left_out, Path(stage.output), llm, editor, options)
        return check_models(llm, editor)
    summary = _synthesize(ready, options)
    if processes().is_main:
        _print_outcome(summary, Path(stage.output), llm.answer_attempts)
        words = ["--model", options.model, "--records", stage.output, "--output", "runs/train"]
        suggest("train", *flags(changed(pairs_options)), *words)


@dataclass(frozen=True)
class _Ready:
    """What is to be repaired, loaded and checked."""

    work: Any
    stage: Any
    left_out: LeftOut


def _check(
    pairs_options: PairsOptions,
    stage: StageOptions,
    llm: LLMOptions,
    editor: EditorOptions,
    options: SynthesizeOptions,
) -> _Ready:
    """Load what is to be repaired and check everything but the LLM's and the editor's weights, also for a dry run."""
    from repair_hf.encoder.identity import check_retriever
    from repair_hf.encoder.opening import open_retriever
    from repair_hf.mining.failures import failures_file, load_failures, miner_of
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import digest
    from repair_hf.runtime.trackers import check_trackers
    from repair_hf.synthesis.record_builder import RecordBuilder
    from repair_hf.synthesis.rounds import EarlierRounds
    from repair_hf.synthesis.sources import SourceImages
    from repair_hf.synthesis.synthesize import Work

    if options.report_to != "none":
        check_trackers([options.report_to])
    failures = load_failures(options.failures)
    pairs = load_wanted(pairs_options)
    RecordBuilder(pairs, SourceImages(pairs.images)).check(failures)
    encoder = open_retriever(options.model, **options.how_to_load)
    if not options.any_model:
        check_retriever(encoder, [miner_of(options.failures)], f"The failures of {options.failures}")
    _check_sources(options.answers_from or ())
    earlier = EarlierRounds(options.earlier_rounds or ())
    mined, failures = len(failures), earlier.leave_out(failures)
    if earlier.failures and processes().is_main:
        print(f"round {earlier.next}: {len(failures):,} of {mined:,} failures are new")
    kept, left_out = filter_failures(failures, options, options.seed)
    if left_out and processes().is_main:
        print(f"{len(kept):,} of {len(failures):,} failures: {described(left_out)}")
    sources = [Path(source) for source in options.answers_from or ()]
    work = Work(pairs, kept, encoder, llm, editor, options, earlier.next, answers_from=sources)
    inputs = {
        "model": options.model,
        "failures_digest": hashlib.sha256(failures_file(options.failures).read_bytes()).hexdigest()[:16],
        "earlier_failures": digest(earlier.failures) if earlier.failures else None,
    }
    ready = work.stage(stage.output, [options.failures], inputs)
    ready.check()
    return _Ready(work, ready, LeftOut(failures, left_out))


def _check_sources(folders: Sequence[str]) -> None:
    from repair_hf.llm.ledger_file import FILE, has_payments
    from repair_hf.runtime.options import UserError

    for folder in folders:
        if not has_payments(folder):
            raise UserError(
                f"`answers_from` names {folder}, which holds no paid answers ({FILE}). Give the --output of "
                "`repair-hf synthesize`."
            )


def _synthesize(ready: _Ready, options: SynthesizeOptions) -> dict[str, Any]:
    from repair_hf.analysis.live import LiveView
    from repair_hf.llm.cost import paid_in
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import RunStopped
    from repair_hf.runtime.trackers import tracking
    from repair_hf.synthesis.synthesize import repair_into

    work, folder, sources = ready.work, ready.stage.folder, ready.work.answers_from
    if sources and processes().is_main:
        print(f"{folder} reuses the answers and images of {', '.join(map(str, sources))}.")
        print("The ceilings do not count what these have cost; the table of payments does.")
    has_images = options.embed_source_images
    try:
        with tracking(options.report_to if processes().is_main else "none", folder) as log:

            def watch(synthesizer: Any) -> LiveView:
                def track(drops: int, done: int) -> None:
                    answers = sum(use.calls for use in synthesizer.chat.usage.values())
                    values = {"answers": answers, "drops": drops, "dollars": synthesizer.dollars}
                    log({f"synthesize/{name}": value for name, value in values.items()}, done)

                spent = lambda: synthesizer.dollars  # noqa: E731
                return LiveView(folder, synthesizer.builder, total=len(work.failures), spent=spent, track=track)

            return repair_into(ready.stage, work, embed_source_images=has_images, watch=watch)
    except RunStopped:
        if processes().is_main:
            _print_paid(paid_in(folder))
        raise


def _print_outcome(summary: Mapping[str, Any], folder: Path, attempts: int) -> None:
    """Print what a run made; raise an error if it made no record."""
    from repair_hf.synthesis.outcome import require_records, unanswered

    _print_summary(summary)
    print(f"synthesize took {summary['seconds']:,.0f} s   -> {folder}")
    require_records(folder, summary, attempts)
    if count := unanswered(folder, summary, attempts).total():
        print(f"{count:,} failures were dropped without a usable answer or image. Rerun the command to ask again.")


def _print_summary(summary: Mapping[str, Any]) -> None:
    from repair_hf.llm.cost import Usage

    directions = summary["directions"]
    reasons = list(dict.fromkeys(reason for counts in directions.values() for reason in counts["dropped"]))
    rows = []
    for direction, counts in directions.items():
        share = f"({counts['kept'] / counts['mined']:.1%})" if counts["mined"] else ""
        similarity = "–" if counts["edit_similarity"] is None else f"{counts['edit_similarity']:.3f}"
        left = [counts["dropped"].get(reason, 0) for reason in reasons]
        rows.append((direction, counts["mined"], counts["kept"], share, similarity, *left))
    heads = ("", "mined", "kept", "", "edit ~ fp", *(reason.replace("_", " ") for reason in reasons))
    print_table(heads, rows)
    for direction, counts in directions.items():
        if counts["error_types"]:
            shares = ", ".join(f"{name} {share:.1%}" for name, share in counts["error_types"].items())
            print(f"error types named in {direction} instructions: {shares}")
    _print_paid({(use.pop("stage"), use.pop("direction")): Usage(**use) for use in map(dict, summary["paid"])})
    asked, replayed = (sum(use[name] for use in summary["llm"]) for name in ("calls", "replayed"))
    print(f"LLM: {asked:,} new answers, {replayed:,} from an earlier run or an equal question")
    images = summary["images"]
    print(f"images: {images['made']:,} new, {images['found']:,} from an earlier run")


def _print_paid(paid: Mapping[tuple[str, str], Any]) -> None:
    from repair_hf.analysis import costs

    print_table(costs.PAID_HEADS, costs.paid_rows(paid), labels=2)
