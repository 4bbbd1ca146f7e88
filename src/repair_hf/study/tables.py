"""The tables of a study, from the rows of its results alone: `TABLES` says which lines and columns each has."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from repair_hf.analysis.blend_curve import Curve, curve
from repair_hf.analysis.pages import render
from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE, markdown
from repair_hf.evaluation.comparison import too_few
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.study.columns import GAINED, RANDOM, RANKING, cell_of, random_cell
from repair_hf.study.methods import BOUGHT, DEFAULT, PLAIN
from repair_hf.study.options import ORDERS
from repair_hf.study.paper import Figures, both_ways
from repair_hf.study.results import ANCHORS, BASE, Cell, Row
from repair_hf.study.statistics import MEASURES, Line, Lines, lines_of
from repair_hf.study.tried import tried

PAIR = ("method", "other", "measure", "difference", "low", "high")
PAID = ("samples", "llm_calls", "images")
TOY = (
    "The world is a toy: its pictures are drawn, and its LLM and image editor are scripted. The numbers say nothing "
    "about photographs."
)


@dataclass(frozen=True)
class Table:
    """A table as data."""

    name: str  # stem of its CSV
    title: str
    note: str
    columns: Sequence[str]
    has: Callable[[Cell], bool]  # its lines
    beside: Sequence[str] = (RANDOM, BASE)  # lines that are no reason for it


def is_whole(cell: Cell) -> bool:
    """Return whether a cell has all data of its method, unblended."""
    return cell.budget == "all" and cell.blend == 1


MONEY = {DEFAULT.name, *(method.name for method in BOUGHT)}
CURVES = 4  # curves of a panel beside that of plain training
ORDERED = BOUGHT[-1].name  # the method whose records are taken in several orders
TABLES = (
    Table(
        "summary",
        "Does it help?",
        "R@1 I2T/T2I; contrast set, caption/picture; R@1 kept of the base's own domain. Gains are over plain "
        "training, both unblended and at their best, in points, with 95% intervals over images and seeds (*: excludes "
        "0). *Score*: their mean. *Random*: what a retriever that ranks at random scores.",
        (*MEASURES, *GAINED),
        is_whole,
    ),
    Table(
        "retrieval",
        "The paper's measures",
        "I2T/T2I, in percent but for MRR; means over seeds. With `--paper`, the paper's figures stand beside ours. A "
        "figure with a sign is a gain over plain training.",
        ("R@1", *RANKING),
        is_whole,
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
        is_whole,
    ),
    Table(
        "budgets",
        "Equal budgets",
        "*samples=N*: that many edits or samples; *calls=N*: that many LLM calls and images, rejects included. The "
        "settings are those of all data.",
        (*PAID, *MEASURES, *GAINED),
        lambda cell: cell.budget.startswith(("samples", "calls")) and cell.blend == 1,
        (RANDOM, BASE, PLAIN),
    ),
    Table(
        "blends",
        "Blended with the base",
        "The weight of the tuned model. Gains are over plain training at the same weight.",
        (*MEASURES, *GAINED),
        lambda cell: cell.budget == "all",
    ),
    Table(
        "money",
        "What money buys",
        "The default with a part of its records, and shares of them, drawn; gains are over plain training at the same "
        "weight. *Dollars*: list prices, see docs/synthesis.md; equal edits count each time, and are paid once. "
        "*Dollars a point*: of R@1 that is gained.",
        (*PAID, "dollars", "R@1", "kept", "R@1, gain", "kept, gain", "dollars a point"),
        lambda cell: cell.method in MONEY and cell.budget.startswith(("all", "share")) and cell.blend > 0.6,
        (RANDOM, BASE, PLAIN, f"{PLAIN}, blend 0.8"),
    ),
    Table(
        "orders",
        "Which failures first",
        "As many records in an order by the margin of the false positive over the truth, or one of each image first; "
        "compared with as many that are drawn, at the same weight.",
        ("samples", "R@1", "kept", *(f"{measure}, from the drawn" for measure in ("R@1", "kept"))),
        lambda cell: cell.budget.startswith(("share", *ORDERS)) and cell.method == ORDERED and cell.blend > 0.6,
        (RANDOM, BASE, PLAIN, f"{PLAIN}, blend 0.8"),
    ),
)


def tables_of(rows: Sequence[Row], published: Figures, left_out: Mapping[str, str]) -> list[Finding]:
    """Return all tables of what is finished, those of each dataset.

    `published` is what RePair's paper reports; `left_out` are methods without rows, with the reason.
    """
    found: list[Finding] = []
    if left_out:
        found.append(Finding("left_out", "Left out", " ".join(f"`{name}`: {why}." for name, why in left_out.items())))
    validation, test = lines_of(rows, "validation"), lines_of(rows, "test")
    for data, lines in test.items():
        suffix, where = (f"_{data}", f" ({data})") if len(test) > 1 else ("", "")
        size = _size_of(lines)
        for table in TABLES:
            own = [name for name, line in lines.items() if name != BASE and table.has(line.cell)]
            if own:
                frame, plot = _frame(table, own, lines, published), _curve(lines) if table.name == "blends" else None
                note = f"{size} {table.note}"
                found.append(Finding(table.name + suffix, table.title + where, note, frame, plot=plot))
        if PLAIN in lines:
            if data in validation:
                found.append(_best_blends(lines, validation[data], size, suffix, where))
            found.append(_pairs(lines, suffix, where))
        if data in validation and (settings := tried(rows, lines, validation[data][BASE].row, suffix, where)):
            found.append(settings)
    return found


def _size_of(lines: Lines) -> str:
    """Say on how many images and seeds of the test split the lines are, and of which versions of the code."""
    count, seeds = len(lines[BASE].row["i2t_ranks"]), max(len(line.rows) for line in lines.values())
    size = f"The reported split (`--test-split`): {count:,} images, {seeds} seed{'s' if seeds > 1 else ''}."
    commits = dict.fromkeys(f"{row['commit']:.8}" for line in lines.values() for row in line.rows)
    versions = (
        f"Rows of the commits {', '.join(commits)}: with seed 0, {', '.join(ANCHORS)} are equal on each, to the digit."
    )
    return " ".join(filter(None, [size, versions if len(commits) > 1 else "", too_few(count)]))


def _frame(table: Table, names: Sequence[str], lines: Lines, published: Figures) -> pd.DataFrame:
    """Return a table's columns of some lines, after those that stand beside them."""
    names = [*(name for name in table.beside if name in (RANDOM, *lines) and name not in names), *names]
    rows = [{"method": name} | _cells(name, table.columns, lines) for name in names]
    frame = pd.DataFrame(rows).rename(columns=lambda head: head.replace("_", " "))
    if table.name == "retrieval" and published:
        for measure in table.columns:
            frame[f"paper: {measure}"] = [both_ways(published, name, measure) for name in names]
    return frame


