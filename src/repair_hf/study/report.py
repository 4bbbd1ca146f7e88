"""The report of a study: `study.md`, and of each section a CSV and, where there is one, a picture.

In:  `Results`.
Out: the sections, written to the study's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import markdown
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.study import effort, tables
from repair_hf.study.plots import draw_gains, draw_sweep
from repair_hf.study.running import Results

TOY = (
    "The world is a toy: its captions are exact, its LLM knows the truth, and its editor draws what it is told. The numbers say whether methods "
    "do here what they are meant to do, and nothing about photographs."
)
FEW = 200  # images; an interval of R@1 is then some ten points wide


def write_report(results: Results, differences: tables.Differences, paper: str | None = None) -> list[Finding]:
    """Write all sections, and give them back.

    Args:
        results: What has been measured so far.
        differences: Between cells; of one study the same for each report, since it remembers each cell's resamples.
        paper: Data set whose published figures stand in columns of their own.
    """
    setting = differences.setting
    retrieval, gained = tables.scores(results, paper), draw_gains(tables.gains(results, differences))
    took = effort.overhead(results, paper)
    found = [
        left_out(results),
        tables.regime(results, differences),
        tables.summary(retrieval, gained, took),
        retrieval,
        gained,
        tables.truth(results),
        tables.compositional(results, differences),
        took,
        tables.value(results, differences),
        effort.training(results),
        effort.tuning(results),
        draw_sweep(results),
    ]
    sections = [each for each in found if each is not None]
    count = results.base.metrics["n_images"]
    caveat = f"All of it was measured on {count} images: too few to tell anything." if count < FEW else None
    with setting.turns.alone("report"):
        write_page(sections, setting.output, is_toy=setting.is_toy, caveat=caveat)
    return sections


def left_out(results: Results) -> Finding | None:
    """The methods that have no rows in the tables, and why."""
    if not results.left_out:
        return None
    return Finding("left_out", "Left out", " ".join(f"`{name}`: {why}" for name, why in results.left_out.items()))


def write_page(sections: Sequence[Finding], output: Path, *, is_toy: bool, caveat: str | None = None) -> None:
    """Write sections as `study.md`, and each one's own files.

    Args:
        sections: In their order.
        output: Gets the files.
        is_toy: Whether the numbers are the toy world's.
        caveat: What a reader must know before the numbers.
    """
    lines = ["# What does repair buy?", "", *([TOY, ""] if is_toy else []), *([caveat, ""] if caveat else [])]
    for each in sections:
        each.save(output)
        lines += [f"## {each.title}", "", each.told, ""]
        if each.table is not None:
            lines += [markdown(list(each.table.columns), each.table.to_numpy().tolist()), ""]
        if each.figure is not None:
            lines += [f"![{each.title}]({each.name}.png)", ""]
    write_atomically(output / "study.md", "\n".join(lines))
