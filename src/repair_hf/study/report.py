"""The report of a study: `study.md`, and of each section a CSV and, where there is one, a picture.

In:  `Results`.
Out: the sections, written to the study's folder.
"""

from __future__ import annotations

from repair_hf.analysis.findings import Finding
from repair_hf.analysis.tables import markdown
from repair_hf.runs import write_atomically
from repair_hf.study import effort, tables
from repair_hf.study.plots import draw_gains, draw_sweep
from repair_hf.study.running import Results
from repair_hf.study.setting import Setting

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
    with setting.turns.alone("report"):
        _write(sections, results, setting)
    return sections


def _write(sections: list[Finding], results: Results, setting: Setting) -> None:
    count = results.base.metrics["n_images"]
    lines = ["# What does repair buy?", "", *([TOY, ""] if setting.editor.editor == "world" else [])]
    lines += [f"All of it was measured on {count} images: too few to tell anything.", ""] if count < FEW else []
    for each in sections:
        each.save(setting.output)
        lines += [f"## {each.title}", "", each.told, ""]
        if each.table is not None:
            lines += [markdown(list(each.table.columns), each.table.to_numpy().tolist()), ""]
        if each.figure is not None:
            lines += [f"![{each.title}]({each.name}.png)", ""]
    write_atomically(setting.output / "study.md", "\n".join(lines))
