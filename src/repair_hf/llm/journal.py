"""The journal: every answer that a provider gave, on disk, so that none is paid for twice.

In:  a request (model, messages, parameters), and the answer to it.
Out: the answer again whenever the same request comes, in this run or a later one.

One JSON line per answer, appended and handed to the system before the answer is used: it survives the death of the process (`kill -9`),
though not a power cut. A line that was being written at that moment is cut off again, and its request asked anew. Answers that were of
no use (empty, cut off, refused) stand here too: they were paid for, and a rerun must come out like the first run. So do requests whose
answers were lost on their way (`LOST`), for they may be billed: they count as paid, answer nothing, and are asked again.

Where several processes share a run each appends to a file of its own and reads those of the others as well.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import filelock

from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

LOST, REJECTED = "lost", "rejected"
LONG = 1024  # characters; longer strings (images) are hashed by themselves, which spares JSON's escaping of them

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Entry(NamedTuple):
    """One answer, which may hold several choices.

    Args:
        key: Names the request; see `request_key`.
        text: What the model said, as it came.
        finish: Why it stopped: `stop`, `length`, `content_filter`, `refusal` or what else the provider says.
        prompt_tokens: As counted by the provider.
        completion_tokens: As counted by the provider.
        dollars: Price at the time, and of a lost answer the most that it may be; None where it is not known.
        stage: What the answer was for, such as `audit`.
        direction: `i2t` or `t2i`.
        model: Model that was asked.
        answered_by: Model that answered, in the provider's words.
        others: Text and finish of the further choices, where a request asked for more than one.
        at_most: What it may have cost, in dollars, where the model has a price but the provider did not say how much it bills.
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

    @property
    def spent(self) -> float:
        """Dollars that count against a ceiling."""
        return self.at_most if self.dollars is None else self.dollars

    @property
    def is_lost(self) -> bool:
        """Whether it stands for an answer that never arrived, though it may be billed."""
        return self.finish == LOST

    @property
    def is_image(self) -> bool:
        """Whether it stands for an image that a provider has edited; `text` is the name of its file."""
        return (self.stage, self.direction) == ("edit", "t2i")


def lost(stage: str, direction: str, model: str, dollars: float | None) -> Entry:
    """An answer that never arrived, and may have cost so much. No request has its key."""
    return Entry(secrets.token_hex(16), "", LOST, 0, 0, dollars, stage, direction, model, answered_by="")


def request_key(request: dict, sample: int) -> str:
    """Name a request by its content: model, messages, parameters, and which of several samples it is.

    Neither the endpoint nor the API key is part of it: an answer stays paid for when a server moves to another port.
    """
    text = _canonical([_fold(request), sample])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """Answers on disk, by the key of their request.

    Args:
        path: A `.jsonl` file; made if missing.
        also_read: Journals of other processes or earlier runs. They are read as they stand now, and never written to.
        lock: The file that only one run at a time may hold; `path` + `.lock` by default.

    Attributes:
        calls: How many answers of the LLM were paid for, by whichever run or process, as far as these files tell; lost ones too.
        dollars: What these and the edited images cost, or may have cost, as far as prices are known.
        models: Those that have answered.

    Raises:
        UserError: If another run holds the journal.
    """

    def __init__(
        self, path: str | Path, *, also_read: Sequence[str | Path] = (), lock: str | Path | None = None
    ) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(lock or f"{self.path}.lock", blocking=False)
        try:
            self._lock.acquire()
        except filelock.Timeout as error:
            raise UserError(
                f"{self.path} is in use by another run; wait for it to end, or give another --output."
            ) from error
        self._appender = self.path.open("ab")
        self._reader = self.path.open("rb")
        self._shards: list[BinaryIO] = []
        self.read_anew(also_read)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Entry]:
        """All answers, those of this very file first, in the order in which they came."""
        return (self._read(*place) for place in list(self._places.values()))

    def get(self, key: str) -> Entry | None:
        """The answer to a request, if there is one."""
        place = self._places.get(key)
        return None if place is None else self._read(*place)

    def put(self, entry: Entry) -> None:
        """Keep an answer. When this returns, the death of the process cannot lose it."""
        if entry.key in self._places:
            raise ValueError(f"{self.path} already holds an answer to {entry.key}; look with `get` before asking.")
        offset = self._appender.tell()
        told = entry._asdict()
        if not entry.at_most:  # rarely told; without it the line is one that earlier versions read too
            del told["at_most"]
        self._appender.write(json.dumps(told).encode("ascii") + b"\n")
        self._appender.flush()
        self._note(entry, self._reader, offset)

    def read_anew(self, also_read: Sequence[str | Path]) -> None:
        """Forget what is known and read it again, with what other processes have written meanwhile."""
        for shard in self._shards:
            shard.close()
        others = [Path(other) for other in also_read if Path(other).resolve() != self.path.resolve()]
        self._shards = [other.open("rb") for other in others]
        self.calls, self.dollars, self.models = 0, 0.0, set[str]()
        # The texts stay on disk: a paper-sized run has half a million answers.
        self._places: dict[str, tuple[BinaryIO, int]] = {}
        self._reader.seek(0)
        for file in (self._reader, *self._shards):
            self._index(file)

    def close(self) -> None:
        """Let other runs have the journal."""
        for file in (self._appender, self._reader, *self._shards):
            file.close()
        self._lock.release()

    def _index(self, file: BinaryIO) -> None:
        """Learn where each answer stands; mend the end of our own file if a run died while writing it."""
        offset, foreign = 0, 0
        for line in file:
            entry = _parse(line)
            if entry is not None:
                self._note(entry, file, offset)
            elif line.endswith(b"\n"):
                foreign += 1
            if not line.endswith(b"\n") and file is self._reader:
                self._mend(offset, whole=entry is not None)
            offset += len(line)
        if foreign:
            logger.warning(
                "%s: %d lines are no answers of this program; they are left alone, and what they may have held is asked again.",
                file.name,
                foreign,
            )

    def _note(self, entry: Entry, file: BinaryIO, offset: int) -> None:
        self._places.setdefault(entry.key, (file, offset))
        self.calls += not entry.is_image  # also where two processes paid for the same
        self.dollars += entry.spent
        if entry.finish not in (LOST, REJECTED):
            self.models.add(entry.model)

    def _mend(self, offset: int, *, whole: bool) -> None:
        if whole:  # only its line break is missing
            self._appender.write(b"\n")
            self._appender.flush()
        else:
            self._appender.truncate(offset)
            logger.info("%s: cut off the last line, which a dying run had not finished.", self.path)
        self._appender.seek(0, 2)

    def _read(self, file: BinaryIO, offset: int) -> Entry:
        file.seek(offset)
        entry = _parse(file.readline())
        if entry is None:
            raise RuntimeError(f"{file.name} was changed by something else while it was open; start the run again.")
        return entry


