"""Records as a page to scroll through: query, ground truth, false positive, edit, and what was said of them.

In:  rows that were chosen.
Out: HTML, in one file.
"""

from __future__ import annotations

from typing import Any

from repair_hf.analysis.choosing import Choice
from repair_hf.analysis.differences import Run, both_sides
from repair_hf.analysis.figures import NAMES, headline, provenance
from repair_hf.analysis.html import environment
from repair_hf.records.columns import MODALITIES, REASONS


def gallery(choice: Choice) -> str:
    """Write the page.

    Args:
        choice: Records, or dropped failures.
    """
    is_dropped = "reason" in choice.rows[0]
    sections = [
        {
            "headline": headline(direction, is_dropped=is_dropped),
            "available": available,
            "cards": [card(row) for row in choice.of(direction)],
        }
        for direction, available in choice.available.items()
        if choice.of(direction)
    ]
    return (
        environment()
        .get_template("gallery.html")
        .render(
            title="Dropped failures" if is_dropped else "Retrieval failures and their repairs",
            provenance=provenance(choice.rows[0]),
            sections=sections,
        )
    )


def card(row: dict[str, Any]) -> dict[str, Any]:
    """What `pieces.card` draws of a row: its cells, and what was measured and said."""
    kinds = MODALITIES[row["direction"]]
    roles = [role for role in NAMES if role != "edit" or "reason" not in row]
    texts: dict[str, list[Run]] = {
        role: [("same", row[f"{role}_text"] or "")] for role in roles if kinds[role] == "text"
    }
    if {"fp", "edit"} <= set(texts):
        texts["fp"], texts["edit"] = both_sides(row["fp_text"], row["edit_text"])
    cells = [
        {
            "role": role,
            "name": NAMES[role],
            "id": row.get(f"{role}_id"),
            "runs": texts.get(role),
            "picture": row.get(f"{role}_image"),
        }
        for role in roles
    ]
    return {"cells": cells, "facts": {name: value for name, value in _facts(row).items() if value}}


def _facts(row: dict[str, Any]) -> dict[str, str]:
    """What was measured and said, by a name; empty where nothing was."""
    dropped = f"{REASONS[row['reason']]}. {row['detail'] or ''}" if "reason" in row else ""
    return {
        "dropped because": dropped,
        "ranks": f"false positive {_rank(row, 'fp')}; best ground truth {_rank(row, 'gt')}",
        "audit of the ground truth": row.get("gt_reason"),
        "audit of the false positive": row.get("fp_reason"),
        "kinds of error": ", ".join(row["error_types"] or ()),
        "instruction": row["edit_instruction"],
        "candidates": _candidates(row),
        "record": row.get("record_id"),
    }


def _rank(row: dict[str, Any], role: str) -> str:
    score = "unknown" if row[f"{role}_score"] is None else f"{row[f'{role}_score']:.3f}"
    return f"{'unknown' if row[f'{role}_rank'] is None else row[f'{role}_rank']} (cosine {score})"


def _candidates(row: dict[str, Any]) -> str:
    """Closeness of each to the false positive; the chosen one in brackets."""
    similarities = row.get("candidate_similarities") or ()
    told = ["failed or changed nothing" if value is None else f"{value:.3f}" for value in similarities]
    return " · ".join(f"[{text}]" if place == row["candidate"] else text for place, text in enumerate(told))
