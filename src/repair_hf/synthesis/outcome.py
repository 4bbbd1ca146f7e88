"""What a run says that made no record, and whether another run can make more of a finished folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repair_hf.llm.ledger_file import query
from repair_hf.records.columns import REASONS
from repair_hf.records.dataset import load_dropped
from repair_hf.runtime.run_folder import RunStopped

UNREACHED = "the image editor could not be reached"  # detail of a dropped failure
AGAIN = "The same command asks again"
NEXT = {  # reason -> what to do if it is the most frequent one
    "gt_invalid": "Check your captions, or give --no-audited and another --output.",
    "fp_too_similar": "Mine other failures, or give another --llm and --output.",
    "no_op": "Give another --llm or --editor, and another --output.",
    "llm_unparsed": "Raise --answer-attempts, or give another --llm and --output.",
    "llm_refused": "Give another --llm and --output.",
    "llm_failed": f"{AGAIN}; run it later.",
    "editor_failed": "Give another --editor and --output.",
    "unreadable_image": "Repair the images.",
}


class NothingRepaired(RunStopped):
    """A run ended, and no failure became a record."""


def dropped_by_reason(summary: Mapping[str, Any]) -> Counter[str]:
    """Return how many failures were dropped, by reason, in both directions."""
    return sum((Counter(found["dropped"]) for found in summary["directions"].values()), Counter())


def unanswered(folder: Path, summary: Mapping[str, Any], most: int) -> Counter[str]:
    """Count, by reason, the failures that may be asked about again: without an answer, or with fewer than `most`."""
    dropped = dropped_by_reason(summary)
    found = Counter({"llm_failed": dropped["llm_failed"]})
    if summary["attempts"] < most:
        found["llm_unparsed"] = dropped["llm_unparsed"]
    if dropped["editor_failed"]:
        found["editor_failed"] = load_dropped(folder)["detail"][:].count(UNREACHED)
    return found


def assumed_in(folder: Path) -> tuple[int, float]:
    """Count the requests of a folder whose answers did not arrive, and the dollars that are assumed for them."""
    wanted = "SELECT COUNT(*), TOTAL(worst) FROM call WHERE run = :run AND state = 'lost'"
    return next((tuple(row) for row in query(folder, wanted)), (0, 0.0))


def can_add(folder: Path, summary: Mapping[str, Any], most: int) -> bool:
    """Return whether another run can make more of a folder: it stopped, or questions have no answer."""
    if summary["open"]:
        return True
    has_records = any(found["kept"] for found in summary["directions"].values())
    return not has_records or unanswered(folder, summary, most).total() > 0


def require_records(folder: Path, summary: Mapping[str, Any], most: int) -> None:
    """Raise `NothingRepaired`, with the reason and a remedy, if a finished folder holds no record."""
    if any(found["kept"] for found in summary["directions"].values()):
        return
    dropped = dropped_by_reason(summary)
    if not dropped:
        raise NothingRepaired(f"{folder} has no record, because there was no failure to repair. Mine other failures.")
    (reason, count), *_ = dropped.most_common()
    remedy = f"{AGAIN}." if unanswered(folder, summary, most)[reason] else NEXT[reason]
    rows = load_dropped(folder).select_columns(["reason", "detail"]).to_list()
    detail = next((row["detail"] for row in rows if row["reason"] == reason and row["detail"]), None)
    example = f", such as: {detail}" if detail else ""
    raise NothingRepaired(
        f"{folder} has no record: {count:,} of {dropped.total():,} failures were dropped as {reason} "
        f"({REASONS[reason]}){example}. {remedy}"
    )
