"""Did repair help? The evaluations below a run's folder, compared query by query.

What answers is the difference between a model that was trained with records and one that was trained without. The
change from the base does not: plain training raises R@1, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import difference_cell, interval_cells, label
from repair_hf.evaluation.comparison import CHANGES, compare_queries, count_changes, short_names
from repair_hf.evaluation.intervals import RESAMPLES, Draws, interval
from repair_hf.evaluation.judging import FILE as CASES
from repair_hf.evaluation.judging import load_cases
from repair_hf.evaluation.near_misses import NAME as NEAR_MISSES
from repair_hf.evaluation.ranks import FILE as RANKS
from repair_hf.evaluation.ranks import load_ranks
from repair_hf.evaluation.training_data import find_trainings, uses_records
from repair_hf.records.columns import DIRECTIONS
from repair_hf.runtime.own_files import read_json

KINDS = ("base", "plain", "repaired")
EVALUATE = "`repair-hf evaluate BASE PLAIN REPAIRED --output …`"


@dataclass(frozen=True)
class Evaluated:
    """A model as `repair-hf evaluate` measured it."""

    name: str
    folder: Path
    metrics: dict[str, Any]
    kind: str  # one of `KINDS`
    seed: Any  # of its training

    def right(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return whether each query or near miss is right, and the number of its image, by metric."""
        ranks = load_ranks(self.folder).to_pandas()
        image = ranks["gt_id"].where(ranks["direction"] == "t2i", ranks["q_id"])
        first = {name: row for row, name in enumerate(dict.fromkeys(image[ranks["direction"] == "i2t"]))}
        rows = image.map(first) if image.isin(first.keys()).all() else pd.Series(pd.factorize(image)[0])
        is_way = {way: (ranks["direction"] == way).to_numpy() for way in DIRECTIONS}
        found = {
            f"{way}_R@1": ((ranks["gt_rank"] == 1).to_numpy()[own], rows.to_numpy()[own])
            for way, own in is_way.items()
            if own.any()
        }
        if (self.folder / CASES).is_file():
            cases = load_cases(self.folder).to_pandas()
            cases = cases[cases["benchmark"].str.startswith(NEAR_MISSES)]
            for (benchmark, measure), own in cases.groupby(["benchmark", "measure"]):
                found[f"{benchmark}_{measure}"] = (
                    own["correct"].to_numpy(),
                    np.unique(own["picture_id"], return_inverse=True)[1],
                )
        return found


def find_evaluations(root: Path | None) -> list[list[Evaluated]]:
    """Find the evaluations below a folder, in groups of the same images and captions: base, plain, then repaired."""
    folders = (
        [] if root is None else [path.parent for path in root.rglob(RANKS) if (path.parent / "metrics.json").is_file()]
    )
    names = short_names([str(folder) for folder in sorted(folders)])
    groups: dict[Any, list[Evaluated]] = defaultdict(list)
    for name, folder in names.items():
        metrics = read_json(Path(folder) / "metrics.json", needs=("model", "pairs_fingerprint", "intervals"))
        training = next(iter(find_trainings(metrics["model"])), None)
        kind = "base" if training is None else "repaired" if uses_records(training.options) else "plain"
        seed = None if training is None else training.options.get("seed")
        groups[metrics["pairs_fingerprint"]].append(Evaluated(name, Path(folder), metrics, kind, seed))
    return [sorted(group, key=lambda one: KINDS.index(one.kind)) for group in groups.values()]


def baselines_of(model: Evaluated, group: Sequence[Evaluated]) -> list[Evaluated]:
    """Return the plainly trained models to compare a repaired one with: those of its seed if there are any."""
    plain = [one for one in group if one.kind == "plain"] if model.kind == "repaired" else []
    return [one for one in plain if one.seed == model.seed] or plain


def compare(model: Evaluated, reference: Evaluated) -> dict[str, dict[str, float]]:
    """Return the `difference` of each metric with its 95% interval over the images, `low` and `high`."""
    before, found = reference.right(), {}
    for metric, (now, image) in model.right().items():
        if metric in before and len(before[metric][0]) == len(now):
            gain = now.astype(float) - before[metric][0]
            low, high = interval(Draws(int(image.max()) + 1, RESAMPLES).means(gain, image))
            found[metric] = {"difference": float(gain.mean()), "low": float(low), "high": float(high)}
    return found


def repair_findings(root: Path | None) -> list[Finding]:
    """Return what opens a report, and how the rank of each query changed."""
    groups = find_evaluations(root)
    pairs = [(one, plain) for group in groups for one in group for plain in baselines_of(one, group)]
    gains = {f"{one.name} − {plain.name}": compare(one, plain) for one, plain in pairs}
    rows = [{"model": one.name} | _levels(one) for group in groups for one in group]
    for name, metrics in gains.items():
        rows.append({"model": name} | {key: difference_cell(key, each).strip() for key, each in metrics.items()})
    found = [{"comparison": name, "metric": key} | each for name, one in gains.items() for key, each in one.items()]
    table, data = (pd.DataFrame(each) if each else None for each in (rows, found))
    if table is not None:
        table = table.rename(columns=_head)
    return [Finding("repair", "Did repair help?", _answer(groups, found), table, data=data), *_rank_changes(pairs)]


def _head(name: str) -> str:
    return f"near misses {label(name)}" if name.startswith(NEAR_MISSES) else label(name)


def _levels(model: Evaluated) -> dict[str, str]:
    """Format R@1 and the shares of near misses with their intervals."""
    cells = interval_cells({model.name: model.metrics})
    return {name: cell for name, (cell,) in cells.items() if name.endswith("_R@1") or name.startswith(NEAR_MISSES)}


def _answer(groups: Sequence[Sequence[Evaluated]], data: Sequence[dict[str, Any]]) -> str:
    if not groups:
        return f"Not measured. Run {EVALUATE} with a folder below this one."
    if not data:
        return (
            "Not known: plain training raises R@1 too, and no model without records was measured on the same pairs. "
            f"Train one for as many steps without `--records`, and run {EVALUATE}."
        )
    rose, fell = sum(row["low"] > 0 for row in data), sum(row["high"] < 0 for row in data)
    verdict = "Partly" if rose and fell else "Yes" if rose else "No" if fell else "Not shown"
    return (
        f"{verdict}: training with records is better in {rose} and worse in {fell} of {len(data)} comparisons with "
        "training without. *: the 95% interval of the difference excludes 0. R@1 and near misses in %."
    )


def _rank_changes(pairs: Sequence[tuple[Evaluated, Evaluated]]) -> list[Finding]:
    if not pairs:
        return []
    tables = [compare_queries(load_ranks(plain.folder), load_ranks(one.folder)) for one, plain in pairs]
    rows = [
        {"comparison": f"{one.name} − {plain.name}", "direction": way, **counts}
        for (one, plain), table in zip(pairs, tables, strict=True)
        for way, counts in count_changes(table).items()
    ]
    note = "repaired: first only with records; broken: first only without; improved, worsened: first with neither."
    columns = ["comparison", "direction", *CHANGES]
    data = pa.concat_tables(tables).to_pandas()
    return [Finding("ranks", "Ranks with and without records", note, pd.DataFrame(rows, columns=columns), data=data)]
