"""The tables of a study, from the rows of its results.

R@K and near misses in percent, MRR as a fraction: mean ± standard deviation over seeds. Differences are those of
`differences`.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE, label, markdown, mean_cell
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.study.differences import BOTH, NEAR, RETRIEVAL, gain
from repair_hf.study.plan import PLAIN, Arm, Plan
from repair_hf.study.results import MEASURES, SCORED, Cell

Lines = Mapping[str, Arm]  # a line of the tables: name -> the base, an arm, or plain training of another length
R1 = SCORED[:2]
COSTS = {"samples": "samples", "LLM calls": "llm_calls", "images": "images", "dollars": "dollars"}  # columns of a row
FEW = 200  # images; with fewer, an interval of R@1 is about ten points wide
TOY = (
    "The world is a toy: its pictures are drawn, and its LLM and image editor are scripted. The numbers say nothing "
    "about photographs."
)


def tables_of(plans: Sequence[Plan]) -> list[Finding]:
    """Return all tables of what is finished, on one or several datasets."""
    bases = {plan.setting.name: base for plan in plans if (base := plan.base())}
    arms = [arm for plan in plans for arm in plan.arms()]
    lines = {f"base{_of(name, bases)}": Arm([row], row) for name, row in bases.items()}
    lines |= labels(arms) | plain_runs(arms, bases)
    papers = {plan.setting.name: paper for plan in plans if (paper := plan.setting.options.paper)}
    found = [left_out(plans), summary(lines), retrieval(lines, papers), near_misses(lines), gains(lines)]
    found += [default(lines), cost(lines), tuning(plans)]
    return [each for each in found if each is not None]


def labels(arms: Sequence[Arm]) -> dict[str, Arm]:
    """Name the arms: the method, and in what the arms of a method differ."""
    found: dict[str, Arm] = {}
    datasets = {arm.cell.data for arm in arms}
    for arm in arms:
        one = arm.cell
        alike = [each.cell for each in arms if (each.cell.data, each.cell.method) == (one.data, one.method)]
        shown = {
            "fill": one.fill,
            "loss": one.loss,
            "grid_weight": f"weight {one.grid_weight:g}" if one.grid_weight else "",
            "learning_rate": f"rate {one.learning_rate:g}",
            "epochs": f"{one.epochs:g} epochs",
            "budget": one.budget,
        }
        differing = [text for key, text in shown.items() if text and len({getattr(each, key) for each in alike}) > 1]
        found[", ".join([one.method + _of(one.data, datasets), *differing])] = arm
    return found


def plain_runs(arms: Sequence[Arm], datasets: Any) -> dict[str, Arm]:
    """Return the runs of plain training of other lengths than its own."""
    own = {arm.cell for arm in arms if arm.cell.method == PLAIN}
    found: dict[Cell, Arm] = {}
    for arm in arms:
        runs = Arm(arm.same_steps, arm.base), Arm(arm.same_compute, arm.base)
        found |= {each.cell: each for each in runs if each.cell not in own}
    kept = sorted(found, key=lambda cell: (cell.data, cell.epochs))
    return {f"{PLAIN}{_of(cell.data, datasets)}, {cell.epochs:g} epochs": found[cell] for cell in kept}


def cells_of(one: Arm) -> dict[str, str]:
    """Format what the tables say of a line, by column: means over seeds, gains, and what data and training took."""
    row, cell = one.rows[0], one.cell
    found = {_head(name): mean_cell([each.metrics for each in one.rows], name) for name in (*RETRIEVAL, *NEAR)}
    for name in (*SCORED, BOTH):
        for against, column in (("compute", "gain"), ("steps", "gain at equal steps")):
            found[f"{_head(name)}, {column}"] = str(one.gains[against].get(name, NONE))
    if not one.same_steps:
        return found | dict.fromkeys(COSTS, NONE)
    weight = f"{cell.grid_weight:g}" if cell.grid_weight else ""
    for head, name in COSTS.items():  # of the part of the data that is trained on
        found[head] = NONE if row[name] is None else f"{row[name] * row['share']:,.{2 * (name == 'dollars')}f}"
    return found | {
        "samples trained on": f"{row['samples_encoded']:,}",
        "learning rate": f"{cell.learning_rate:g}",
        "epochs": f"{cell.epochs:g}",
        "loss": " ".join(filter(None, (cell.fill, cell.loss, weight))) or NONE,
        "steps": f"{row['steps']:,}",
        "items": f"{row['items']:,.0f}",
        "seconds": f"{statistics.fmean(each['seconds'] for each in one.rows):,.0f}",
        "steps for equal compute": f"{one.ratio:g}x",
    }


def left_out(plans: Sequence[Plan]) -> Finding | None:
    """List the methods without rows in the tables, with the reason."""
    reasons = {f"{name} on {plan.setting.name}": why for plan in plans for name, why in plan.left_out.items()}
    if missing := [cell for plan in plans for cell in plan.missing]:
        first = ", ".join(cell.name for cell in missing[:3])
        reasons["not trained yet"] = f"{len(missing):,} cells or more, such as {first}"
    text = " ".join(f"`{name}`: {why}." for name, why in reasons.items())
    return Finding("left_out", "Left out", text) if text else None


def summary(lines: Lines) -> Finding:
    """Tabulate R@1, near misses, the gain over plain training at equal compute, and the cost of the data."""
    metrics = _measured(lines)
    gained = [*metrics, BOTH]
    table = _table(lines, [*map(_head, metrics), *(f"{_head(name)}, gain" for name in gained), *COSTS])
    sizes = sorted({len(one.rows[0].ranks["i2t"]) for one in lines.values()})
    seeds = max((len(one.rows) for one in lines.values()), default=0)
    alone = "" if seeds > 1 else " (one seed: other images alone)"
    few = ", too few for a conclusion" if min(sizes, default=FEW) < FEW else ""
    note = (
        f"{' or '.join(f'{size:,}' for size in sizes)} images{few}, {seeds} seed{'s' if seeds > 1 else ''}. "
        "*near*: share of near misses in which the query is nearer to the truth than to the false positive. *Gain*: "
        f"over plain training of equal compute, in points, with the 95% interval{alone} (*: excludes 0); *both*: the "
        "mean of the gains before it. "
        f"These are {len(_compared(lines)) * len(gained)} comparisons; one in twenty excludes 0 by chance."
    )
    return Finding("summary", "In one table", note, table)


def retrieval(lines: Lines, papers: Mapping[str, str]) -> Finding:
    """Tabulate R@1, R@5, R@10 and MRR of all trainings; `papers` says which dataset of RePair's paper a dataset is."""
    table = _table(lines, [*map(_head, RETRIEVAL)])
    note = (
        "R@K in %: an annotated positive is among the top K. MRR: mean of 1 / rank of the best one. Ties are ranked "
        "pessimistically. ±: standard deviation over seeds."
    )
    if papers:
        published = {name: published_results(paper) for name, paper in papers.items()}
        for name in R1:
            figures = [published.get(one.cell.data, {}).get(one.cell.method, {}).get(name) for one in lines.values()]
            table[f"paper: {label(name)}"] = [f"{float(each):.2f}" if each else NONE for each in figures]
        named = " and ".join(papers.values())
        note += f" The columns `paper` hold the figures of RePair's paper for {named}; they were not measured here."
    data = [{"method": name, "seed": row.cell.seed, **row.metrics} for name, one in lines.items() for row in one.rows]
    return Finding("retrieval", "Retrieval", note, table, data=pd.DataFrame(data))


