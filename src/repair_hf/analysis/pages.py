"""HTML pages in one file: images inside, every value escaped, nothing fetched, no script.

`page.html` is the base of all pages. Its Content-Security-Policy forbids scripts and every request, so a value that
escaped the escaping would still do nothing. `judge.html` allows its own script alone.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from repair_hf.analysis.record_sample import ROLE_NAMES, RecordSample, marked_texts
from repair_hf.pairs.images import in_rgb
from repair_hf.records.columns import REASONS
from repair_hf.runtime.options import UserError

INK, MUTED, PAPER, CARD, RULE = "#1f2933", "#5c6773", "#eef0f3", "#ffffff", "#d5dae0"
ROLES = {"q": "#4d5863", "gt": "#00704f", "fp": "#b04a00", "edit": "#00639b"}  # of text: a contrast of 4.5 on PAPER
OURS = b'<meta name="generator" content="repair-hf">'  # in the head of every page
FITS: dict[bool | None, str] = {True: "the edit fits its query", False: "the edit does not fit its query"}
FEW_COLORS = 4096  # a drawing has fewer; lossless compression is smaller for it


def render(template: str, **values: Any) -> str:
    """Fill a template of `templates/`."""
    return environment().get_template(template).render(**values)


def environment() -> Environment:
    """Jinja that escapes every value and raises an error for a missing one.

    A template may put a value between tags or into a quoted attribute, never into a script, a style or a URL, and
    never marks one as `safe`.
    """
    jinja = Environment(
        loader=PackageLoader("repair_hf.analysis", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.globals |= {"data_uri": data_uri, "are_words": are_words, "roles": ROLES}
    jinja.globals |= {"ink": INK, "muted": MUTED, "paper": PAPER, "card": CARD, "rule": RULE}
    return jinja


def are_words(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each column holds words, which are aligned left, rather than numbers."""
    return [all(text[:1].isalpha() or not text for text in column) for column in zip(*rows, strict=True)]


def data_uri(image: Image.Image, *, side: int = 320) -> str:
    """Encode an image of any mode as a data URI, shrunk to at most `side` pixels on its longest side."""
    thumbnail = in_rgb(image)
    thumbnail.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    thumbnail.save(file, "WEBP", lossless=thumbnail.getcolors(FEW_COLORS) is not None, quality=85)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"


def check_page(path: Path) -> None:
    """Raise an error if a page would overwrite a file of the user."""
    if path.exists() and (path.is_dir() or OURS not in path.read_bytes()):
        raise UserError(f"{path} is no page of repair_hf, so it is not overwritten; give another --output.")


def gallery(sample: RecordSample, checked: str = "") -> str:
    """Write the page of `repair-hf show`; `checked` says how many edits fit their query."""
    sections = [(name, f"{meaning} · {count}", [*map(card, rows)]) for name, meaning, count, rows in sample.sections]
    named = {"title": sample.title, "provenance": sample.provenance, "checked": checked}
    return render("gallery.html", sections=sections, tables=sample.tables, **named)


def card(row: dict[str, Any]) -> dict[str, Any]:
    """Collect what the macro `card` of `pieces.html` draws of a record or a dropped failure."""
    roles = [role for role in ROLE_NAMES if role != "edit" or not {"reason", "margin"} & set(row)]
    texts = marked_texts(row)
    cells = [
        {
            "role": role,
            "name": ROLE_NAMES[role],
            "id": row.get(f"{role}_id"),
            "runs": texts.get(role),
            "picture": row.get(f"{role}_image"),
        }
        for role in roles
    ]
    facts = {name: value for name, value in _facts(row).items() if value}
    return {"cells": cells, "facts": facts}


def _facts(row: dict[str, Any]) -> dict[str, str | None]:
    return {
        "dropped because": f"{REASONS[row['reason']]}. {row['detail'] or ''}" if "reason" in row else None,
        "margin": f"{row['margin']:+.3f}, false positive minus ground truth" if "margin" in row else None,
        "ranks": f"false positive {_rank(row, 'fp')}; best ground truth {_rank(row, 'gt')}",
        "audit of the ground truth": row.get("gt_reason"),
        "audit of the false positive": row.get("fp_reason"),
        "error types": ", ".join(row.get("error_types") or ()),
        "instruction": row.get("edit_instruction"),
        "candidates": _similarities(row),
        "check": FITS.get(row.get("edit_fits")),
        "record": row.get("record_id"),
    }


def _rank(row: dict[str, Any], role: str) -> str:
    rank, score = row[f"{role}_rank"], row[f"{role}_score"]
    return f"{'unknown' if rank is None else rank} (cosine {'unknown' if score is None else f'{score:.3f}'})"


def _similarities(row: dict[str, Any]) -> str:
    """Format the cosine of each candidate to the false positive; empty without candidates."""
    values = row.get("candidate_similarities")
    texts = ["failed or changed nothing" if value is None else f"{value:.3f}" for value in values or ()]
    marked = [f"{text} (selected)" if place == row["candidate"] else text for place, text in enumerate(texts)]
    return f"{' · '.join(marked)}; cosine with the false positive" if marked else ""
