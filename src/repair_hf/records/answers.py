"""People's judgements of the failures and records of a run.

    FOLDER OF RECORDS/people/edits/items.csv                  what was asked, and from how many items it was drawn
                                   answers/ANNOTATOR.jsonl    one JSON line per answer

The last answer of an annotator to an item counts. Several annotators are joined by majority; a tie gives no answer.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.runtime.files import intact, read_lines
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

PEOPLE = "people"
ITEMS = "items.csv"
TYPES = {"accepted": bool, "population": int}
COLUMNS = ["item", "record_id", "direction", *TYPES]  # of texts but for these
CRITERIA = {  # of the paper's audit of edits; key -> question to the annotator
    "fp_wrong": "the false positive is genuinely wrong for the query",
    "edit_fits": "the edit fits the query",
    "scaffold_kept": "what both share is preserved",
    "edit_minimal": "nothing is changed beyond what made it wrong",
    "valid_contrast": "false positive and edit form a valid hard contrast",
}
MODES = {
    "semantic_mismatch": "the edit does not fully fit the query",
    "scaffold_drift": "the edit rebuilds the scene rather than changing what was wrong",
    "artifact": "a visible artifact",
    "ambiguous_fp": "it is debatable whether the false positive is wrong",
}
VERDICTS = ("genuine", "gt_invalid", "fp_too_similar")


def read_answers(folder: Path) -> pd.DataFrame:
    """Read every annotator's last answer to each item of one task, such as `RECORDS/people/edits`.

    Returns:
        `annotator`, `item`, and the task's columns: `verdict`, or `CRITERIA` (bool) and `mode`. No rows if nobody has
        answered.
    """
    rows = []
    for path in sorted((folder / "answers").glob("*.jsonl")):
        bad = []
        for number, row in read_lines(path):
            if is_answer(row, folder.name):
                rows.append(row)
            else:  # also a last line that was cut off when its process died
                bad.append(str(number))
        if bad:
            logger.warning("%s: left out %d lines that are no answers: %s.", path, len(bad), ", ".join(bad[:3]))
    if not rows:
        return pd.DataFrame(columns=["annotator", "item"])
    return pd.DataFrame(rows).drop_duplicates(["annotator", "item"], keep="last", ignore_index=True)


def is_answer(row: Any, task: str) -> bool:
    """Return whether a row is an answer to a task, `qc` or `edits`."""
    match row:
        case {"annotator": str(), "item": str(), "verdict": str(verdict)} if task == "qc":
            return verdict in VERDICTS
        case {"annotator": str(), "item": str(), "mode": None | str() as mode} if task != "qc":
            return mode in (None, *MODES) and all(isinstance(row.get(name), bool) for name in CRITERIA)
    return False


def read_items(folder: Path) -> pd.DataFrame:
    """Read what was asked.

    Raises:
        UserError: If the file is damaged.

    Returns:
        `item`, `record_id` (empty for dropped failures), `folder`, `direction`, `accepted`, and
        `population` (size of the stratum that the item was drawn from).
    """
    path = folder / ITEMS
    with intact(path, "Move its folder away, and annotate again"):
        items = pd.read_csv(path, dtype=dict.fromkeys(COLUMNS, str) | TYPES, keep_default_na=False)
        return items[COLUMNS].assign(folder=str(folder))


def majority(answers: pd.DataFrame, column: str) -> pd.Series:
    """The answer of most annotators to each item (item -> value), without ties."""
    counts = answers.groupby("item")[column].value_counts().unstack(fill_value=0)
    best = counts.max(axis=1)
    is_clear = counts.eq(best, axis=0).sum(axis=1) == 1
    return counts[is_clear].idxmax(axis=1)


def good_records(folder: str | Path) -> set[str]:
    """Ids of the records that annotators found to be valid hard contrasts.

    Raises:
        UserError: If there are no annotations.
    """
    task = Path(folder) / PEOPLE / "edits"
    answers = read_answers(task) if task.is_dir() else pd.DataFrame()
    if answers.empty or "valid_contrast" not in answers:
        raise UserError(
            f"The records of {folder} have no annotations; start with `repair-hf annotate edits {folder}`."
        )
    names = read_items(task).set_index("item")["record_id"]
    is_valid = majority(answers, "valid_contrast")
    return set(names[is_valid[is_valid.astype(bool)].index])
