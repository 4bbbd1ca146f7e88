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

You can stop it at any time: the same command resumes and pays for no answer twice."""

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
    from repair_hf.synthesis.synthesize import Synthesis

    pairs = load_wanted(pairs_options)
    synthesis = Synthesis(options.failures, pairs, options.model, llm, editor, options, output=stage.output)
    if processes().is_main:
        _print_choice(synthesis)
    if stage.dry_run:
        _print_estimate(synthesis, Path(stage.output))
        return synthesis.check()
    was_done = synthesis.is_done
    summary = _run(synthesis, Path(stage.output))
    if processes().is_main:
        _print_outcome(summary, Path(stage.output), llm.answer_attempts, was_done=was_done)
        _suggest(pairs_options, options.model, stage.output)


def _suggest(pairs_options: PairsOptions, model: str, output: str) -> None:
    """Name the next command: a training, or for a split to measure on a look at the records."""
    if pairs_options.split in HELD_OUT:
        return suggest("show", output)
    words = ["--model", model, "--records", output, "--output", unused("runs/train")]
    suggest("train", *flags(changed(pairs_options)), *words)


def _print_choice(synthesis: Any) -> None:
    """Print which failures are left out, and whose answers are used."""
    if synthesis.options.earlier_rounds:
        print(f"round {synthesis.round}: {len(synthesis.new):,} of {synthesis.mined:,} failures are new")
    if synthesis.left_out:
        kept, new = len(synthesis.failures), len(synthesis.new)
        print(f"{kept:,} of {new:,} failures: {described(synthesis.left_out)}")
    if synthesis.sources:
        print(f"{synthesis.stage.folder} reuses the answers and images of {', '.join(map(str, synthesis.sources))}.")
        print("The ceilings do not count what these have cost; the table of payments does.")


def _print_estimate(work: Any, output: Path) -> None:
    """Print calls, tokens and dollars of what is to be repaired, and what the filters save."""
    from repair_hf.analysis import costs
    from repair_hf.llm.calls import format_dollars
    from repair_hf.llm.cost import add_stages, known_dollars, paid_in
    from repair_hf.synthesis.estimate import estimate_run, rehearse
    from repair_hf.synthesis.models import find_llm, prompts_of

    llm, editor, options = work.llm, work.editor, work.options
    price, image_price = costs.list_prices(llm, editor)
    earlier = paid_in(output)
    mined = Counter(work.failures["direction"])
    in_full = Counter(work.new["direction"])
    asked = work.failures.to_list()
    if gone := in_full.keys() - mined.keys():  # only their price is wanted, for what is saved
        asked += [row for row in work.new.to_list() if row["direction"] in gone]
    estimate_of = partial(
        estimate_run,
        rehearse(work.pairs, asked, find_llm(llm)[1], options, prompts_of(llm)),
        options=options,
        price=price,
        image_price=image_price,
    )
    estimate = estimate_of(mined)
    print_table(costs.ESTIMATE_HEADS, costs.estimate_rows(estimate, mined), labels=2)
    print(_basis(audited=options.audited, batch=llm.batch))
    if work.left_out:
        whole, left = (add_stages(stages).dollars for stages in (estimate_of(in_full), estimate))
        saved = None if whole is None or left is None else whole - left
        print(f"Saved: {format_dollars(saved)} of {format_dollars(whole)}; {described(work.left_out)}.")
    if earlier:
        answers, spent = sum(use.calls for use in earlier.values()), format_dollars(known_dollars(earlier.values()))
        print(f"{output} already holds {answers:,} answers, for {spent}; they are not paid again.")
    print(costs.whole_price(costs.items_of(estimate, llm, editor)))


def _basis(*, audited: bool, batch: bool) -> str:
    """Say what the estimate goes by."""
    repaired = "at most, as if every failure passed the audit"
    if not audited:
        repaired = "every failure is repaired, because none is audited"
    return (
        "Tokens: counted on a sample of your failures; images by one rule for all models but Gemini's. A reasoning "
        "model writes several times as much (--reasoning-effort).\n"
        f"Calls: {repaired}; unusable answers are requested once more.\n"
        "Dollars: list prices" + (", those of the batch API." if batch else ".")
    )


def _run(synthesis: Any, folder: Path) -> dict[str, Any]:
    """Repair; a run that stops says how far it came."""
    from repair_hf.llm.cost import paid_in
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import RunStopped

    try:
        return synthesis.run()
    except (RunStopped, KeyboardInterrupt):
        if processes().is_main:
            if (made := synthesis.stage.summary) is not None:
                kept = sum(found["kept"] for found in made["directions"].values())
                print(f"{kept:,} records are written; {made['open']:,} failures are still open   -> {folder}")
            _print_paid(folder, paid_in(folder))
        raise


def _print_outcome(summary: Mapping[str, Any], folder: Path, attempts: int, *, was_done: bool) -> None:
    """Print what a run made, or that it had nothing to do; raise an error if there is no record."""
    from repair_hf.synthesis.outcome import require_records, unanswered

    _print_summary(folder, summary)
    if was_done:
        print(f"synthesize   already finished, nothing was done   -> {folder}")
    else:
        _print_made(summary)
        print(f"synthesize took {summary['seconds']:,.0f} s   -> {folder}")
    require_records(folder, summary, attempts)
    if count := unanswered(folder, summary, attempts).total():
        print(f"{count:,} failures were dropped without a usable answer or image. Rerun the command to ask again.")


def _print_summary(folder: Path, summary: Mapping[str, Any]) -> None:
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
    _print_paid(folder, {(use.pop("stage"), use.pop("direction")): Usage(**use) for use in map(dict, summary["paid"])})


def _print_made(summary: Mapping[str, Any]) -> None:
    """Print how much a run asked and made, and how much was there."""
    asked, replayed = (sum(use[name] for use in summary["llm"]) for name in ("calls", "replayed"))
    print(f"LLM: {asked:,} new answers, {replayed:,} from an earlier run or an equal question")
    images = summary["images"]
    print(f"images: {images['made']:,} new, {images['found']:,} from an earlier run")


def _print_paid(folder: Path, paid: Mapping[tuple[str, str], Any]) -> None:
    """Print what was paid, and how much of it is assumed."""
    from repair_hf.analysis import costs
    from repair_hf.llm.calls import format_dollars
    from repair_hf.synthesis.outcome import assumed_in

    print_table(costs.PAID_HEADS, costs.paid_rows(paid), labels=2)
    calls, dollars = assumed_in(folder)
    if calls:
        print(
            f"{format_dollars(dollars)} of it is assumed: the highest price of {calls:,} requests without an answer, "
            "such as those in flight when a run was killed. The bill may be lower."
        )
