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
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from PIL import Image

from repair_hf.analysis.funnel import REJECTED
from repair_hf.analysis.run_data import RunData
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.answers import COLUMNS, ITEMS, PEOPLE, read_items
from repair_hf.records.columns import MODALITIES
from repair_hf.records.images import record_at
from repair_hf.runtime.options import UserError
from repair_hf.runtime.own_files import read_json
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


def lay_out(data: RunData, task: Task, folder: Path, *, size: int, seed: int, pairs: Callable[[], Pairs]) -> int:
    """Write the folder of a task, and return the number of its items. An existing folder keeps its items.

    Images that the records in `folder` lack, such as those of rejected failures, come from the `pairs`.

    Raises:
        UserError: If the folder was made with another size or seed.
    """
    here = folder / PEOPLE / task
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
    pictures = _Pictures(data, pairs, here / "shown" / "pictures")
    lines = [json.dumps(_shown(row, ROLES[task], pictures)) for row in drawn.to_dict("records")]
    write_atomically(here / "shown" / "items.jsonl", "\n".join(lines) + "\n")
    write_atomically(here / ITEMS, drawn.assign(dataset=data.dataset)[COLUMNS].to_csv(index=False))
    write_atomically(here / "task.json", json.dumps(asked))  # last: marks the folder as complete
    return len(drawn)


def _shown(row: dict[str, Any], roles: tuple[str, ...], pictures: _Pictures) -> dict[str, Any]:
    """The cells of an item that an annotator sees: captions, and file names of images."""
    kinds, cells = MODALITIES[row["direction"]], {}
    for role in roles:
        if kinds[role] == "text":
            cells[role] = {"text": row[f"{role}_text"]}
        else:
            cells[role] = {"picture": pictures.name(row, role)}
    return {"item": row["item"], "direction": row["direction"], "cells": cells}


class _Pictures:
    """Small copies of images, taken from the records, or else from the pairs."""

    def __init__(self, data: RunData, pairs: Callable[[], Pairs], folder: Path) -> None:
        self.records, self.load, self.folder = data.records, pairs, folder
        self.pairs: Pairs | None = None
        self.rows: dict[str, int] = {}

    def name(self, row: dict[str, Any], role: str) -> str:
        picture = record_at(self.records, int(row["place"]))[f"{role}_image"] if row["place"] >= 0 else None
        picture = self._source(row[f"{role}_id"]) if picture is None else picture
        shown = picture.convert("RGB")
        if max(shown.size) > SIDE:
            shown.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        name = f"{hashlib.sha256(shown.tobytes()).hexdigest()[:16]}.webp"
        shown.save(self.folder / name, "WEBP", quality=90)
        return name

    def _source(self, image_id: str) -> Image.Image:
        if self.pairs is None:
            self.pairs = self.load()
            self.rows = {name: place for place, name in enumerate(self.pairs.images["image_id"][:])}
        if image_id not in self.rows:
            raise UserError(f"The pairs have no image {image_id!r}; give those that the failures were mined from.")
        return self.pairs.images[self.rows[image_id]]["image"]
