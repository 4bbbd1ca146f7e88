"""The journal: every answer of a provider on disk, so that none is paid for twice.

Each answer is one JSON line, written before the answer is used: it survives `kill -9`, though not a power cut. A line
that was being written at that moment is cut off, and its request is sent again. Unusable answers (empty, cut off,
refused) are kept too: they were paid for, and a rerun must repeat the first run. So are rejections (`REJECTED`), which
cost nothing. Requests whose answers were lost on their way (`LOST`) count as paid, because they may be billed, and are
sent again.

Each process of a run appends to a file of its own and reads the files of all others.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from repair_hf.runtime.disk import DiskFull, Reserve
from repair_hf.runtime.locks import take
from repair_hf.runtime.texts import parse_json

logger = logging.getLogger(__name__)

LOST, REJECTED = "lost", "rejected"  # values of `finish` beside those of the providers
RESERVE = 4 * 2**20  # bytes; some thousand answers
LONG = 1024  # characters; longer strings (images) are hashed separately, which avoids escaping them as JSON

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Entry(NamedTuple):
    """One answer, which may hold several choices.

    Args:
        key: Key of the request; see `request_key`.
        finish: Why the model stopped: `stop`, `length`, `content_filter`, `refusal` or another word of the provider.
        completion_tokens: Tokens of all choices.
        dollars: Price at the time, or the worst case of a lost answer; None if not known.
        answered_by: Model that answered, in the provider's words.
        others: Text and finish of further choices, if the request asked for several.
        at_most: Worst case in dollars, if the model has a price but the provider reported no tokens.
        prompts: Digest of the prompts of the run; empty if not on record.
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
    others: tuple[tuple[str, str], ...] = ()
    at_most: float = 0.0
    prompts: str = ""

    @property
    def spent(self) -> float:
        """Dollars that count against a ceiling."""
        return self.at_most if self.dollars is None else self.dollars

    @property
    def has_come(self) -> bool:
        """Whether there was an answer, neither lost nor replaced by a rejection."""
        return self.finish not in (LOST, REJECTED)

    @property
    def is_answer(self) -> bool:
        """Whether this counts against a ceiling on the LLM's answers."""
        return not self.is_image and self.finish != REJECTED

    @property
    def is_image(self) -> bool:
        """Whether this is an edited image; `text` is then the name of its file."""
        return (self.stage, self.direction) == ("edit", "t2i")


def lost(stage: str, direction: str, model: str, dollars: float | None) -> Entry:
    """Return the entry of an answer that never arrived and may have cost so much. No request has its key."""
    return Entry(secrets.token_hex(16), "", LOST, 0, 0, dollars, stage, direction, model, answered_by="")


