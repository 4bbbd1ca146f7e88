"""`repair-hf synthesize`: audit mined failures and edit their false positives into records.

Writes a folder with the configs `records` and `dropped`, the ledger of what was paid, the candidate images and
`summary.json`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import print_table, suggest, unused
from repair_hf.mining.filtering import described
from repair_hf.runtime.options import PairsOptions, StageOptions, changed, flags
from repair_hf.synthesis.options import EditorOptions, LLMOptions, SynthesizeOptions

EPILOG = """examples:
  repair-hf synthesize --pairs runs/world --failures runs/failures --model world/base \\
      --llm world/oracle --editor world --output runs/records
  repair-hf synthesize --pairs annotations.json --image-folder train2014 --failures runs/failures \\
      --model openai/clip-vit-base-patch32 --llm gemini/gemini-3.5-flash-lite \\
      --editor black-forest-labs/FLUX.2-klein-4B --output runs/records --dry-run

You can stop it at any time: the same command resumes, and pays for no answer that has arrived."""

HELD_OUT = ("validation", "test")  # splits to measure on

OPTIONS = (PairsOptions, StageOptions, LLMOptions, EditorOptions, SynthesizeOptions)


def run(
    pairs_options: PairsOptions,
    stage: StageOptions,
    llm: LLMOptions,
    editor: EditorOptions,
    options: SynthesizeOptions,
) -> None:
    """Repair the failures, or print an estimate of calls and cost."""
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.processes import processes
    from repair_hf.synthesis.models import check_models
    from repair_hf.synthesis.synthesize import Synthesis

    pairs = load_wanted(pairs_options)
    synthesis = Synthesis(options.failures, pairs, options.model, llm, editor, options, output=stage.output)
    if processes().is_main:
        _print_choice(synthesis)
    if stage.dry_run:
        _print_estimate(synthesis)
        return check_models(llm, editor)
    was_done = synthesis.is_done
    summary = _run(synthesis)
    if processes().is_main:
        _print_outcome(summary, synthesis, was_done=was_done)
        _suggest(pairs_options, options.model, stage.output)


def _suggest(pairs_options: PairsOptions, model: str, output: str) -> None:
    """Name the next commands: a look at the records and, unless the split is one to measure on, a training."""
    if pairs_options.split in HELD_OUT:
        return suggest("show", output)
    suggest("show", output, why="Look at the records before you train on them:")
    words = ["--model", model, "--records", output, "--output", unused("runs/train")]
    suggest("train", *flags(changed(pairs_options)), *words)


def _print_choice(synthesis: Any) -> None:
    """Print which failures are left out."""
    if synthesis.options.earlier_rounds:
        print(f"round {synthesis.round}: {len(synthesis.new):,} of {synthesis.mined:,} failures are new")
    if synthesis.left_out:
        kept, new = len(synthesis.failures), len(synthesis.new)
        print(f"{kept:,} of {new:,} failures: {described(synthesis.left_out)}")


def _print_estimate(synthesis: Any) -> None:
    """Print calls, tokens and dollars of what is to be repaired, and what the filters save."""
    from repair_hf.analysis import costs
    from repair_hf.llm.cost import add_stages, format_dollars, known_dollars, paid_in
    from repair_hf.llm.ledger_file import place_of
    from repair_hf.synthesis.estimate import estimate_run, rehearse
    from repair_hf.synthesis.models import prompts_of

    llm, editor = synthesis.llm, synthesis.editor
    options = synthesis.options
    price, image_price = costs.list_prices(llm, editor)
    mined, in_full = Counter(synthesis.failures["direction"]), Counter(synthesis.new["direction"])
    # for what is saved, the price of a direction is wanted that is left out
    asked = synthesis.failures if mined.keys() == in_full.keys() else synthesis.new
    rehearsal = rehearse(synthesis.builder, asked, llm.llm, options, prompts_of(llm))
    estimate_of = partial(estimate_run, rehearsal, options=options, price=price, image_price=image_price)
    estimate = estimate_of(mined)
    print_table(costs.ESTIMATE_HEADS, costs.estimate_rows(estimate, mined), labels=2)
    print(_basis(audited=options.audited, check_edits=options.check_edits, batch=llm.batch))
    if synthesis.left_out:
        whole, left = (add_stages(stages).dollars for stages in (estimate_of(in_full), estimate))
        saved = None if whole is None or left is None else whole - left
        print(f"Saved: {format_dollars(saved)} of {format_dollars(whole)}; {described(synthesis.left_out)}.")
    path, _ = place_of(synthesis.stage.folder, llm.ledger)
    if earlier := paid_in(path):
        answers, spent = sum(use.calls for use in earlier.values()), format_dollars(known_dollars(earlier.values()))
        print(f"{path} already holds {answers:,} answers and images, for {spent}; they are not paid again.")
    print(costs.whole_price(costs.items_of(estimate, llm, editor)))


def _basis(*, audited: bool, check_edits: int | str, batch: bool) -> str:
    """Say what the estimate goes by."""
    repaired = "at most, as if every failure passed the audit"
    if not audited:
        repaired = "every failure is repaired, because none is audited"
    checked = " Checks: at most, as if no edit but the last one fitted." if check_edits == "all" else ""
    return (
        "Tokens: counted on a sample of your failures; images by one rule for all models but Gemini's. A reasoning "
        "model writes several times as much (--reasoning-effort).\n"
        f"Calls: {repaired}; unusable answers are requested once more.{checked}\n"
        "Dollars: list prices" + (", those of the batch API." if batch else ".")
    )


def _run(synthesis: Any) -> dict[str, Any]:
    """Repair; a run that stops says how far it came."""
    from repair_hf.llm.cost import paid_in
    from repair_hf.llm.ledger_file import place_of
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import RunStopped

    folder = synthesis.stage.folder
    try:
        return synthesis.run()
    except (RunStopped, KeyboardInterrupt):
        if processes().is_main:
            if (summary := synthesis.stage.summary) is not None:
                kept = sum(counts["kept"] for counts in summary["directions"].values())
                print(f"{kept:,} records are written; {summary['open']:,} failures are still open   -> {folder}")
            place = place_of(folder, synthesis.llm.ledger)
            _print_paid(place, paid_in(*place))
        raise


def _print_outcome(summary: Mapping[str, Any], synthesis: Any, *, was_done: bool) -> None:
    """Print what a run made, or that it had nothing to do; raise an error if there is no record."""
    from repair_hf.llm.ledger_file import place_of
    from repair_hf.synthesis.outcome import require_records, to_ask_again

    folder, attempts = synthesis.stage.folder, synthesis.llm.answer_attempts
    _print_summary(summary, place_of(folder, synthesis.llm.ledger))
    if was_done:
        print(f"synthesize   already finished, nothing was done   -> {folder}")
    else:
        _print_made(summary)
        print(f"synthesize took {summary['seconds']:,.0f} s   -> {folder}")
    require_records(folder, summary, attempts)
    if count := to_ask_again(summary, attempts).total():
        print(f"{count:,} failures were dropped without a usable answer or image. Rerun the command to ask again.")


def _print_summary(summary: Mapping[str, Any], ledger: tuple[Path, str]) -> None:
    from repair_hf.analysis.checked import CHECKED_HEADS, checked_table
    from repair_hf.analysis.tables import SIDES
    from repair_hf.llm.cost import usage_of

    directions = summary["directions"]
    reasons = list(dict.fromkeys(reason for counts in directions.values() for reason in counts["dropped"]))
    rows = []
    for direction, counts in directions.items():
        share = f"({counts['kept'] / counts['mined']:.1%})" if counts["mined"] else ""
        similarity = "–" if counts["edit_similarity"] is None else f"{counts['edit_similarity']:.3f}"
        left = [counts["dropped"].get(reason, 0) for reason in reasons]
        rows.append((direction, counts["mined"], counts["kept"], share, similarity, *left))
    heads = ("", "mined", "kept", "", "edit cosine", *(reason.replace("_", " ") for reason in reasons))
    print_table(heads, rows)
    print("edit cosine: of an edit and its false positive, on average; 1 is no change.")
    if summary["checked"]:
        print_table(CHECKED_HEADS, checked_table(summary["checked"]), labels=2)
    for direction, counts in directions.items():
        if counts["error_types"]:
            shares = ", ".join(f"{name} {share:.1%}" for name, share in counts["error_types"].items())
            print(f"error types named in {SIDES[direction]} instructions: {shares}")
    _print_paid(ledger, usage_of(summary["paid"]))


def _print_made(summary: Mapping[str, Any]) -> None:
    """Print how much a run asked and made, and how much was there."""
    asked, replayed = (sum(use[name] for use in summary["llm"]) for name in ("calls", "replayed"))
    print(f"LLM: {asked:,} new answers, {replayed:,} from an earlier run or an equal question")
    images = summary["images"]
    print(f"images: {images['made']:,} new, {images['reused']:,} from an earlier run or an equal edit")


def _print_paid(ledger: tuple[Path, str], paid: Mapping[tuple[str, str], Any]) -> None:
    """Print what a run has paid, and how much of it is assumed. `ledger` is its file, and the run's name in it."""
    from repair_hf.analysis import costs

    print_table(costs.PAID_HEADS, costs.paid_rows(paid), labels=2)
    if line := costs.describe_lost(*ledger):
        print(line)
