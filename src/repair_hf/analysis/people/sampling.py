"""The items that people judge: a stratified, seeded sample of a run.

`qc` draws the same number of accepted and rejected failures, `edits` the same number of records of each direction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, Features, Value

from repair_hf.analysis.people.judgements import Task
from repair_hf.analysis.run_data import PairsPlace, RunData, recorded_pairs
from repair_hf.records.columns import REJECTED, SOURCES
from repair_hf.records.images import lacks_images, record_at, restore_images
from repair_hf.runtime.options import UserError


def items_of(data: RunData, task: Task) -> pd.DataFrame:
    """Return all that people can judge: audited failures (`qc`), or records (`edits`).

    Returns:
        The rows of the run, with `item`, its id; `accepted`, the audit's verdict; and `place`, the row of `records`,
        or -1 for a dropped failure.
    """
    kept = data.kept.assign(place=np.arange(len(data.kept)), accepted=True)
    if task == "edits":
        return kept.assign(item=kept["record_id"])
    audited = data.dropped[data.dropped["fp_reason"].notna()]
    dropped = audited.assign(place=-1, accepted=~audited["reason"].isin(REJECTED))
    items = pd.concat([kept, dropped], ignore_index=True)
    names = (f"{row.direction}{row.q_id}{row.fp_id}{row.round}" for row in items.itertuples())
    return items.assign(item=[hashlib.sha256(name.encode()).hexdigest()[:16] for name in names])


def draw(data: RunData, task: Task, *, size: int, seed: int = 0) -> pd.DataFrame:
    """Draw at most `size` items of each verdict of the audit (`qc`) or each direction (`edits`), in a shuffled order.

    Raises:
        UserError: If there is nothing to judge.
    """
    items = items_of(data, task)
    if items.empty:
        raise UserError(f"{data.name} holds nothing that people could judge.")
    rng = np.random.default_rng(seed)
    strata = items.groupby("accepted" if task == "qc" else "direction")
    drawn = [stratum.iloc[rng.permutation(len(stratum))[:size]] for _, stratum in strata]
    return pd.concat(drawn).sample(frac=1, random_state=rng)


def with_images(data: RunData, drawn: pd.DataFrame, pairs: PairsPlace) -> Iterator[dict[str, Any]]:
    """Yield the drawn failures and records with their images, in their order.

    Images that the records lack, such as those of rejected failures, come from the pairs of the run; `pairs` is where
    they are now.
    """
    is_kept = drawn["place"] >= 0
    names = ["direction", *(f"{role}_{kind}" for role in SOURCES for kind in ("id", "text"))]
    failures = Dataset.from_pandas(
        drawn[~is_kept][names], Features(dict.fromkeys(names, Value("string"))), preserve_index=False
    )
    tables = [data.records.select(drawn[is_kept]["place"]), failures]
    if any(map(lacks_images, tables)):
        known = recorded_pairs(data.home, pairs)
        tables = [restore_images(table, known) for table in tables]
    turns = [0, 0]
    for item, kept in zip(drawn["item"], is_kept, strict=True):
        yield record_at(tables[1 - kept], turns[1 - kept]) | {"item": item}
        turns[1 - kept] += 1
