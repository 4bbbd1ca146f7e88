"""Leave out mined failures before anything is paid for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repair_hf.runtime.options import Bounded, UserError, opt

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(kw_only=True)
class FilterOptions(Bounded):
    """Which of the mined failures to repair; names and formulas of sentence-transformers' `mine_hard_negatives`.

    For a query with several positives that takes the worst-scored one, and mined failures name the best-scored one.
    """

    failures_only: bool = opt(False, "Repair only false positives that rank before the ground truth.", main=True)
    max_score: float | None = opt(None, "Skip false positives whose cosine to the query is higher than this.")
    relative_margin: float | None = opt(
        None,
        "Skip false positives whose cosine to the query exceeds gt - relative_margin x |gt|, gt: the ground truth's.",
    )
    limit: int | None = opt(
        None,
        "Repair at most this many failures of each direction, drawn at random: for a trial.",
        least=1,
        main=True,
    )


def filter_failures(failures: Dataset, options: FilterOptions, seed: int = 0) -> tuple[Dataset, Mapping[str, int]]:
    """Keep what the options want, in the order of `failures`; of two limits the smaller keeps some of the larger's.

    Returns:
        The failures that are kept; and how many each option left out, the options one after the other.

    Raises:
        UserError: If none is left.
    """
    import numpy as np

    columns = failures.select_columns(["direction", "fp_score", "gt_score", "fp_rank", "gt_rank"]).to_pandas()
    wanted = {}
    if options.failures_only:
        wanted["failures_only"] = columns["fp_rank"] < columns["gt_rank"]
    if options.max_score is not None:
        wanted["max_score"] = columns["fp_score"] <= options.max_score
    if options.relative_margin is not None:
        most = columns["gt_score"] - columns["gt_score"].abs() * options.relative_margin
        wanted["relative_margin"] = columns["fp_score"] <= most
    stays, left_out = np.ones(len(columns), bool), {}
    for name, is_wanted in wanted.items():
        left_out[name] = int((stays & ~is_wanted).sum())
        stays &= is_wanted.to_numpy()
    if options.limit is not None:
        order = np.random.default_rng(seed).permutation(len(columns))
        drawn = columns.iloc[order[stays[order]]].groupby("direction").head(options.limit).index
        left_out["limit"] = int(stays.sum()) - len(drawn)
        stays = columns.index.isin(drawn)
    if len(columns) and not stays.any():
        raise UserError(f"No failure of {len(columns):,} is left: {described(left_out)}. Loosen these options.")
    return (failures.select(np.flatnonzero(stays)) if left_out else failures), left_out


def described(left_out: Mapping[str, int]) -> str:
    """Say how many failures each option left out."""
    return ", ".join(f"`{name}` leaves out {count:,}" for name, count in left_out.items())
