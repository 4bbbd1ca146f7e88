"""Write a report on a run, on mined failures, or on a Hub dataset of records; label its errors by an LLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repair_hf.analysis.error_labels import label_images
from repair_hf.analysis.mined import is_mined, load_mined, questions, sample_failures
from repair_hf.analysis.options import LabelOptions
from repair_hf.analysis.record_sample import sample_records
from repair_hf.analysis.report import SAMPLES, Finding, write_report
from repair_hf.analysis.run_data import LABELS, PairsPlace, RunData, gather, moved_pairs
from repair_hf.analysis.run_findings import run_findings
from repair_hf.llm.cost import Usage
from repair_hf.records.dataset import load_kept
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import UserError, fill
from repair_hf.synthesis.models import open_chat, open_ledger


def analyze(
    run: str | Path, output: str | Path | None = None, *, pairs: PairsPlace = None, seed: int = 0, **options: Any
) -> list[Finding]:
    """Write a report as `repair-hf analyze` does: one page, `report.html`, with its tables as files.

    Args:
        run: Folder of `repair-hf mine`, `synthesize`, `run` or `demo`, or records on the Hub.
        output: Folder of the report; by default `report` in the run's folder.
        pairs: The pairs, or where they are now, for images that the records lack. Mined failures need them; by
            default they are what the run records.
        seed: Seed of the sample of records shown.
        options: `llm`, which labels image instructions by error type, and the other options of an LLM.

    Returns:
        The findings, each with its table: first whether repair helped, or is worth it.

    Raises:
        UserError: If there is nothing to report on, or an option is not valid.
        RunStopped: If the LLM's provider or budget stopped the labelling.

    Example:
        >>> findings = analyze("runs/demo")
    """
    (llm,) = fill([LabelOptions], options, "analyze")
    folder = report_folder(run, output)
    with one_writer(folder):
        if is_mined(run):
            if llm.llm is not None:
                raise UserError(f"`llm` is for records, and {run} holds mined failures. Leave it out.")
            return _of_mine(run, folder, pairs, seed)
        if llm.llm is not None:
            label(gather(run), llm)
        return _of_run(run, folder, pairs, seed)


def report_folder(run: str | Path, output: str | Path | None) -> Path:
    """Return the folder of a report."""
    if output is None and not Path(run).is_dir():
        raise UserError(
            f"{run} is not a local folder; give the folder of a run, or for records on the Hub also --output."
        )
    return Path(run) / "report" if output is None else Path(output)


def label(data: RunData, llm: LabelOptions) -> dict[Path, tuple[int, int, Usage | None]]:
    """Ask for the error types of each round's image instructions.

    Returns:
        For each folder of records: how many have labels now, of how many, and what was paid, if anything was asked.
    """
    done = {}
    for folder, wanted in instructions(data).items():
        with open_ledger(llm, folder) as ledger:
            chat = open_chat(llm, ledger)
            missing = label_images(chat, wanted, folder / LABELS)
        done[folder] = len(wanted) - missing, len(wanted), chat.usage.get(("label", "t2i"))
    return done


def instructions(data: RunData) -> dict[Path, list[dict[str, Any]]]:
    """Return the image instructions of each folder of records."""
    if not data.folders:
        raise UserError(f"{data.name} is not a local run, so labels cannot be stored; leave out --llm.")
    columns = ["direction", "record_id", "q_text", "edit_instruction"]
    tables = {folder: load_kept(folder, decode=False).select_columns(columns) for folder in data.folders}
    return {folder: [row for row in table.to_list() if row["direction"] == "t2i"] for folder, table in tables.items()}


def _of_run(run: str | Path, folder: Path, pairs: PairsPlace, seed: int) -> list[Finding]:
    data, known = gather(run), moved_pairs(run, pairs)
    answers, findings = run_findings(data)
    drawn = len(data.records) and sample_records(data.records, n=SAMPLES, pairs=known, folders=data.folders, seed=seed)
    counts = f"{data.name} · {len(data.kept):,} records, {len(data.dropped):,} failures dropped"
    write_report(folder, "What was repaired", counts, findings, drawn.rows if drawn else (), answers)
    return [answers.helped, *findings]


def _of_mine(run: str | Path, folder: Path, pairs: PairsPlace, seed: int) -> list[Finding]:
    mined = load_mined(run, moved_pairs(run, pairs))
    findings = [questions(mined)]
    sample, count = sample_failures(mined, n=SAMPLES, seed=seed), f"{len(mined.failures):,} false positives"
    write_report(folder, "What was mined", f"{mined.folder.name} · {count}", findings, sample.rows)
    return findings
