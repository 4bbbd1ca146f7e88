"""The words that an edit changed."""

from __future__ import annotations

import difflib
import string
from typing import Any, Literal

from repair_hf.records.columns import MODALITIES

Run = tuple[Literal["same", "out", "in"], str]


def compare(before: str, after: str) -> tuple[list[Run], list[Run]]:
    """Align two texts: `before` as kept and removed words, `after` as kept and added words.

    Words that differ only in case or punctuation count as the same.
    """
    old, new = before.split(), after.split()
    matcher = difflib.SequenceMatcher(None, [_bare(w) for w in old], [_bare(w) for w in new], autojunk=False)
    left: list[Run] = []
    right: list[Run] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        is_same = kind == "equal"
        left.append(("same" if is_same else "out", " ".join(old[i:j])))
        right.append(("same" if is_same else "in", " ".join(new[k:m])))
    return [run for run in left if run[1]], [run for run in right if run[1]]


def marked_texts(row: dict[str, Any]) -> dict[str, list[Run]]:
    """Return the captions of a record or failure by role, with the words that its edit changed, if it has one."""
    roles = [role for role, kind in MODALITIES[row["direction"]].items() if kind == "text"]
    texts: dict[str, list[Run]] = {role: [("same", row.get(f"{role}_text") or "")] for role in roles}
    if row.get("edit_text"):
        texts["fp"], texts["edit"] = compare(row["fp_text"], row["edit_text"])
    return texts


def _bare(word: str) -> str:
    return word.lower().strip(string.punctuation) or word
