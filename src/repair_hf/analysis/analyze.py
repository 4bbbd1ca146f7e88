"""Write a report on a run, on mined failures, or on a Hub dataset of records."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from repair_hf.analysis.mined import is_mined, load_mined, questions, sample_failures
from repair_hf.analysis.record_sample import sample_records
from repair_hf.analysis.report import SAMPLES, Finding, write_report
from repair_hf.analysis.run_data import PairsPlace, gather, moved_pairs
from repair_hf.analysis.run_findings import run_findings
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import check_folder, claim

logger = logging.getLogger(__name__)


def analyze(
    run: str | Path,
    output: str | Path | None = None,
    *,
    pairs: PairsPlace = None,
    judgements: Sequence[str | Path] = (),
) -> list[Finding]:
    """Write a report as `repair-hf analyze` does: one page, `report.html`, with its tables as files.

    Args:
        run: Folder of `repair-hf mine`, `synthesize`, `run` or `demo`, or records on the Hub.
        output: Folder of the report; by default `report` in the run's folder.
        pairs: The pairs, or where they are now, for images that the records lack. Mined failures need them; by
            default they are what the run records.
        judgements: Files that pages of `repair-hf annotate` saved.

    Returns:
        The findings, each with its table: first whether repair helped, or is worth it.

    Raises:
        UserError: If there is nothing to report on.

    Example:
        >>> findings = analyze("runs/demo")
    """
    folder = report_folder(run, output)
    check_folder(folder, "analyze")
    ignored: Mapping[str, str] = {}
    if is_mined(run):
        if judgements:
            raise UserError(f"`judgements` are of records, and {run} holds mined failures. Leave them out.")
        mined = load_mined(run, pairs)
        findings, answers, title = [questions(mined)], None, "What was mined"
        counts = f"{mined.folder.name} · {len(mined.table):,} false positives"
        rows = sample_failures(mined, n=SAMPLES).rows
    else:
        data = gather(run)
        answers, findings = run_findings(data, judgements)
        title, ignored = "What was repaired", data.ignored
        counts = f"{data.name} · {len(data.kept):,} records, {len(data.dropped):,} failures dropped"
        known = moved_pairs(data.home, pairs)
        rows = sample_records(data.records, n=SAMPLES, pairs=known).rows if len(data.records) else []
    for place, reason in ignored.items():
        logger.warning("Ignored %s: %s.", place, reason)
    with one_writer(folder):
        claim(folder, "analyze")
        write_report(folder, title, counts, findings, rows, answers, ignored)
    return findings if answers is None else [*answers.findings, *findings]


def report_folder(run: str | Path, output: str | Path | None) -> Path:
    """Return the folder of a report."""
    if output is None and not Path(run).is_dir():
        raise UserError(
            f"{run} is not a local folder; give the folder of a run, or for records on the Hub also --output."
        )
    return Path(run) / "report" if output is None else Path(output)