def open_journal(folder: str | Path, name: str = "journal", *, process: int = 0, processes: int = 1) -> Journal:
    """One process's journal in the folder of a run. It knows what all of them wrote, in this run and in earlier ones.

    The first process holds the folder for all of them, so that no two runs share it, of however many processes each.

    Args:
        folder: Of the run.
        name: What the files' names begin with.
        process: Which process this is, from 0.
        processes: How many there are; earlier runs may have had more or fewer.
    """
    folder = Path(folder)
    own = f"{name}.jsonl" if processes == 1 else f"{name}-{process}.jsonl"
    lock = folder / f"{name}.jsonl.lock" if process == 0 else None
    return Journal(folder / own, also_read=shards(folder, name), lock=lock)


def shards(folder: Path, name: str = "journal") -> list[Path]:
    """The journals of all processes that ever wrote into the folder of a run."""
    return sorted([*folder.glob(f"{name}.jsonl"), *folder.glob(f"{name}-*.jsonl")])


def bills(folder: Path) -> list[Path]:
    """The journals of a run that tell what it paid: for the LLM's answers, and for a provider's images."""
    return [*shards(folder), *shards(folder, "images")]


def total(entries: Iterable[Entry]) -> tuple[float, int]:
    """Dollars and answers of the LLM, as ceilings count them."""
    spent = [(entry.spent, not entry.is_image) for entry in entries]
    return sum(dollars for dollars, _ in spent), sum(is_answer for _, is_answer in spent)


def read_entries(paths: Iterable[Path]) -> Iterator[Entry]:
    """The answers in some journals, whoever may be writing into them."""
    for path in paths:
        with path.open("rb") as file:
            yield from (entry for line in file if (entry := _parse(line)) is not None)


def _parse(line: bytes) -> Entry | None:
    try:
        entry = Entry(**json.loads(line))
        return entry._replace(others=tuple((text, finish) for text, finish in entry.others))
    except (ValueError, TypeError):  # no JSON; no object, or one of other fields
        return None


def _fold(value: object) -> object:
    """The same value with each long string replaced by its digest."""
    kind = type(value)  # quicker than to ask whether it is an instance, and there are dozens in a request
    if kind is str:
        return value if len(value) <= LONG else ["long text", _digest(value)]
    if kind is dict:
        return {key: _fold(item) for key, item in value.items()}
    return [_fold(item) for item in value] if kind is list else value


@lru_cache(64)
def _digest(text: str) -> str:
    """One image is asked about many times, mostly in a row."""
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
