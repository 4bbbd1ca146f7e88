"""What a run says that made nothing, and whether another run can make more of a finished folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from repair_hf.records.columns import REASONS
from repair_hf.records.dataset import load_dropped
from repair_hf.runtime.run_folder import RunStopped

UNREACHED = "the image editor gave no answer"  # begins the detail of a dropped item
AGAIN = "The same command asks again"
NEXT = {  # reason -> what to do if it is the most frequent one
    "gt_invalid": "Check your captions, or give --no-audited and another --output.",
    "fp_too_similar": "Mine other failures, or give another --llm and --output.",
    "no_op": "Give another --llm or --editor, and another --output.",
    "llm_unparsed": "Raise --answer-attempts, or give another --llm and --output.",
    "llm_refused": "Give another --llm and --output.",
    "llm_failed": f"{AGAIN}; run it later.",
    "editor_failed": "Give another --editor and --output.",
    "edit_false": "Give another --llm or --editor, and another --output.",
    "unreadable_image": "Repair the images, and give another --output.",
}


class NothingRepaired(RunStopped):
    """A run ended, and no failure became a record."""


def count_unanswered(dropped: Iterable[tuple[str, str | None]]) -> dict[str, int]:
    """Count, by reason, the dropped items without a usable answer; each has a reason and a detail."""
    counts = Counter(
        reason
        for reason, detail in dropped
        if reason in ("llm_failed", "llm_unparsed")
        or (reason == "editor_failed" and str(detail).startswith(UNREACHED))
    )
    return dict(counts)


def to_ask_again(summary: Mapping[str, Any], attempts: int) -> Counter[str]:
    """Return the unanswered items of a summary, by reason, that a run with so many attempts a question asks again."""
    counts = Counter(summary["unanswered"])
    if summary["attempts"] >= attempts:
        del counts["llm_unparsed"]
    return counts


def can_add(summary: Mapping[str, Any], attempts: int) -> bool:
    """Return whether another run can make more of a folder: it stopped, or questions have no answer."""
    return bool(summary["open"]) or to_ask_again(summary, attempts).total() > 0


def require_records(folder: Path, summary: Mapping[str, Any], attempts: int) -> None:
    """Raise `NothingRepaired`, with the reason and a remedy, if a finished folder holds no record."""
    directions = summary["directions"].values()
    if any(counts["kept"] for counts in directions):
        return
    dropped = sum((Counter(counts["dropped"]) for counts in directions), Counter())
    if not dropped:
        raise NothingRepaired(f"{folder} has no record, because there was no failure to repair. Mine other failures.")
    (reason, count), *_ = dropped.most_common()
    remedy = f"{AGAIN}." if to_ask_again(summary, attempts)[reason] else NEXT[reason]
    rows = load_dropped(folder).select_columns(["reason", "detail"]).to_list()
    detail = next((row["detail"] for row in rows if row["reason"] == reason and row["detail"]), None)
    example = f", such as: {detail}" if detail else ""
    raise NothingRepaired(
        f"{folder} has no record: {count:,} of {dropped.total():,} failures were dropped as {reason} "
        f"({REASONS[reason]}){example}. {remedy}"
    )