def _cells(name: str, columns: Iterable[str], lines: Lines) -> dict[str, str]:
    """Return the cells of a line, or of a retriever that ranks at random, by column."""
    if name == RANDOM:
        return {column: random_cell(column, lines[BASE].row) for column in columns}
    return {column: cell_of(column, lines[name], lines) for column in columns}


def _curve(lines: Lines) -> Curve | None:
    """Draw what each method gains against what it keeps, at each weight; None if nothing is kept.

    A panel has plain training and a few others.
    """
    if "kept" not in lines[BASE].estimates:
        return None
    drawn: dict[str, list[Line]] = {}
    for line in lines.values():
        if line.cell.budget == "all" and line.cell.method != BASE:
            drawn.setdefault(line.cell.method, [lines[BASE]]).insert(1, line)
    others = [method for method in drawn if method != PLAIN]
    rows = []
    for first in range(0, max(len(others), 1), CURVES):
        panel = "the base's own domain" + (f", panel {first // CURVES + 1}" if len(others) > CURVES else "")
        for method in [PLAIN, *others[first : first + CURVES]]:
            for line in drawn.get(method, []):
                weight = 0.0 if line is lines[BASE] else line.cell.blend
                gained, kept = (100 * line.estimates[measure].mean for measure in ("R@1", "kept"))
                rows.append((panel, method, weight, gained, kept))
    return curve(pd.DataFrame(rows, columns=["also", "method", "blend", "gained", "kept"]))


