"""Read the files in which folders kept what was paid before there were ledgers: journals and open batches.

`journal.jsonl` has the LLM's answers and `images.jsonl` the bills of images, one JSON object a line; each process of a
run had files of its own, such as `journal-1.jsonl`. `batches/` has a file per submitted batch.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from repair_hf.runtime.files import read_json
from repair_hf.runtime.texts import parse_json

OLD_KEYS = 1  # `user_version` of a ledger that holds answers under their keys of before
LONG = 1024  # characters; longer strings were hashed separately

_INSERT = """
INSERT OR IGNORE INTO call (key, run, stage, direction, model, prompts, state, worst, dollars, calls, prompt_tokens,
    completion_tokens, answered_by, reply, batch_id, inherited)
VALUES (:key, :run, :stage, :direction, :model, :prompts, :state, :worst, :dollars, :calls, :prompt_tokens,
    :completion_tokens, :answered_by, :reply, :batch_id, :inherited)
"""


def has_old_files(folder: Path) -> bool:
    """Return whether a folder holds payments in the files of before."""
    return next(_journals(folder), None) is not None


def import_old_files(
    database: sqlite3.Connection, folder: Path, *, run: str = ".", is_inherited: bool = False
) -> None:
    """Write what a folder's old files hold into a ledger. The files stay as they are."""
    rows = [row for path in _journals(folder) for row in _rows(path)]
    if is_inherited:  # who pays for a batch collects it, too
        rows = [row | {"inherited": True} for row in rows if row["state"] != "lost"]
    else:
        rows += [row for path in sorted((folder / "batches").glob("*.json")) for row in _batch_rows(read_json(path))]
    file = folder / "attempts.txt"
    attempts = int(file.read_text(encoding="ascii")) if file.is_file() else 2
    seen: set[str] = set()
    for row in rows:
        if row["key"] in seen:  # two processes, or two runs, paid for the same
            row["key"] += f"/{secrets.token_hex(8)}"
        seen.add(row["key"])
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT OR IGNORE INTO run (name, attempts) VALUES (?, ?)", (run, attempts))
    database.executemany(_INSERT, (row | {"run": run} for row in rows))
    database.execute(f"PRAGMA user_version = {OLD_KEYS}")
    database.execute("COMMIT")


def old_key(request: dict[str, Any], sample: int) -> str:
    """Return the key that a request had: a digest of all that is sent, with the number of the sample."""
    text = json.dumps([_fold(request), sample], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _journals(folder: Path) -> Iterator[Path]:
    for kind in ("journal", "images"):
        yield from sorted([*folder.glob(f"{kind}.jsonl"), *folder.glob(f"{kind}-*.jsonl")])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each entry of a journal; a line that was cut short by a kill is none."""
    is_inherited = "-inherited-" in path.name
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError, TypeError, KeyError):
                yield _row(parse_json(line)) | {"inherited": is_inherited}


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    is_image = (entry["stage"], entry["direction"]) == ("edit", "t2i")
    state = entry["finish"] if entry["finish"] in ("lost", "rejected") else "answered"
    return {
        "key": Path(entry["text"]).stem if is_image and entry["text"] else entry["key"],
        "state": state,
        "worst": entry["dollars"] or entry.get("at_most", 0.0),
        "calls": int(state != "rejected"),
        "reply": None if state == "lost" else json.dumps([entry["text"], entry["finish"]]),
        "batch_id": None,
        "prompts": entry.get("prompts", ""),
        **{name: entry[name] for name in _SAME},
    }


_SAME = ("stage", "direction", "model", "dollars", "prompt_tokens", "completion_tokens", "answered_by")


def _batch_rows(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    where = batch["id"] or (f"file:{batch['file']}" if batch["file"] else None)
    if where is None:  # the provider never had it
        return
    for key, (stage, direction, dollars, *_) in batch["questions"].items():
        labels = {"key": key, "stage": stage, "direction": direction, "model": batch["model"], "prompts": ""}
        sums = {"worst": dollars, "dollars": None, "calls": 1, "prompt_tokens": 0, "completion_tokens": 0}
        rest = {"answered_by": "", "reply": None, "batch_id": where, "inherited": False}
        yield labels | sums | rest | {"state": "submitted"}


def _fold(value: Any) -> Any:
    """Replace each long string by its digest."""
    if isinstance(value, str):
        if len(value) <= LONG:
            return value
        return ["long text", hashlib.blake2b(value.encode(), digest_size=32).hexdigest()]
    if isinstance(value, dict):
        return {key: _fold(item) for key, item in value.items()}
    return [_fold(item) for item in value] if isinstance(value, list) else value
