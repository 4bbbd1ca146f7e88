"""The items that people judge: a stratified, seeded sample of a run, laid out in a folder for the page.

A task has a folder, `RECORDS/people/qc` or `RECORDS/people/edits`:

    items.csv              the sample, the size of each stratum, and the audit's verdict; the page never reads it
    shown/items.jsonl      what annotators see, in a shuffled order, without a verdict or a reason
    shown/pictures/*.webp
    answers/NAME.jsonl     the answers of each annotator; written by the page

`qc` draws the same number of accepted and rejected failures, `edits` the same number of records of each direction. The
`population` of each stratum is kept, so that shares of the whole run can be estimated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from datasets import Dataset, Features, Value
from PIL import Image

from repair_hf.analysis.run_data import RunData, recorded_pairs
from repair_hf.records.answers import COLUMNS, ITEMS, PEOPLE, read_items
from repair_hf.records.columns import MODALITIES, REJECTED, SOURCES
from repair_hf.records.images import lacks_images, record_at, restore_images
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import write_atomically

Task = Literal["qc", "edits"]
SIDE = 512  # pixels of an image's longest side
ROLES = {"qc": ("q", "gt", "fp"), "edits": ("q", "gt", "fp", "edit")}


def draw(data: RunData, task: Task, *, size: int, seed: int) -> pd.DataFrame:
    """Draw the items of a task: at most `size` per verdict of the audit (`qc`) or per direction (`edits`).

    Returns:
        The rows of failures or records in a shuffled order, with `place` (in `records`; -1 for a dropped failure),
        `accepted`, `item` and `population`.

    Raises:
        UserError: If there is nothing to judge.
    """
    kept = data.kept.assign(place=np.arange(len(data.kept)), accepted=True)
    strata = ["direction"]
    pool = kept
    if task == "qc":
        audited = data.dropped[data.dropped["fp_reason"].notna()]
        dropped = audited.assign(place=-1, accepted=~audited["reason"].isin(REJECTED), record_id=None)
        pool, strata = pd.concat([kept, dropped], ignore_index=True), ["accepted"]
    if pool.empty:
        raise UserError(f"{data.name} holds nothing that people could judge.")
    rng = np.random.default_rng(seed)
    drawn = [part.iloc[rng.permutation(len(part))[:size]] for _, part in pool.groupby(strata)]
    drawn = pd.concat(drawn).sample(frac=1, random_state=rng)
    # Within a verdict the directions are drawn in proportion, so each cell of both stands for its own population.
    cells = ["accepted", "direction"]
    drawn = drawn.merge(pool.groupby(cells).size().rename("population").reset_index(), on=cells)
    names = (f"{task}{seed}{row.direction}{row.q_id}{row.fp_id}{row.round}" for row in drawn.itertuples())
    return drawn.assign(item=[hashlib.sha256(name.encode()).hexdigest()[:12] for name in names])


def lay_out(data: RunData, task: Task, *, size: int, seed: int, pairs: str | None = None) -> int:
    """Write the folder of a task into the run's first folder, and return the number of its items.

    An existing folder keeps its items. Images that the records lack, such as those of rejected failures, come from the
    pairs of the run; `pairs` is where they are now.

    Raises:
        UserError: If the folder was made with another size or seed.
    """
    here = data.folders[0] / PEOPLE / task
    asked = {"task": task, "size": size, "seed": seed}
    if (here / "task.json").is_file():
        begun = read_json(here / "task.json", needs=asked)
        if begun != asked:
            raise UserError(
                f"{here} was begun with size {begun['size']} and seed {begun['seed']}; give these, or move the folder."
            )
        return len(read_items(here))
    drawn = draw(data, task, size=size, seed=seed)
    (here / "shown" / "pictures").mkdir(parents=True, exist_ok=True)
    whole = _with_images(data, drawn, pairs)
    lines = [json.dumps(_shown(row, ROLES[task], here / "shown" / "pictures")) for row in whole]
    write_atomically(here / "shown" / "items.jsonl", "\n".join(lines) + "\n")
    write_atomically(here / ITEMS, drawn[COLUMNS].to_csv(index=False))
    write_atomically(here / "task.json", json.dumps(asked))  # last: marks the folder as complete
    return len(drawn)


def _with_images(data: RunData, drawn: pd.DataFrame, pairs: str | None) -> Iterator[dict[str, Any]]:
    """Yield the drawn failures and records with their images, in their order."""
    is_kept = drawn["place"] >= 0
    names = ["direction", *(f"{role}_{kind}" for role in SOURCES for kind in ("id", "text"))]
    failures = Dataset.from_pandas(
        drawn[~is_kept][names], Features(dict.fromkeys(names, Value("string"))), preserve_index=False
    )
    tables = [data.records.select(drawn[is_kept]["place"]), failures]
    if any(map(lacks_images, tables)):
        known = recorded_pairs(data.folders[0], pairs)
        tables = [restore_images(table, known) for table in tables]
    turns = [0, 0]
    for item, kept in zip(drawn["item"], is_kept, strict=True):
        yield record_at(tables[1 - kept], turns[1 - kept]) | {"item": item}
        turns[1 - kept] += 1


def _shown(row: dict[str, Any], roles: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Return the cells of an item that an annotator sees: captions, and file names of images, which are saved."""
    kinds, cells = MODALITIES[row["direction"]], {}
    for role in roles:
        if kinds[role] == "text":
            cells[role] = {"text": row[f"{role}_text"]}
            continue
        image = row[f"{role}_image"].convert("RGB")
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        name = f"{hashlib.sha256(image.tobytes()).hexdigest()[:16]}.webp"
        image.save(folder / name, "WEBP", quality=90)
        cells[role] = {"picture": name}
    return {"item": row["item"], "direction": row["direction"], "cells": cells}
