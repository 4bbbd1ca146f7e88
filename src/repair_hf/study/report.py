"""Write the report of a study: `study.md`, and a CSV and perhaps a figure for each section."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import markdown
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.study import cost_tables, tables
from repair_hf.study.plots import draw_gains, draw_sweep
from repair_hf.study.running import Results
from repair_hf.study.trial import trial_findings

TOY = (
    "The world is a toy: its pictures are drawn, and its LLM and image editor are scripted. The numbers say nothing "
    "about photographs."
)
FEW = 200  # images; with fewer, an interval of R@1 is about ten points wide


def write_report(results: Results, differences: tables.Differences, paper: str | None = None) -> list[Finding]:
    """Write all sections and return them. Published figures of the dataset `paper` get columns of their own.

    `differences` caches resamples, so use one instance for all reports of a study.
    """
    setting = differences.setting
    retrieval, gained = tables.scores(results, paper), draw_gains(tables.gains(results, differences))
    took = cost_tables.overhead(results, paper)
    found = [
        left_out(results),
        tables.regime(results, differences),
        tables.summary(retrieval, gained, took),
        retrieval,
        gained,
        tables.compositional(results, differences),
        took,
        tables.value(results, differences),
        cost_tables.training(results),
        cost_tables.tuning(results),
        draw_sweep(results),
        *trial_findings(setting),
    ]
    sections = [each for each in found if each is not None]
    count = results.base.metrics["n_images"]
    caveat = f"Everything was measured on {count} images: too few for a conclusion." if count < FEW else None
    with setting.sharing.lock("report"):
        write_page(sections, setting.output, is_toy=setting.is_toy, caveat=caveat)
    return sections


def left_out(results: Results) -> Finding | None:
    """List the methods without rows in the tables, with the reason."""
    if not results.left_out:
        return None
    return Finding("left_out", "Left out", " ".join(f"`{name}`: {why}" for name, why in results.left_out.items()))


def write_page(sections: Sequence[Finding], output: Path, *, is_toy: bool, caveat: str | None = None) -> None:
    """Write `study.md` and the files of each section, with warnings at the top."""
    lines = ["# What does repair buy?", "", *([TOY, ""] if is_toy else []), *([caveat, ""] if caveat else [])]
    for each in sections:
        each.save(output)
        lines += [f"## {each.title}", "", each.note, ""]
        if each.table is not None:
            lines += [markdown(list(each.table.columns), each.table.to_numpy().tolist()), ""]
        if each.figure is not None:
            lines += [f"![{each.title}]({each.name}.png)", ""]
    write_atomically(output / "study.md", "\n".join(lines))
