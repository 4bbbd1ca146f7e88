"""What people said about the failures and records of a run.

In:  the folder that `repair-hf annotate` works in: `items.csv` (what was asked, and of how many it was drawn) and one file of answers per
     annotator, a JSON line per answer.
Out: tables; and the records that people found good.

    FOLDER OF RECORDS/people/edits/items.csv
                                   answers/ANNOTATOR.jsonl

An annotator may go back and answer anew: the last answer counts. Several annotators are joined by majority; where they are evenly split
there is no answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from repair_hf.runtime.options import UserError

PEOPLE = "people"
ITEMS = "items.csv"
CRITERIA = {  # of the paper's audit of edits; key -> what an annotator is asked
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
    """Every annotator's last answer to each item.

    Args:
        folder: Of one task, such as `RECORDS/people/edits`.

    Returns:
        `annotator`, `item`, and the task's columns: `verdict`, or `CRITERIA` (bool) and `mode`. Without rows if nobody has answered.
    """
    rows = []
    for path in sorted((folder / "answers").glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):  # a last line without an end was being written when its process died
                rows.append(json.loads(line))
    if not rows:
        return pd.DataFrame(columns=["annotator", "item"])
    return pd.DataFrame(rows).drop_duplicates(["annotator", "item"], keep="last", ignore_index=True)


def read_items(folder: Path) -> pd.DataFrame:
    """What was asked.

    Returns:
        `item`, `record_id` (empty for failures that were dropped), `folder`, `dataset`, `direction`, `accepted`, and `population`: of
        how many the items of its stratum were drawn.
    """
    return pd.read_csv(folder / ITEMS, dtype={"record_id": str}, keep_default_na=False).assign(folder=str(folder))


def majority(answers: pd.DataFrame, column: str) -> pd.Series:
    """What most annotators say of each item; items on which they are evenly split are left out.

    Args:
        answers: As `read_answers` gives them.
        column: What was asked.

    Returns:
        item -> value.
    """
    counts = answers.groupby("item")[column].value_counts().unstack(fill_value=0)
    best = counts.max(axis=1)
    is_clear = counts.eq(best, axis=0).sum(axis=1) == 1
    return counts[is_clear].idxmax(axis=1)


def good_records(folder: str | Path) -> set[str]:
    """Ids of the records that people looked at and found to be valid hard contrasts.

    Args:
        folder: Of records.

    Raises:
        UserError: If nobody has looked at any.
    """
    task = Path(folder) / PEOPLE / "edits"
    answers = read_answers(task) if task.is_dir() else pd.DataFrame()
    if answers.empty:
        raise UserError(
            f"Nobody has looked at the records of {folder}; start with `repair-hf annotate edits {folder}`."
        )
    names = read_items(task).set_index("item")["record_id"]
    is_valid = majority(answers, "valid_contrast")
    return set(names[is_valid[is_valid.astype(bool)].index])