def near_misses(lines: Lines) -> Finding | None:
    """Tabulate the accuracies on near misses, if there are any."""
    measured = {name: one for name, one in lines.items() if not set(NEAR).isdisjoint(one.rows[0].metrics)}
    if not measured:
        return None
    near = next(iter(lines.values())).rows[0].queries
    counts = [f"{len(near[f'{way}_truth']):,} {way.upper()}" for way in DIRECTIONS if f"{way}_truth" in near]
    note = (
        f"{', '.join(counts)}: failures of the base in this split, audited and repaired. *Truth*: share in which the "
        "query is nearer to the truth than to the false positive, 0 for the base. *Edit*: nearer to the edit than to "
        "what it was made from."
    )
    return Finding("near_misses", "Near misses", note, _table(measured, [*map(_head, NEAR)]))


def gains(lines: Lines) -> Finding | None:
    """Tabulate each arm's gain over plain training at equal steps; the CSV has that at equal compute, too."""
    if not (compared := _compared(lines)):
        return None
    heads = {f"{_head(name)}, gain at equal steps": _head(name) for name in (*_measured(compared), BOTH)}
    data = [
        {"method": name, "against": f"equal {against}", "metric": metric}
        | {bound: getattr(found, bound) for bound in ("mean", "low", "high")}
        for name, one in compared.items()
        for against, by_metric in one.gains.items()
        for metric, found in by_metric.items()
    ]
    note = (
        "Gain over plain training of as many steps, in points, with the 95% interval (*: excludes 0). Steps for equal "
        "compute: as many as encode the method's images or captions, whichever is more."
    )
    table = _table(compared, [*heads, "steps for equal compute"]).rename(columns=heads)
    return Finding("gains", "Against plain training of equal steps", note, table, data=pd.DataFrame(data))


