"""Did repair help? What `repair-hf evaluate` measured and compared below a run's folder.

What answers is the difference between a model that was trained with records and one that was trained without. The
change from the base does not: plain training raises R@1, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import difference_cell, label
from repair_hf.evaluation.comparison import short_names
from repair_hf.evaluation.near_misses import NAME as NEAR_MISSES
from repair_hf.evaluation.ranks import FILE as RANKS
from repair_hf.runtime.files import read_json

EVALUATE = "`repair-hf evaluate BASE PLAIN REPAIRED --output …`"


def repair_findings(root: Path | None) -> list[Finding]:
    """Return what opens a report, and how near misses and the ranks of queries changed."""
    measured = {} if root is None else find_evaluations(root)
    names = {Path(folder): name for name, folder in short_names(list(map(str, measured))).items()}
    repairs = {
        f"{names[folder / one['model']]} − {names[folder / one['reference']]}": one
        for folder, one in ([] if root is None else _find_repairs(root))
    }
    levels = {names[folder]: found for folder, found in measured.items()}
    tables, data = [], []
    for is_shown in (is_recall, is_near_miss):
        table = [{"model": name} | _levels(found, is_shown) for name, found in levels.items()]
        for name, one in repairs.items():
            gains = {metric: gain for metric, gain in one["differences"].items() if is_shown(metric)}
            table.append(
                {"model": name} | {label(metric): difference_cell(metric, each) for metric, each in gains.items()}
            )
            data += [{"comparison": name, "metric": metric} | each for metric, each in gains.items()]
        tables.append(pd.DataFrame([row for row in table if len(row) > 1]))
    recall, near_misses = tables
    helped = Finding("repair", "Did repair help?", _answer(bool(levels), data), recall if levels else None)
    changed = [
        {"comparison": name, "direction": way} | counts
        for name, one in repairs.items()
        for way, counts in one["queries"].items()
    ]
    found = [replace(helped, data=pd.DataFrame(data)) if data else helped]
    if len(near_misses):
        note = "Share of near misses that are nearer to the truth, or to the edit, than to the false positive, in %."
        found.append(Finding("near_misses", "Near misses", note, near_misses))
    if changed:
        note = "repaired: first only with records; broken: first only without; improved, worsened: first with neither."
        found.append(Finding("ranks", "Ranks with and without records", note, pd.DataFrame(changed)))
    return found


def find_evaluations(root: Path) -> dict[Path, dict[str, Any]]:
    """Find the metrics of each model that was evaluated below a folder, by its folder, in the order of `evaluate`."""
    several = (path.parent for path in sorted(root.rglob("differences.json")))
    found = {folder / name: each for folder in several for name, each in read_json(folder / "metrics.json").items()}
    for path in sorted(root.rglob(RANKS)):
        if path.parent not in found and (path.parent / "metrics.json").is_file():
            found[path.parent] = read_json(path.parent / "metrics.json", needs=("intervals",))
    return found


def _find_repairs(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the comparisons of models trained with records and without, each with the folder of its evaluation."""
    for path in sorted(root.rglob("differences.json")):
        for one in read_json(path).get("repair", ()):
            if one["reference"] is not None:
                yield path.parent, one


def is_recall(metric: str) -> bool:
    return metric.endswith("_R@1")


def is_near_miss(metric: str) -> bool:
    return metric.startswith(NEAR_MISSES)


def _levels(metrics: dict[str, Any], is_shown: Callable[[str], bool]) -> dict[str, str]:
    return {label(name): f"{100 * metrics[name]:.1f}" for name in metrics["intervals"] if is_shown(name)}


def _answer(is_measured: bool, differences: list[dict[str, Any]]) -> str:
    if not is_measured:
        return f"Not measured. Run {EVALUATE} with a folder below this one."
    if not differences:
        return (
            "Not known: plain training raises R@1 too, and no model without records was measured beside the repaired "
            f"one. Train one for as many steps without `--records`, and run {EVALUATE} with a folder below this one."
        )
    rose, fell = sum(row["low"] > 0 for row in differences), sum(row["high"] < 0 for row in differences)
    verdict = "Partly" if rose and fell else "Yes" if rose else "No" if fell else "Not shown"
    return (
        f"{verdict}: better in {rose} and worse in {fell} of {len(differences)} comparisons of training with records "
        "and without, by R@1 and near misses. In %; *: the 95% interval excludes 0."
    )
