"""Repairs: ranks of the queries before and after training, by error type, and R@1 round by round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from repair_hf.analysis.charts import COLOURS, NAMES, chart
from repair_hf.analysis.report import Finding
from repair_hf.analysis.rounds import round_rows
from repair_hf.analysis.run_data import RunData
from repair_hf.evaluation.comparison import CHANGES, are_of_same_queries, compare_queries
from repair_hf.evaluation.intervals import Draws, interval
from repair_hf.evaluation.ranks import FILE, load_ranks
from repair_hf.records.columns import DIRECTIONS
from repair_hf.runtime.own_files import read_json, read_table

BASES = ("base", "evaluate/base", "evaluate-base")  # where a run's retriever before repair was evaluated


def find_ranks(root: Path | None) -> dict[str, tuple[pa.Table, pa.Table]]:
    """Find the ranks before and after training of every model below a run's folder; empty if there are none.

    The reference is the one that `repair-hf evaluate` compared several models with, else the run's base.
    """
    if root is None:
        return {}
    compared = []
    for path in sorted(root.rglob("queries.parquet")):
        names = read_table(path).select(["reference", "model"]).to_pandas().drop_duplicates()
        compared += [(path.parent, reference, model) for reference, model in names.itertuples(index=False)]
    times = Counter(model for _, _, model in compared)  # the same model on several splits has several folders
    found = {}
    for folder, reference, model in compared:
        name = model if times[model] == 1 else (folder / model).relative_to(root).as_posix()
        found[name] = load_ranks(folder / reference), load_ranks(folder / model)
    base = next((root / name for name in BASES if (root / name / FILE).is_file()), None)
    if not found and base is not None:
        before = load_ranks(base)
        for path in sorted(root.rglob(FILE)):
            if path.parent != base and are_of_same_queries(before, now := load_ranks(path.parent)):
                found[path.parent.relative_to(root).as_posix().removesuffix("/evaluate")] = before, now
    return found


def find_queries(root: Path | None) -> pd.DataFrame | None:
    """Find both ranks of each query of `find_ranks`; None if there are none."""
    frames = [compare_queries(*both).to_pandas().assign(model=name) for name, both in find_ranks(root).items()]
    return pd.concat(frames, ignore_index=True) if frames else None


def recall_changes(ranks: Mapping[str, tuple[pa.Table, pa.Table]]) -> pd.DataFrame:
    """Compare R@1 before and after, in percent, with the 95% interval of the change over the images.

    Returns:
        `model`, `direction`, `before`, `after`, `change`, `low`, `high`.
    """
    rows = []
    for model, (old, new) in ranks.items():
        directions, images = old["direction"].to_numpy(), (old["q_id"].to_numpy(), old["gt_id"].to_numpy())
        for way, names in zip(("i2t", "t2i"), images, strict=True):
            is_way = directions == way
            if is_way.any():
                ids, image = np.unique(names[is_way].astype(str), return_inverse=True)
                before, after = (100.0 * (table["gt_rank"].to_numpy()[is_way] == 1) for table in (old, new))
                bounds = interval(Draws(len(ids)).means(after - before, image))
                rows.append((model, way, before.mean(), after.mean(), (after - before).mean(), *bounds))
    return pd.DataFrame(rows, columns=["model", "direction", "before", "after", "change", "low", "high"])


def rank_finding(data: RunData) -> Finding:
    """How training changed the rank of each query."""
    queries = find_queries(data.root)
    if queries is None:
        note = (
            "This folder holds no ranks of two models. `repair-hf evaluate BASE TRAINED --output` a folder below it "
            "writes them."
        )
        return Finding("ranks", "Ranks before and after", note)
    counts = queries.groupby(["model", "direction"], sort=False)["change"].value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=CHANGES, fill_value=0)
    table = counts.assign(queries=counts.sum(axis=1)).reset_index()[["model", "direction", "queries", *CHANGES]]
    note = (
        "repaired: first only after training; broken: first only before; improved, worsened: first neither before nor "
        "after."
    )
    return Finding("ranks", "Ranks before and after", note, table, data=queries)


def round_finding(root: Path | None) -> Finding | None:
    """R@1 after each round of `repair-hf run`; None if there were no rounds."""
    if root is None or not (root / "rounds.json").is_file():
        return None
    history = read_json(root / "rounds.json", needs=("rounds", "split", "stopped"))
    rounds: Sequence[dict] = history["rounds"]
    heads, rows = round_rows(rounds)
    with chart(1.8) as (figure, axes):
        for direction in DIRECTIONS:
            values = [100 * each["metrics"][f"{direction}_R@1"] for each in rounds]
            mark = {"i2t": "o-", "t2i": "s--"}[direction]
            axes.plot(range(len(rounds)), values, mark, color=COLOURS[direction], label=NAMES[direction], ms=4, lw=1.3)
        axes.set_xticks(range(len(rounds)), ["base", *(str(each["round"]) for each in rounds[1:])])
        axes.set_xlabel("round of repair")
        axes.set_ylabel("R@1, %")
        axes.legend(fontsize=7)
    why = f"Measured on the split `{history['split']}`; stopped {history['stopped']}."
    return Finding("rounds", "Round by round", why, pd.DataFrame(rows, columns=heads), figure)