def default(lines: Lines) -> Finding | None:
    """Apply the rule of docs/study.md for the default of `train`: which fill, loss and grid weight of `repair`."""
    arms = {name: one for name, one in lines.items() if one.cell.method == "repair"}
    if len(arms) < 2 or len({arm.cell.data for arm in arms.values()}) > 1:
        return None
    scores, r1 = (
        {name: gain(arm.rows, arm.same_compute, arm.base, metrics).of_images() for name, arm in arms.items()}
        for metrics in (SCORED, R1)
    )
    allowed = [name for name in arms if r1[name].high >= 0] or list(arms)
    best = max(allowed, key=lambda name: scores[name].mean)
    rows = []
    for name in sorted(arms, key=lambda name: -scores[name].mean):
        behind = scores[name].of_images(scores[best])
        verdict = "tied" if behind.high >= 0 else "behind"
        verdict = "best" if name == best else verdict if name in allowed else "left out"
        rows.append([name, str(scores[name]), str(behind) if name != best else NONE, str(r1[name]), verdict])
    note = (
        "Score: mean gain over plain training of equal compute, in R@1 and near misses, both directions. Intervals "
        "cover other images alone, with seeds averaged. Left out: R@1 is behind plain training. Tied: the score's "
        "distance from the best has an interval that includes 0."
    )
    heads = ["repair", "score", "from the best", "gain in R@1", "verdict"]
    return Finding("default", "Which default", note, pd.DataFrame(rows, columns=heads))


def cost(lines: Lines) -> Finding:
    """Tabulate what each arm's data and training cost, and its settings."""
    heads = "samples trained on,learning rate,epochs,loss,steps,items,seconds".split(",")
    note = (
        "Calls, images and dollars as if methods shared nothing, rejects included; dollars at list prices, 0 for "
        "models on this machine. Items: images and captions that the training encoded."
    )
    trained = {name: one for name, one in lines.items() if one.same_steps}
    return Finding("cost", "Cost", note, _table(trained, [*COSTS, *heads]))


def tuning(plans: Sequence[Plan]) -> Finding | None:
    """Tabulate what was tried on the validation split."""
    rows = [
        asdict(cell) | {metric: round(row.metrics[metric], 4) for metric in SCORED if metric in row.metrics}
        for plan in plans
        for cell, row in plan.tried.items()
    ]
    if not rows:
        return None
    note = "Every training that was evaluated on the validation split, to choose the settings of the tables."
    return Finding("tuning", "Tuning", note, pd.DataFrame(rows).drop(columns=["split", "budget"]))


def published_results(dataset: str) -> dict[str, dict[str, str]]:
    """Read what RePair's paper reports for a dataset: method -> column -> figure, empty if not reported."""
    with (files("repair_hf.study") / "paper.csv").open(encoding="utf-8") as file:
        return {row["method"]: row for row in csv.DictReader(file) if row["dataset"] == dataset}


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


def _of(data: str, datasets: Any) -> str:
    return f" on {data}" if len(datasets) > 1 else ""


def _compared(lines: Lines) -> Lines:
    return {name: one for name, one in lines.items() if one.gains["steps"]}


def _measured(lines: Lines) -> list[str]:
    return [name for name in SCORED if any(name in one.rows[0].metrics for one in lines.values())]


def _head(metric: str) -> str:
    way, _, measure = metric.partition("_")
    return metric if metric == BOTH else f"{way.upper()} near {measure}" if measure in MEASURES else label(metric)


def _table(lines: Lines, heads: Sequence[str]) -> pd.DataFrame:
    cells = [{"method": name} | cells_of(one) for name, one in lines.items()]
    return pd.DataFrame(cells).reindex(columns=["method", *heads])
