"""The journal: every answer that a provider gave, on disk, so that none is paid for twice.

In:  a request (model, messages, parameters), and the answer to it.
Out: the answer again whenever the same request comes, in this run or a later one.

One JSON line per answer, appended and handed to the system before the answer is used: it survives the death of the process (`kill -9`),
though not a power cut. A line that was being written at that moment is cut off again, and its request asked anew. Answers that were of
no use (empty, cut off, refused) stand here too: they were paid for, and a rerun must come out like the first run.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import filelock

from repair_hf.options import UserError

logger = logging.getLogger(__name__)

LONG = 1024  # characters; longer strings (images) are hashed by themselves, which spares JSON's escaping of them

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Entry(NamedTuple):
    """One answer.

    Args:
        key: Names the request; see `request_key`.
        text: What the model said, as it came.
        finish: Why it stopped: `stop`, `length`, `content_filter`, `refusal` or what else the provider says.
        prompt_tokens: As counted by the provider.
        completion_tokens: As counted by the provider.
        dollars: Price at the time; None where no price is known.
        stage: What the answer was for, such as `audit`.
        direction: `i2t` or `t2i`.
        model: Model that was asked.
        answered_by: Model that answered, in the provider's words.
    """

    key: str
    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    stage: str
    direction: str
    model: str
    answered_by: str


def request_key(request: dict, sample: int) -> str:
    """Name a request by its content: model, messages, parameters, and which of several samples it is.

    Neither the endpoint nor the API key is part of it: an answer stays paid for when a server moves to another port.
    """
    text = _canonical([_fold(request), sample])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """Answers on disk, by the key of their request.

    Args:
        path: A `.jsonl` file; made if missing. Only one run at a time may hold it (`path` + `.lock`).

    Raises:
        UserError: If another run holds the journal.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(f"{self.path}.lock", blocking=False)
        try:
            self._lock.acquire()
        except filelock.Timeout as error:
            raise UserError(
                f"{self.path} is in use by another run; wait for it to end, or give another --output."
            ) from error
        self._appender = self.path.open("ab")
        self._reader = self.path.open("rb")
        self._offsets: dict[str, int] = {}  # the texts stay on disk: a paper-sized run has half a million answers
        self._index()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Entry]:
        """All answers, in the order in which they came."""
        return (self._read(offset) for offset in list(self._offsets.values()))

    def get(self, key: str) -> Entry | None:
        """The answer to a request, if there is one."""
        offset = self._offsets.get(key)
        return None if offset is None else self._read(offset)

    def put(self, entry: Entry) -> None:
        """Keep an answer. When this returns, the death of the process cannot lose it."""
        if entry.key in self._offsets:
            raise ValueError(f"{self.path} already holds an answer to {entry.key}; look with `get` before asking.")
        offset = self._appender.tell()
        self._appender.write(json.dumps(entry._asdict()).encode("ascii") + b"\n")
        self._appender.flush()
        self._offsets[entry.key] = offset

    def close(self) -> None:
        """Let other runs have the journal."""
        self._appender.close()
        self._reader.close()
        self._lock.release()

    def _index(self) -> None:
        """Learn where each answer stands; mend the end of the file if a run died while writing it."""
        offset, foreign = 0, 0
        for line in self._reader:
            entry = _parse(line)
            if entry is not None:
                self._offsets.setdefault(entry.key, offset)
            elif line.endswith(b"\n"):
                foreign += 1
            if not line.endswith(b"\n"):
                self._mend(offset, whole=entry is not None)
            offset += len(line)
        if foreign:
            logger.warning(
                "%s: %d lines are no answers of this program; they are left alone, and what they may have held is asked again.",
                self.path,
                foreign,
            )

    def _mend(self, offset: int, *, whole: bool) -> None:
        if whole:  # only its line break is missing
            self._appender.write(b"\n")
            self._appender.flush()
        else:
            self._appender.truncate(offset)
            logger.info("%s: cut off the last line, which a dying run had not finished.", self.path)
        self._appender.seek(0, 2)

    def _read(self, offset: int) -> Entry:
        self._reader.seek(offset)
        entry = _parse(self._reader.readline())
        if entry is None:
            raise RuntimeError(f"{self.path} was changed by something else while it was open; start the run again.")
        return entry


def _parse(line: bytes) -> Entry | None:
    try:
        return Entry(**json.loads(line))
    except (ValueError, TypeError):  # no JSON; no object, or one of other fields
        return None


def _fold(value: object) -> object:
    """The same value with each long string replaced by its digest."""
    if isinstance(value, str):
        return (
            value if len(value) <= LONG else ["long text", hashlib.blake2b(value.encode(), digest_size=32).hexdigest()]
        )
    if isinstance(value, dict):
        return {key: _fold(item) for key, item in value.items()}
    return [_fold(item) for item in value] if isinstance(value, list) else value