def request_key(request: dict, sample: int) -> str:
    """Return a digest of a request: model, messages, parameters and the number of the sample.

    Endpoint and API key are no part of it: a paid answer stays valid when a server moves to another port.
    """
    text = _canonical([_fold(request), sample])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """Answers on disk, by the key of their request.

    Args:
        path: A `.jsonl` file; created if missing.
        also_read: Journals of other processes or earlier runs, read as they are now and never written to.
        lock: File that only one run at a time may lock; `path` + `.lock` by default.
        reserve: Bytes on the disk that are held for what is in flight when the disk gets full.

    Attributes:
        calls: Number of paid answers of the LLM in these files, lost ones included.
        dollars: What these and the edited images cost, or may have cost, as far as prices are known.
        models: Models that have answered.

    Raises:
        UserError: If another run holds the journal.
        DiskFull: If the disk has no room for the reserve.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        also_read: Sequence[str | Path] = (),
        lock: str | Path | None = None,
        reserve: int = RESERVE,
    ) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = take(lock or f"{self.path}.lock", self.path)
        try:
            self.reserve = Reserve(self.path.with_name(f".{self.path.name}.reserve"), reserve)
        except (DiskFull, OSError):  # in a notebook the traceback keeps the lock alive
            self._lock.release()
            raise
        self._appender = self.path.open("ab", buffering=0)
        self._reader = self.path.open("rb")
        self._shards: list[BinaryIO] = []
        self.read_anew(also_read)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def get(self, key: str) -> Entry | None:
        """Return the answer to a request, if there is one."""
        if key not in self._places:
            return None
        file, offset = self._places[key]
        file.seek(offset)
        entry = _parse(file.readline())
        if entry is None:
            raise RuntimeError(f"{file.name} was changed by another program while it was open; start the run again.")
        return entry

    def put(self, entry: Entry) -> None:
        """Append an answer. Once this returns, the death of the process cannot lose it.

        Raises:
            DiskFull: If the disk is full. The answer was written into the reserve; nothing more should be asked.
        """
        if entry.key in self._places:
            raise ValueError(f"{self.path} already holds an answer to {entry.key}; look with `get` before asking.")
        offset = self._appender.tell()
        values = entry._asdict()
        if not entry.at_most:  # rarely set; without it earlier versions can read the line
            del values["at_most"]
        self.reserve.keep(lambda: self._append(json.dumps(values).encode("ascii") + b"\n", offset))
        self._note(entry, self._reader, offset)
        self.reserve.check()

    def read_anew(self, also_read: Sequence[str | Path]) -> None:
        """Read all files again, with what other processes have written meanwhile."""
        for shard in self._shards:
            shard.close()
        others = [Path(other) for other in also_read if Path(other).resolve() != self.path.resolve()]
        self._shards = [other.open("rb") for other in others]
        self.calls, self.dollars, self.models = 0, 0.0, set[str]()
        # Only places are kept in memory: a run of the paper's size has half a million answers.
        self._places: dict[str, tuple[BinaryIO, int]] = {}
        self._reader.seek(0)
        for file in (self._reader, *self._shards):
            self._index(file)

    def close(self) -> None:
        """Close the files and release the lock."""
        self._appender.close()
        self.reserve.close()
        for file in (self._reader, *self._shards):
            file.close()
        self._lock.release()

    def _append(self, line: bytes, offset: int) -> None:
        """Write a whole line at the end, or nothing."""
        try:
            while line:
                line = line[self._appender.write(line) :]
        except OSError:
            self._appender.truncate(offset)
            raise

    def _index(self, file: BinaryIO) -> None:
        """Note the place of each answer; repair the end of our own file if a run died while writing it."""
        offset, foreign = 0, 0
        for line in file:
            entry = _parse(line)
            if entry is not None:
                self._note(entry, file, offset)
            elif line.endswith(b"\n"):
                foreign += 1
            if not line.endswith(b"\n") and file is self._reader:
                if entry is None:
                    self._appender.truncate(offset)
                    logger.info("%s: removed the incomplete last line of a run that died.", self.path)
                else:
                    self._appender.write(b"\n")
                self._appender.seek(0, 2)
                break
            offset += len(line)
        if foreign:
            logger.warning(
                "%s: %d lines are not valid entries; they are ignored, and their requests are sent again.",
                file.name,
                foreign,
            )

    def _note(self, entry: Entry, file: BinaryIO, offset: int) -> None:
        self._places.setdefault(entry.key, (file, offset))
        self.calls += entry.is_answer  # also if two processes paid for the same request
        self.dollars += entry.spent
        if entry.has_come:
            self.models.add(entry.model)


def open_journal(
    folder: str | Path, name: str = "journal", *, process: int = 0, processes: int = 1, reserve: int = RESERVE
) -> Journal:
    """Open the journal of one process in a run folder; it reads what all processes wrote, in all runs.

    The first process locks the folder for all, so that no two runs share it. Earlier runs may have had more processes,
    or fewer.
    """
    folder = Path(folder)
    own = f"{name}.jsonl" if processes == 1 else f"{name}-{process}.jsonl"
    lock = folder / f"{name}.jsonl.lock" if process == 0 else None
    return Journal(folder / own, also_read=shards(folder, name), lock=lock, reserve=reserve)


def shards(folder: Path, name: str = "journal") -> list[Path]:
    """Return the journals of all processes that ever wrote into a run folder."""
    return sorted([*folder.glob(f"{name}.jsonl"), *folder.glob(f"{name}-*.jsonl")])


def bills(folder: Path) -> list[Path]:
    """Return all journals of a run folder with paid items: answers of the LLM, and edited images."""
    return [*shards(folder), *shards(folder, "images")]


def total(entries: Iterable[Entry]) -> tuple[float, int]:
    """Sum up the dollars and the answers of the LLM, as ceilings count them."""
    spent = [(entry.spent, entry.is_answer) for entry in entries]
    return sum(dollars for dollars, _ in spent), sum(is_answer for _, is_answer in spent)


def read_entries(paths: Iterable[Path]) -> Iterator[Entry]:
    """Yield the answers in some journals, even while other processes write to them."""
    for path in paths:
        with path.open("rb") as file:
            yield from (entry for line in file if (entry := _parse(line)) is not None)


def _parse(line: bytes) -> Entry | None:
    try:
        entry = Entry(**parse_json(line, mend=lambda text: text.encode("utf-8", "replace").decode()))
        return entry._replace(others=tuple((text, finish) for text, finish in entry.others))
    except (ValueError, TypeError):  # not JSON, too deep, not an object, or other fields
        return None


def _fold(value: Any) -> Any:
    """Replace each long string by its digest."""
    kind = type(value)  # faster than isinstance, and a request has dozens of values
    if kind is str:
        return value if len(value) <= LONG else ["long text", _digest(value)]
    if kind is dict:
        return {key: _fold(item) for key, item in value.items()}
    return [_fold(item) for item in value] if kind is list else value


@lru_cache(64)
def _digest(text: str) -> str:
    """Digest a text; cached, because consecutive requests often hold the same image."""
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
