"""The file of a ledger: its rows, where it lies, and how it is read while others have it open."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from repair_hf.runtime.options import UserError

FILE = "ledger.sqlite"
PATIENCE = 60.0  # seconds to wait for another program that locks the file

TABLE = """
PRAGMA user_version = 1;  -- an error if the file cannot be written
PRAGMA wal_autocheckpoint = 10000;  -- pages of 4 kB; while they are copied into the file, all wait for the disk
CREATE TABLE IF NOT EXISTS call (
    key TEXT PRIMARY KEY,      -- digest of what was asked, the sample and the attempt
    run TEXT NOT NULL,         -- output folder of the run, seen from the ledger's
    stage TEXT NOT NULL,
    direction TEXT NOT NULL,
    model TEXT NOT NULL,
    prompts TEXT NOT NULL,     -- digest of all prompts of the run
    state TEXT NOT NULL,       -- reserved, submitted, answered, lost
    worst REAL NOT NULL,       -- the most that it may cost, in dollars
    dollars REAL,              -- its bill; null if it is not known
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    answered_by TEXT NOT NULL DEFAULT '',
    text TEXT,
    finish TEXT,
    batch TEXT,                -- see `batch_asker`
    owner TEXT                 -- process that has reserved it
);
CREATE INDEX IF NOT EXISTS bill ON call (model, dollars, worst);  -- sums read this alone
CREATE INDEX IF NOT EXISTS open_call ON call (owner) WHERE owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS batch_call ON call (batch) WHERE batch IS NOT NULL;
"""


class Topic(NamedTuple):
    """The labels of a call. `prompts` is the digest of the run's prompts; empty for an image."""

    stage: str
    direction: str
    model: str
    prompts: str = ""


class Reply(NamedTuple):
    """The reply to one request.

    Args:
        text: The answer; of an edited image, the name of its file.
        finish: Why the model stopped: `stop`, `length`, `content_filter`, `refusal` or another word of the provider.
        prompt_tokens: 0 if the provider did not report them.
        completion_tokens: 0 if not reported.
        dollars: The bill; None if it is not known.
        answered_by: Model that answered, in the provider's words.
    """

    text: str
    finish: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = None
    answered_by: str = ""


def place_of(output: str | Path, ledger: str | None) -> tuple[Path, str]:
    """Return the ledger that a run pays from, by its option `ledger`, and the run's name in it."""
    path = Path(ledger or f"{output}/{FILE}").absolute()
    return path, Path(os.path.relpath(Path(output).absolute(), path.parent)).as_posix()


def open_database(path: Path) -> sqlite3.Connection:
    """Open the file of a ledger, and make its table.

    A process that finds another one making the file gets an error at once, whatever the time-out; so it asks again.
    """
    database = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    begin = time.monotonic()
    while True:
        try:
            database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {TABLE}")
            return database
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > begin + PATIENCE:
                database.close()
                raise
            time.sleep(0.02)


def read_calls(path: str | Path, run: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the calls of a ledger, or of one run in it, as rows. There are none without the file."""
    yield from map(dict, query(path, "SELECT * FROM call WHERE ?1 IS NULL OR run = ?1", run))


def query(path: str | Path, wanted: str, *values: Any) -> Iterator[sqlite3.Row]:
    """Yield the rows of a query on a ledger that others may have open; none if there is no such file."""
    if not Path(path).is_file():
        return
    with explained(path), closing(sqlite3.connect(path, timeout=PATIENCE)) as database:
        database.row_factory = sqlite3.Row
        yield from database.execute(wanted, values)


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Raise what SQLite says of a file as an error of one line that names the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path} cannot be used as a ledger: {error}.") from error
