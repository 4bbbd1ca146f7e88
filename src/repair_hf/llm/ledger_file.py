"""The file of a ledger: its table, how it is opened, and what can be read from it while nobody pays."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import filelock

from repair_hf.runtime.disk import is_network_drive
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped

FILE = "ledger.sqlite"
VERSION = 1  # `user_version` of the file
SHORTEST = 512  # bytes of a file with a table
PATIENCE = 60.0  # seconds to wait while another process writes

_TABLES = """
BEGIN IMMEDIATE;  -- a reader finds all of it or nothing
CREATE TABLE IF NOT EXISTS call (
    key TEXT PRIMARY KEY,               -- digest of what was asked, the sample and the attempt
    run TEXT NOT NULL,                  -- folder of the run, seen from the ledger's
    stage TEXT NOT NULL,
    direction TEXT NOT NULL,
    model TEXT NOT NULL,
    prompts TEXT NOT NULL DEFAULT '',   -- digest of all prompts of the run
    state TEXT NOT NULL,                -- see `ledger`
    worst REAL NOT NULL,                -- the most that it may cost, in dollars
    dollars REAL,                       -- its bill
    calls INTEGER NOT NULL,             -- as ceilings count it: 1, or 0 if rejected
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    answered_by TEXT NOT NULL DEFAULT '',
    reply TEXT,                         -- JSON: text and finish
    body BLOB,                          -- what was received, until it is read
    batch_id TEXT,
    owner TEXT,                         -- process that has reserved it
    inherited INTEGER NOT NULL DEFAULT 0  -- another ledger has paid for it
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_call ON call (owner) WHERE owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS batch_call ON call (batch_id) WHERE batch_id IS NOT NULL;
CREATE TABLE IF NOT EXISTS total (dollars REAL NOT NULL, calls INTEGER NOT NULL);  -- one row, as ceilings count
CREATE TRIGGER IF NOT EXISTS call_added AFTER INSERT ON call WHEN NOT NEW.inherited BEGIN
    UPDATE total SET dollars = dollars + COALESCE(NEW.dollars, NEW.worst), calls = calls + NEW.calls;
END;
CREATE TRIGGER IF NOT EXISTS call_changed AFTER UPDATE OF dollars, worst, calls ON call WHEN NOT NEW.inherited BEGIN
    UPDATE total SET dollars = dollars + COALESCE(NEW.dollars, NEW.worst) - COALESCE(OLD.dollars, OLD.worst),
        calls = calls + NEW.calls - OLD.calls;
END;
CREATE TRIGGER IF NOT EXISTS call_removed AFTER DELETE ON call WHEN NOT OLD.inherited BEGIN
    UPDATE total SET dollars = dollars - COALESCE(OLD.dollars, OLD.worst), calls = calls - OLD.calls;
END;
DELETE FROM total;  -- a sum that a disk has changed is none
INSERT INTO total SELECT TOTAL(COALESCE(dollars, worst)), TOTAL(calls) FROM call WHERE NOT inherited;
PRAGMA user_version = 1;
COMMIT;
"""


class LedgerLocked(RunStopped):
    """Another program keeps a ledger from being written; the same command goes on."""


class Database(sqlite3.Connection):
    """A connection to a ledger. Once `path` is set, it raises `LedgerLocked` where SQLite raises its own error."""

    path: Path | None = None

    def execute(self, wanted: str, values: Any = ()) -> sqlite3.Cursor:
        try:
            return super().execute(wanted, values)
        except sqlite3.OperationalError as error:
            if self.path is None or "locked" not in str(error):
                raise
            raise LedgerLocked(
                f"Another program has locked {self.path} for over {PATIENCE:g} s, such as a viewer of SQLite files. "
                "Close it, and run the same command again: every answer so far is kept."
            ) from error


def lock_of(path: Path, owner: str) -> Path:
    """Return the lock file of a process that has a ledger open."""
    return path.with_name(f"{path.name}.{owner}.lock")


def owners_of(path: Path) -> set[str]:
    """Return the processes that have a ledger open, or were killed with it, by their lock files."""
    return {file.suffixes[-2][1:] for file in path.parent.glob(lock_of(path, "*").name)}


def check_log(path: Path) -> None:
    """Check that a ledger which its last process did not close has its log, with what that process paid.

    Raises:
        UserError: If it is gone, so that all of this would be paid again.
    """
    owners = set() if _log_of(path) else owners_of(path)
    if not owners or is_network_drive(path.parent):
        return
    for file in (lock_of(path, owner) for owner in sorted(owners)):
        with suppress(filelock.Timeout), filelock.FileLock(file, blocking=False):
            raise UserError(
                f"{path} was not closed, and what was paid last stood in {path.name}-wal, which is gone. Put it back, "
                f"or delete {file} to pay for that anew."
            )


def connect(path: str | Path) -> Database:
    """Open a ledger for writing; it is created if missing.

    Raises:
        UserError: If the file is no ledger.
    """
    path = Path(path)
    if str(path) != ":memory:":
        path.parent.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size if path.is_file() else None
    how: dict[str, Any] = {"timeout": PATIENCE, "isolation_level": None, "check_same_thread": False}
    database: Database = sqlite3.connect(path, **how, factory=Database)
    try:
        if size is not None and size < SHORTEST and (size or _log_of(path)):  # SQLite would begin it anew
            raise sqlite3.DatabaseError("most of it is gone")
        if str(path) != ":memory:":
            # WAL needs memory that processes share, which network drives lack.
            database.execute(f"PRAGMA journal_mode = {'TRUNCATE' if is_network_drive(path.parent) else 'WAL'}")
            database.execute("PRAGMA synchronous = NORMAL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        has_tables = database.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
        if version != VERSION and (version or has_tables):
            raise sqlite3.DatabaseError(f"it is no ledger of version {VERSION}")
        if has_tables and (fault := database.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(fault)
        if has_tables and _schema(database) != _our_schema():
            raise sqlite3.DatabaseError("its tables are not those of a ledger")
        database.executescript(_TABLES)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter is of SQLite's message
        database.close()
        if _is_of_the_disk(error):
            raise
        raise damaged(path, error) from error
    database.path = path
    return database


def _schema(database: sqlite3.Connection) -> list[bytes]:
    """Return what makes the tables, without comments; as bytes, because a disk may have changed some."""
    rows = database.execute("SELECT CAST(sql AS BLOB) FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return sorted(b" ".join(re.sub(rb"--.*", b"", sql).split()) for (sql,) in rows)


@cache
def _our_schema() -> list[bytes]:
    with closing(connect(":memory:")) as database:
        return _schema(database)


def _is_of_the_disk(error: Exception) -> bool:  # such as a full one, or a folder that cannot be written to
    return isinstance(error, sqlite3.OperationalError) and not re.search("malformed|locked|no such", str(error))


def damaged(path: Path, error: Exception) -> UserError:
    """Return the error that says what to do with a file that cannot be read."""
    reason = " ".join(str(error).split())[:200]
    if "locked" in reason:
        return UserError(f"{path} is in use by another process ({reason}). Run the command again later.")
    return UserError(f"{path} is damaged ({reason}). Put back a copy, with its -wal; delete it only to pay anew.")


def place_of(folder: Path, home: str | None) -> tuple[Path, str]:
    """Return the ledger that a run's folder is to pay from, and the run's name there.

    It lies in `home`, by default where the run has paid before, or in the folder itself.

    Raises:
        UserError: If `home` is no folder above the run's.
    """
    if home is None:
        return find_ledger(folder) or (folder.resolve() / FILE, ".")
    if not folder.resolve().is_relative_to(Path(home).resolve()):
        raise UserError(f"`ledger` must be a folder above {folder}, got {home}.")
    found = find_ledger(folder)
    if found is not None and found[0] != Path(home).resolve() / FILE:
        raise UserError(
            f"{folder} has paid from {found[0]}: with `ledger` {home} its ceilings would not count that. Leave "
            "`ledger` out, or give another --output and --answers-from with this folder."
        )
    return Path(home).resolve() / FILE, folder.resolve().relative_to(Path(home).resolve()).as_posix()


def find_ledger(folder: str | Path) -> tuple[Path, str] | None:
    """Return the ledger that a run's folder has paid from, and the run's name there; None if there is none."""
    folder = Path(folder).resolve()
    for parent in (folder, *folder.parents):
        run = folder.relative_to(parent).as_posix()
        if (parent / FILE).is_file() and _knows(parent / FILE, run):
            return parent / FILE, run
    return None


def query(folder: str | Path, wanted: str) -> Iterator[sqlite3.Row]:
    """Yield the rows of a query on the ledger that a run's folder has paid from, where `:run` is the run's name.

    There are none if it has paid nothing.
    """
    found = find_ledger(folder)
    if found is None:
        return
    with closing(_connect_to_read(found[0])) as database:
        database.row_factory = sqlite3.Row
        try:
            yield from database.execute(wanted, {"run": found[1]})
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise damaged(found[0], error) from error


def read_calls(*folders: Path) -> Iterator[dict[str, Any]]:
    """Yield the settled calls of runs, as their rows are written."""
    for folder in folders:
        yield from map(dict, query(folder, "SELECT * FROM call WHERE run = :run AND owner IS NULL"))


def paid_by(folders: Iterable[Path]) -> tuple[float, int]:
    """Return dollars and calls of runs, as ceilings count them: without what they took over from others."""
    wanted = "SELECT TOTAL(COALESCE(dollars, worst)), TOTAL(calls) FROM call WHERE run = :run AND NOT inherited"
    rows = [row for folder in folders for row in query(folder, wanted)]
    return sum((row[0] for row in rows), 0.0), int(sum(row[1] for row in rows))


def has_payments(folder: str | Path) -> bool:
    """Return whether a run's folder holds paid answers or images."""
    wanted = "SELECT 1 FROM call WHERE run = :run AND state IN ('answered', 'rejected') LIMIT 1"
    return bool(list(query(folder, wanted)))


def take_over(database: sqlite3.Connection, run: str, folder: Path, *, moves: bool = False) -> Path:
    """Copy the answers in the ledger of another run; they count as paid there. Return the folder of its images.

    If it `moves`, all calls are copied, and count here.
    """
    found = find_ledger(folder)
    if found is None:
        return folder
    path, _ = found
    inherited, which = ("inherited", "TRUE") if moves else ("1", "state IN ('answered', 'rejected')")
    columns = (
        "key, stage, direction, model, prompts, state, worst, dollars, calls, prompt_tokens, completion_tokens, "
        "answered_by, reply, body, batch_id"
    )
    database.execute("ATTACH ? AS other", (str(path),))
    try:
        database.execute(
            f"INSERT OR IGNORE INTO call ({columns}, run, inherited) SELECT {columns}, ?, {inherited} FROM other.call "
            f"WHERE {which}",
            (run,),
        )
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if _is_of_the_disk(error):
            raise
        raise damaged(path, error) from error
    finally:
        database.execute("DETACH other")
    return path.parent


def _connect_to_read(path: Path) -> sqlite3.Connection:
    mode = "mode=ro" if os.access(path.parent, os.W_OK) else "immutable=1"  # readers of a WAL write beside it
    if mode != "mode=ro" and _log_of(path):
        raise UserError(
            f"{path} was not closed, and {path.parent} cannot be written to. Copy both files and read those."
        )
    return sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, timeout=PATIENCE)


def _log_of(path: Path) -> bool:
    """Return whether a file has a log of SQLite's beside it, with what a run that was killed wrote last."""
    log = path.with_name(f"{path.name}-wal")
    return log.is_file() and log.stat().st_size > 0


def _knows(path: Path, run: str) -> bool:
    with closing(_connect_to_read(path)) as database:
        try:
            if database.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                return False  # it is of someone else, or another process is about to create the table
            return database.execute("SELECT 1 FROM call WHERE run = ? LIMIT 1", (run,)).fetchone() is not None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if isinstance(error, sqlite3.Error) and run != "." and not re.search("locked|malformed", str(error)):
                return False  # not ours
            raise damaged(path, error) from error
