"""Repairs: what became of the queries, by rank before and after training, by kind of error, and round by round.

In:  the folders that `repair-hf evaluate` left below a run's folder; the records of the run.
Out: findings: ranks before and after, queries repaired and broken, the same by kind of error where the evaluated queries are those that
     were repaired, and the curve of the rounds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from repair_hf.analysis.charts import COLOURS, NAMES, chart
from repair_hf.analysis.errors import typed
from repair_hf.analysis.findings import Finding
from repair_hf.analysis.material import Material
from repair_hf.evaluation.comparison import CHANGES, are_of_same_queries, compare_queries
from repair_hf.evaluation.ranks import FILE, load_ranks
from repair_hf.records.columns import DIRECTIONS
from repair_hf.synthesis.rounds import round_rows

BASES = ("base", "evaluate/base", "evaluate-base")  # where a run's retriever before repair was evaluated


def find_queries(root: Path) -> pd.DataFrame | None:
    """Both ranks of each query, of every model below a run's folder against the base; None if there are none.

    Taken from `queries.parquet`, which `repair-hf evaluate` writes for several models, else joined from the models' own ranks.
    """
    frames = [pq.read_table(path).to_pandas() for path in sorted(root.rglob("queries.parquet"))]
    base = next((root / name for name in BASES if (root / name / FILE).is_file()), None)
    if not frames and base is not None:
        before = load_ranks(base)
        for path in sorted(root.rglob(FILE)):
            if path.parent != base and are_of_same_queries(before, now := load_ranks(path.parent)):
                name = str(path.parent.relative_to(root)).removesuffix("/evaluate")
                frames.append(compare_queries(before, now).to_pandas().assign(model=name))
    return pd.concat(frames, ignore_index=True) if frames else None


def rank_findings(material: Material) -> list[Finding]:
    """What training did to each query's rank."""
    queries = None if material.root is None else find_queries(material.root)
    if queries is None:
        told = (
            "No ranks of two models lie below this folder. repair-hf evaluate BASE TRAINED --output below it writes them; with the "
            "split that was repaired, queries are also told by kind of error."
        )
        return [Finding("ranks", "Ranks before and after", told)]
    table = _changes(queries, ["model", "direction"])
    told = (
        "repaired: not first before, first now; broken: the reverse; improved, worsened: neither before nor now first. "
        "The plot is of the last model: each query by both ranks, darker where there are many."
    )
    last = queries[queries["model"] == queries["model"].iloc[-1]]
    found = [Finding("ranks", "Ranks before and after", told, table, _rank_map(last), queries)]
    by_error = changes_by_error(queries, typed(material.kept, material.labels()))
    if by_error is None:
        told = "The evaluated queries are not those that were repaired, so that no kind of error is known of them. Evaluate on the repaired split to see it."
        return [*found, Finding("ranks_by_error", "Repaired and broken, by kind of error", told)]
    told = "Queries of the records, by the kinds of error of their false positives; a query counts for each."
    return [*found, Finding("ranks_by_error", "Repaired and broken, by kind of error", told, by_error)]


def changes_by_error(queries: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame | None:
    """Count what happened to the queries of records, by kind of error.

    Args:
        queries: `model`, `direction`, `q_id`, `change`.
        records: `direction`, `q_id`, `error_types`.

    Returns:
        `model`, `direction`, `error`, `queries` and the share of each change; None if no record's query was evaluated.
    """
    kinds = records.explode("error_types")[["direction", "q_id", "error_types"]].drop_duplicates()
    joined = queries.merge(kinds.rename(columns={"error_types": "error"}), on=["direction", "q_id"])
    return None if joined.empty else _changes(joined, ["model", "direction", "error"])


def round_finding(root: Path | None) -> Finding | None:
    """The curve of the rounds of `repair-hf run`; None if there were none."""
    if root is None or not (root / "rounds.json").is_file():
        return None
    told = json.loads((root / "rounds.json").read_text(encoding="utf-8"))
    rounds: Sequence[dict] = told["rounds"]
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
    why = f"Measured on the split `{told['split']}`; stopped: {told['stopped']}."
    return Finding("rounds", "Round by round", why, pd.DataFrame(rows, columns=heads), figure)


def _changes(queries: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    counts = queries.groupby(by, sort=False)["change"].value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=CHANGES, fill_value=0)
    shares = counts.div(counts.sum(axis=1), axis=0)
    return shares.assign(queries=counts.sum(axis=1)).reset_index()[[*by, "queries", *CHANGES]]


def _rank_map(queries: pd.DataFrame):
    """Rank before against rank now, each direction in a panel, counted in logarithmic cells."""
    with chart(1.9, columns=2) as (figure, panels):
        most = max(queries["before_rank"].max(), queries["rank"].max(), 10)
        edges = np.unique(np.geomspace(1, most + 1, 28).astype(int))
        for axes, direction in zip(panels, DIRECTIONS[::-1], strict=True):
            of_way = queries[queries["direction"] == direction]
            counts, *_ = np.histogram2d(of_way["before_rank"], of_way["rank"], [edges, edges])
            shown = np.ma.masked_equal(counts.T, 0)
            axes.pcolormesh(edges, edges, shown, cmap="cividis_r", norm="log" if shown.count() else None, lw=0)
            axes.plot([1, most], [1, most], color="#d55e00", lw=0.8)
            axes.set(xscale="log", yscale="log", xlabel="rank before", ylabel="rank now", aspect="equal")
            axes.set_title(NAMES[direction], loc="left", fontsize=7)
            axes.grid(False)
    return figure
