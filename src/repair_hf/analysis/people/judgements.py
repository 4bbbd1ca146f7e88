"""People's judgements: what they are asked, and the files that the page of `repair-hf annotate` saves.

A file holds `task`, `annotator`, and `answers`: item -> answer. Annotators are joined by majority; a tie is no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pandas as pd

from repair_hf.runtime.files import intact
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import parse_json

Task: TypeAlias = Literal["qc", "edits"]
VERDICTS = {
    "genuine": "Genuine failure: the ground truth fits the query, the false positive does not",
    "gt_invalid": "No: the ground truth does not fit the query",
    "fp_too_similar": "No: the false positive fits the query as well",
}
CRITERIA = {  # of the paper's audit of edits
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
REMEDY = "Give a file that the page of `repair-hf annotate` saved"


def read_judgements(files: Sequence[str | Path]) -> dict[Task, pd.DataFrame]:
    """Read files of judgements. If an annotator judged an item twice, the later file counts.

    Returns:
        Tasks that somebody judged -> `annotator`, `item`, and `verdict`, or `CRITERIA` (bool) and `mode`.

    Raises:
        UserError: If a file is damaged, or not a file of judgements.
    """
    rows: dict[Task, list[dict[str, Any]]] = {}
    for path in map(Path, files):
        if not path.is_file():
            raise UserError(f"There is no file of judgements {path}. {REMEDY}.")
        with intact(path, REMEDY):
            saved = parse_json(path.read_bytes())
            task, annotator = saved["task"], saved["annotator"]
            answers = [{"annotator": annotator, "item": item} | answer for item, answer in saved["answers"].items()]
            if not isinstance(annotator, str) or not all(_is_answer(answer, task) for answer in answers):
                raise ValueError("it holds an answer that the page does not save")
            rows.setdefault(task, []).extend(answers)
    tables = {task: pd.DataFrame(answers) for task, answers in rows.items() if answers}
    return {task: table.drop_duplicates(["annotator", "item"], keep="last") for task, table in tables.items()}


def _is_answer(answer: dict[str, Any], task: str) -> bool:
    if task == "qc":
        return answer["verdict"] in VERDICTS
    is_judged = all(isinstance(answer[criterion], bool) for criterion in CRITERIA)
    return task == "edits" and is_judged and answer["mode"] in (None, *MODES)


def majority(answers: pd.DataFrame, column: str) -> pd.Series:
    """Return the answer of most annotators to each item: item -> value, without ties."""
    counts = answers.groupby("item")[column].value_counts().unstack(fill_value=0)
    best = counts.max(axis=1)
    is_clear = counts.eq(best, axis=0).sum(axis=1) == 1
    return counts[is_clear].idxmax(axis=1)


def valid_edits(files: Sequence[str | Path]) -> set[str]:
    """Return the ids of the records whose edits most annotators found to be valid hard contrasts.

    Raises:
        UserError: As `read_judgements`, or if the files hold no judgement of edits.
    """
    judged = read_judgements(files)
    if "edits" not in judged:
        raise UserError(f"{', '.join(map(str, files)) or 'No file'} judges no edits. Run `repair-hf annotate edits`.")
    is_valid = majority(judged["edits"], "valid_contrast")
    return set(is_valid.index[is_valid.astype(bool)])