def _best_blends(lines: Lines, validation: Lines, size: str, suffix: str, where: str) -> Finding:
    """Compare each method with plain training, each at its best weight by the mean of R@1 and kept on validation."""

    def mean(name: str) -> float:
        measured = validation[name].estimates
        return statistics.fmean(measured[measure].mean for measure in ("R@1", "kept") if measure in measured)

    weights: dict[str, list[str]] = {}  # of each method, its lines on both splits
    for name, line in lines.items():
        if name in validation and line.cell.budget == "all" and name != BASE:
            weights.setdefault(line.cell.method, []).append(name)
    best = {method: max(names, key=mean) for method, names in weights.items()}
    plain = lines[best[PLAIN]]
    rows = [{"method": name} | _cells(name, MEASURES, lines) for name in (RANDOM, BASE)]
    for method, name in best.items():
        line = lines[name]
        gains = {} if line is plain else line.gains(plain)
        rows.append(
            {"method": method, "weight": f"{line.cell.blend:g}"}
            | _cells(name, MEASURES, lines)
            | {f"{measure}, gain": str(gains.get(measure, NONE)) for measure in (*MEASURES, "score")}
        )
    table = pd.DataFrame(rows, columns=["method", "weight", *MEASURES, *GAINED]).fillna(NONE)
    note = (
        f"{size} Each method at its best weight, plain training, too: the highest mean of R@1 and kept on "
        "validation. Gains are over plain training."
    )
    return Finding(f"best_blends{suffix}", f"Each at its best weight{where}", note, table)


def _pairs(lines: Lines, suffix: str, where: str) -> Finding:
    """Compare each line with each other one of the same weight and budget; the page shows the best method's."""
    methods = {name: line for name, line in lines.items() if name != BASE and is_whole(line.cell)}
    best = max(methods, key=lambda name: methods[name].gains(lines[PLAIN])["score"].mean)
    rows = [
        {"method": name} | {measure: str(gain) for measure, gain in line.gains(methods[best]).items()}
        for name, line in methods.items()
    ]
    alike = [
        (name, other)
        for name, other in itertools.combinations(lines, 2)
        if BASE not in (name, other)
        and (lines[name].cell.blend, lines[name].cell.budget) == (lines[other].cell.blend, lines[other].cell.budget)
    ]
    data = [
        dict(zip(PAIR, (name, other, measure, gain.mean, *gain.bounds), strict=True))
        for name, other in alike
        for measure, gain in lines[name].gains(lines[other]).items()
    ]
    note = f"Each method minus `{best}`, which has the highest score. The CSV has all pairs of the same weight."
    return Finding(f"pairs{suffix}", f"Against each other{where}", note, pd.DataFrame(rows), pd.DataFrame(data))


def write_page(sections: Sequence[Finding], folder: Path, *, is_toy: bool) -> None:
    """Write `study.md`, and the CSV and the figure of each section, with a warning at the top."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# What does repair buy?", "", *([TOY, ""] if is_toy else [])]
    for each in sections:
        each.save(folder)
        lines += [f"## {each.title}", "", each.note, ""]
        if each.plot is not None:
            write_atomically(folder / f"{each.name}.svg", render("blends.svg", plot=each.plot))
            lines += [f"![{each.title}: R@1 against what is kept]({each.name}.svg)", ""]
        if each.table is not None:
            lines += [markdown(list(each.table.columns), each.table.to_numpy().tolist()), ""]
    write_atomically(folder / "study.md", "\n".join(lines))
