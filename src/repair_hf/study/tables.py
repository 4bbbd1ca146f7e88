"""The tables of a study, from the rows of its results alone: `TABLES` says which lines and columns each has."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE, markdown
from repair_hf.evaluation.comparison import too_few
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.study.methods import PAPER, PLAIN
from repair_hf.study.paper import Figures, both_ways
from repair_hf.study.results import BASE, Cell, Row
from repair_hf.study.rule import WORLDS, apply_rule
from repair_hf.study.statistics import MEASURES, Line, Lines, lines_of

TOY = (
    "The world is a toy: its pictures are drawn, and its LLM and image editor are scripted. The numbers say nothing "
    "about photographs."
)


REFERENCES = {"gain": PLAIN, "from the paper's method": PAPER}
GAINED = tuple(f"{measure}, gain" for measure in (*MEASURES, "score"))
PAIR = ("method", "other", "measure", "difference", "low", "high")
PAID = ("samples", "llm_calls", "images")
FORMS = {"edits_trained": ".0%", "learning_rate": "g", "epochs": "g", "items_per_step": ",.0f", "seconds": ",.0f"}


RANKING: Mapping[str, Callable[[np.ndarray], float]] = {  # measures of the ranks of the best answers, beside R@1
    "R@5": lambda ranks: float((ranks <= 5).mean()),
    "R@10": lambda ranks: float((ranks <= 10).mean()),
    "MRR": lambda ranks: float((1 / ranks).mean()),
}


def cell_of(column: str, line: Line, lines: Lines) -> str:
    """Format a cell: both means of a measure, such as `61.9/55.1`, a gain of a measure, or a value of the row."""
    measure, _, reference = column.partition(", ")
    if reference:
        other = lines.get(REFERENCES[reference])
        if other is None or other is line or line.cell.method == BASE:
            return NONE
        return str(line.gains(other).get(measure, NONE))
    if measure in RANKING:
        ranks = [[np.array(row[f"{way}_ranks"]) for row in line.rows] for way in DIRECTIONS]  # by seed
        means = [statistics.fmean(map(RANKING[measure], seeds)) for seeds in ranks]
        return "/".join(f"{mean:.4f}" if measure == "MRR" else f"{100 * mean:.1f}" for mean in means)
    if measure in MEASURES:
        parts = [part for part in MEASURES[measure] if part in line.row.right]
        means = [statistics.fmean(row.right[part].mean() for row in line.rows) for part in parts]
        return "/".join(f"{100 * mean:.1f}" for mean in means) or NONE
    value = line.row[measure]
    return NONE if value is None else f"{value:{FORMS.get(measure, ',')}}"


@dataclass(frozen=True)
class Table:
    """A table as data."""

    name: str  # stem of its CSV
    title: str
    note: str
    columns: Sequence[str]
    has: Callable[[Cell], bool]  # its lines
    beside: Sequence[str] = ()  # lines that are no reason for it


TABLES = (
    Table(
        "summary",
        "Does it help?",
        "R@1 I2T/T2I; contrast set, caption/picture; R@1 kept of the base's own domain. Gains are over plain training "
        "at its best, in points, with 95% intervals over images and seeds (*: excludes 0). *Score*: their mean.",
        (*MEASURES, *GAINED),
        lambda cell: cell.budget == "all" and cell.blend == 1,
        [BASE],
    ),
    Table(
        "retrieval",
        "The paper's measures",
        "I2T/T2I, in percent but for MRR; means over seeds. With `--paper`, the paper's figures stand beside ours. A "
        "figure with a sign is a gain over plain training.",
        ("R@1", *RANKING),
        lambda cell: cell.budget == "all" and cell.blend == 1,
        [BASE],
    ),
    Table(
        "methods",
        "The methods and what they take",
        "Calls and images count rejects, as if methods shared nothing. *Edits trained*: the share of them that the "
        "training encoded. *Items*: images and captions. Settings are chosen by R@1 on validation with seed 0.",
        (
            *("R@1", "R@1, from the paper's method", "score, from the paper's method", *PAID, "edits_trained"),
            *("learning_rate", "epochs", "steps", "items_per_step", "seconds"),
        ),
        lambda cell: cell.budget == "all" and cell.blend == 1,
    ),
    Table(
        "budgets",
        "Equal budgets",
        "*samples=N*: that many edits or samples; *calls=N*: that many LLM calls and images, rejects included. The "
        "settings are those of all data.",
        (*PAID, *MEASURES, *GAINED),
        lambda cell: cell.budget != "all" and cell.blend == 1,
        [PLAIN],
    ),
    Table(
        "blends",
        "Blended with the base",
        "The weight of the tuned model. Gains are over plain training, unblended.",
        (*MEASURES, *GAINED),
        lambda cell: cell.budget == "all",
        [BASE],
    ),
)


def tables_of(rows: Sequence[Row], published: Figures, left_out: Mapping[str, str]) -> list[Finding]:
    """Return all tables of what is finished: those of each dataset, and with both toy worlds the rule for the default.

    `published` is what RePair's paper reports; `left_out` are methods without rows, with the reason.
    """
    found: list[Finding] = []
    if left_out:
        found.append(Finding("left_out", "Left out", " ".join(f"`{name}`: {why}." for name, why in left_out.items())))
    validation, test = lines_of(rows, "validation"), lines_of(rows, "test")
    if set(WORLDS) <= validation.keys() and (rule := apply_rule([validation[name] for name in WORLDS])):
        found.append(rule)
    for data, lines in test.items():
        suffix, where = (f"_{data}", f" ({data})") if len(test) > 1 else ("", "")
        count, seeds = len(lines[BASE].row["i2t_ranks"]), max(len(line.rows) for line in lines.values())
        size = " ".join(filter(None, [f"{count:,} images, {seeds} seed{'s' if seeds > 1 else ''}.", too_few(count)]))
        for table in TABLES:
            own = [name for name, line in lines.items() if name != BASE and table.has(line.cell)]
            names = [*(name for name in table.beside if name in lines), *own]
            frame = pd.DataFrame(
                {"method": name} | {column: cell_of(column, lines[name], lines) for column in table.columns}
                for name in names
            ).rename(columns=lambda head: head.replace("_", " "))
            if table.name == "retrieval" and published:
                for measure in table.columns:
                    frame[f"paper: {measure}"] = [both_ways(published, name, measure) for name in names]
            found += [Finding(table.name + suffix, table.title + where, f"{size} {table.note}", frame)] if own else []
        if PLAIN in lines:
            found.append(_pairs(lines, suffix, where))
    return found


def _pairs(lines: Lines, suffix: str, where: str) -> Finding:
    """Compare each method with each other one, paired by seed and query; the page shows the best one's."""
    methods = {name: line for name, line in lines.items() if name != BASE and line.cell.blend == 1}
    best = max(methods, key=lambda name: methods[name].gains(lines[PLAIN])["score"].mean)
    rows = [
        {"method": name} | {measure: str(gain) for measure, gain in line.gains(methods[best]).items()}
        for name, line in methods.items()
    ]
    data = [
        dict(zip(PAIR, (name, other, measure, gain.mean, *gain.bounds), strict=True))
        for name, other in itertools.combinations(methods, 2)
        for measure, gain in methods[name].gains(methods[other]).items()
    ]
    note = f"Each method minus `{best}`, which has the highest score. The CSV has all pairs."
    return Finding(f"pairs{suffix}", f"Against each other{where}", note, pd.DataFrame(rows), pd.DataFrame(data))


def write_page(sections: Sequence[Finding], folder: Path, *, is_toy: bool) -> None:
    """Write `study.md` and the CSV of each section, with a warning at the top."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# What does repair buy?", "", *([TOY, ""] if is_toy else [])]
    for each in sections:
        each.save(folder)
        lines += [f"## {each.title}", "", each.note, ""]
        if each.table is not None:
            lines += [markdown(list(each.table.columns), each.table.to_numpy().tolist()), ""]
    write_atomically(folder / "study.md", "\n".join(lines))
