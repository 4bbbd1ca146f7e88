"""What people are asked about: a stratified, seeded sample of a run, laid out so that the page needs nothing else.

In:  the failures and records of a run, and the pairs that they were made from.
Out: a folder per task, `RECORDS/people/qc` or `RECORDS/people/edits`:

    items.csv              what was drawn, from how many, and the audit's verdict; the page never reads it
    shown/items.jsonl      what annotators see, in a shuffled order, without a verdict or a reason
    shown/pictures/*.webp
    answers/NAME.jsonl     what each annotator says; written by the page

`qc` draws accepted and rejected failures, so many of each. `edits` draws so many records of each direction. Each stratum's size in the
run (`population`) is kept, so that shares of the whole run can be told from the sample.
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

from repair_hf.analysis.funnel import CRITERIA
from repair_hf.analysis.material import Material
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.answers import ITEMS, PEOPLE
from repair_hf.records.columns import MODALITIES
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import write_atomically

Task = Literal["qc", "edits"]
SIDE = 512  # pixels of a picture's longest side
ROLES = {"qc": ("q", "gt", "fp"), "edits": ("q", "gt", "fp", "edit")}


def draw(material: Material, task: Task, *, size: int, seed: int) -> pd.DataFrame:
    """Draw what people are asked about.

    Args:
        material: Of one synthesis.
        task: `qc` draws `size` accepted and `size` rejected failures, `edits` `size` records of each direction; all there are where
            there are fewer.
        size: Of a stratum.
        seed: Another seed draws others.

    Returns:
        The rows of failures or records in a shuffled order, with `place` (in `records`; -1 for what was dropped), `accepted`, `item`
        and `population`.

    Raises:
        UserError: If there is nothing to ask about.
    """
    kept = material.kept.assign(place=np.arange(len(material.kept)), accepted=True)
    strata = ["direction"]
    pool = kept
    if task == "qc":
        audited = material.dropped[material.dropped["fp_reason"].notna()]
        dropped = audited.assign(place=-1, accepted=~audited["reason"].isin(list(CRITERIA)), record_id=None)
        pool, strata = pd.concat([kept, dropped], ignore_index=True), ["accepted"]
    if pool.empty:
        raise UserError(f"{material.name} holds nothing that people could be asked about.")
    rng = np.random.default_rng(seed)
    drawn = [part.iloc[rng.permutation(len(part))[:size]] for _, part in pool.groupby(strata)]
    drawn = pd.concat(drawn).sample(frac=1, random_state=rng)
    # By verdict and direction: within a verdict the directions are drawn in proportion, so each cell speaks for its own.
    cells = ["accepted", "direction"]
    drawn = drawn.merge(pool.groupby(cells).size().rename("population").reset_index(), on=cells)
    names = (f"{task}{seed}{row.direction}{row.q_id}{row.fp_id}{row.round}" for row in drawn.itertuples())
    return drawn.assign(item=[hashlib.sha256(name.encode()).hexdigest()[:12] for name in names])


def lay_out(material: Material, task: Task, folder: Path, *, size: int, seed: int, pairs: Callable[[], Pairs]) -> int:
    """Write a task's folder, unless it is there already: what was begun goes on with the same items.

    Args:
        material: Of one synthesis.
        task: Which.
        folder: Of the records.
        size: Of a stratum.
        seed: Of the draw.
        pairs: Loads the pairs, for pictures that the records lack: those of rejected failures, at least.

    Returns:
        How many items there are.

    Raises:
        UserError: If the folder was begun with another size or seed.
    """
    here = folder / PEOPLE / task
    asked = {"task": task, "size": size, "seed": seed}
    if (here / "task.json").is_file():
        begun = json.loads((here / "task.json").read_text(encoding="utf-8"))
        if begun != asked:
            raise UserError(
                f"{here} was begun with size {begun['size']} and seed {begun['seed']}; give these, or move the folder away."
            )
        return len(pd.read_csv(here / ITEMS))
    drawn = draw(material, task, size=size, seed=seed)
    (here / "shown" / "pictures").mkdir(parents=True, exist_ok=True)
    pictures = _Pictures(material, pairs, here / "shown" / "pictures")
    lines = [json.dumps(_shown(row, ROLES[task], pictures)) for row in drawn.to_dict("records")]
    write_atomically(here / "shown" / "items.jsonl", "\n".join(lines) + "\n")
    columns = ["item", "record_id", "dataset", "direction", "accepted", "population"]
    write_atomically(here / ITEMS, drawn.assign(dataset=material.dataset)[columns].to_csv(index=False))
    write_atomically(here / "task.json", json.dumps(asked))  # last: the rest is whole
    return len(drawn)


def _shown(row: dict[str, Any], roles: tuple[str, ...], pictures: _Pictures) -> dict[str, Any]:
    """What an annotator sees of an item: captions, and the names of pictures' files."""
    kinds, cells = MODALITIES[row["direction"]], {}
    for role in roles:
        if kinds[role] == "text":
            cells[role] = {"text": row[f"{role}_text"]}
        else:
            cells[role] = {"picture": pictures.name(row, role)}
    return {"item": row["item"], "direction": row["direction"], "cells": cells}


class _Pictures:
    """Finds pictures in the records, else in the pairs, and keeps small copies."""

    def __init__(self, material: Material, pairs: Callable[[], Pairs], folder: Path) -> None:
        self.records, self.load, self.folder = material.records, pairs, folder
        self.pairs: Pairs | None = None
        self.rows: dict[str, int] = {}

    def name(self, row: dict[str, Any], role: str) -> str:
        picture = self.records[int(row["place"])][f"{role}_image"] if row["place"] >= 0 else None
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
