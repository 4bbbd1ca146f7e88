"""One page on which people judge failures or edits by keyboard. It needs no server and can be mailed.

The page keeps an annotator's answers in the browser, and saves them as a file for `repair-hf analyze --judgements`.
It holds neither other answers nor the audit's verdict.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from repair_hf.analysis.pages import check_page, data_uri, render
from repair_hf.analysis.people.judgements import CRITERIA, MODES, VERDICTS, Task
from repair_hf.analysis.people.sampling import draw, with_images
from repair_hf.analysis.run_data import PairsPlace, gather
from repair_hf.records.columns import MODALITIES
from repair_hf.runtime.run_folder import write_atomically

SIDE = 320  # pixels of an image's longest side: 400 items of photographs are about 14 MB, which a mail can hold
ROLES = {"qc": ("q", "gt", "fp"), "edits": ("q", "gt", "fp", "edit")}
QUESTIONS: dict[Task, dict[str, dict[str, tuple[str, str]]]] = {  # key on the keyboard -> name, and its meaning
    "qc": {"verdicts": dict(zip("123", VERDICTS.items(), strict=True))},
    "edits": {
        "criteria": dict(zip("12345", CRITERIA.items(), strict=True)),
        "modes": dict(zip("sdaf", MODES.items(), strict=True)),
    },
}


class Sheet(NamedTuple):
    """A page to judge on: its file, and how many items it has."""

    path: Path
    n_items: int


def annotate(
    run: str | Path, task: Task, output: str | Path | None = None, *, size: int = 200, pairs: PairsPlace = None
) -> Sheet:
    """Draw a sample of a run, and write the page on which people judge it.

    Args:
        run: Folder of `repair-hf demo`, `run` or `synthesize`, or records on the Hub.
        task: `qc` to judge failures, `edits` to judge edits.
        output: Page (.html) to write; by default `judge-TASK.html` in the run's folder.
        size: Failures of each verdict of the audit, or records of each direction; fewer if there are fewer.
        pairs: The pairs of the run, or where they are now, for images that the records lack.

    Raises:
        UserError: If there is nothing to judge, or the pairs are not where they were.
    """
    data, name = gather(run), f"judge-{task}.html"
    drawn = draw(data, task, size=size)
    pictures: dict[str, str] = {}
    items = [_item(row, ROLES[task], pictures) for row in with_images(data, drawn, pairs)]
    path = Path(output or (data.root or Path()) / name)
    check_page(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, judging_page(task, items, pictures))
    return Sheet(path, len(items))


def judging_page(task: Task, items: list[dict[str, Any]], pictures: dict[str, str]) -> str:
    """Write the page of some items; `pictures` are data URIs by the names that the items use."""
    content = json.dumps({"task": task, "items": items, "pictures": pictures, "questions": QUESTIONS[task]})
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return render("judge.html", task=task, content=content, digest=digest)


def _item(row: dict[str, Any], roles: tuple[str, ...], pictures: dict[str, str]) -> dict[str, Any]:
    """Return what an annotator sees of a failure or record; its images are added to `pictures`."""
    cells = {}
    for role in roles:
        if MODALITIES[row["direction"]][role] == "text":
            cells[role] = {"text": row[f"{role}_text"]}
            continue
        uri = data_uri(row[f"{role}_image"], side=SIDE)
        name = hashlib.sha256(uri.encode()).hexdigest()[:16]
        pictures[name] = uri
        cells[role] = {"picture": name}
    return {"item": row["item"], "cells": cells}
