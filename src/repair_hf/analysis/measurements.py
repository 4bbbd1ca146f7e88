"""What `evaluate` prints: each metric with its interval, differences of models, and what happened query by query.

In:  metrics of models on the same data, as `metrics.json` has them; differences and counts, as `comparison` makes them.
Out: rich Tables. Shares in percent with one decimal, MRR with three, median ranks as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from repair_hf.analysis.tables import NONE, SIDES, terminal_table

WIDTH = 78  # of a line; where `78.0 [76.2, 79.8]` of all models is wider, the brackets go below the number


def intervals_table(measured: Mapping[str, Mapping[str, Any]]) -> Table:
    """Each metric that has an interval, a row; each model, a column.

    Args:
        measured: Short name of a model -> its metrics, with their bounds in `intervals`.
    """
    return _table(["", *measured], {label(name): cells for name, cells in interval_cells(measured).items()})


def interval_cells(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Each metric that has an interval, for each model: `78.0 [76.2, 79.8]`; a dash for a model that lacks it.

    Args:
        measured: As of `intervals_table`.
    """
    names = list(dict.fromkeys(name for metrics in measured.values() for name in metrics["intervals"]))
    return {
        name: [
            _cell(name, metrics[name], *metrics["intervals"][name], sign="") if name in metrics["intervals"] else NONE
            for metrics in measured.values()
        ]
        for name in names
    }


def differences_table(found: Mapping[str, Mapping[str, Mapping[str, float]]], reference: str) -> Table:
    """Each metric's paired difference to the reference, with its interval; a star where that leaves out 0.

    Args:
        found: Short name of a model -> metric -> `difference`, `low`, `high`.
        reference: Short name of the model that all are compared with.
    """
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    rows = {label(name): [_difference(name, one.get(name)) for one in found.values()] for name in names}
    return _table([f"less {reference}", *found], rows)


def changes_table(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Table:
    """How many queries were repaired and broken, by model and direction.

    Args:
        counts: Short name of a model -> direction -> change -> how many queries.
    """
    kinds = list(next(iter(next(iter(counts.values())).values())))
    rows = {
        f"{model} {SIDES[direction]}": [f"{found[kind]:,}" for kind in kinds]
        for model, directions in counts.items()
        for direction, found in directions.items()
    }
    return _table(["queries", *kinds], rows)


def label(name: str) -> str:
    """A metric's name for a reader: `i2t_R@1` is `I2T R@1`."""
    side, _, kind = name.partition("_")
    return f"{SIDES[side]} {kind.replace('_', ' ')}" if side in SIDES else name.replace("_", " ")


def _difference(name: str, bounds: Mapping[str, float] | None) -> str:
    if bounds is None:
        return NONE
    star = "  " if bounds["low"] <= 0 <= bounds["high"] else " *"
    return _cell(name, bounds["difference"], bounds["low"], bounds["high"], sign="+") + star


def _cell(name: str, value: float, low: float, high: float, *, sign: str) -> str:
    shown, *bounds = (_number(name, each, sign) for each in (value, low, high))
    return f"{shown} [{', '.join(bounds)}]"


def _number(name: str, value: float, sign: str) -> str:
    if name.endswith("median_rank"):
        return f"{value:{sign},.10g}"
    return f"{value:{sign}.3f}" if name.endswith("MRR") else f"{100 * value:{sign}.1f}"


def _table(heads: list[str], rows: Mapping[str, list[str]]) -> Table:
    widths = [
        max(map(len, column)) + 1 for column in zip(*([name, *cells] for name, cells in rows.items()), strict=True)
    ]
    is_wide = sum(widths) > WIDTH
    return terminal_table(
        heads,
        ([name, *(cell.replace(" [", "\n[") if is_wide else cell for cell in cells)] for name, cells in rows.items()),
    )
