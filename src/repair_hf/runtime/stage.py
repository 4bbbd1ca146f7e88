"""A stage: a command that writes one folder, once.

Every stage runs the same way, from the command line and from Python: check the folder; return its result if it is
finished; lock it; record what is about to run; work; record the numbers. A stage writes into a folder that is empty,
or that carries its own marks. The folder holds

- `versions.json`: the command that the folder belongs to, versions of the code, and which inputs were local;
- `config.yaml`: the options, and digests of what the stage reads;
- `command.txt`: the command that makes the folder;
- `items.parquet`: a digest of each image and caption of the pairs, so that a later stage can name those that changed;
- `summary.json`: the numbers. It is written last: if it exists, all else in the folder is whole, and of these options.
  The stage is finished, unless `open` counts what is still to do: then it stopped, and the same command goes on.

Keys are hidden in all of them.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from repair_hf.runtime.files import read_json, read_yaml
from repair_hf.runtime.items import Items
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import UserError, changed, flags, neutral_names
from repair_hf.runtime.processes import is_first
from repair_hf.runtime.redaction import hide_keys
from repair_hf.runtime.run_folder import as_json, versions, write_atomically, write_json

logger = logging.getLogger(__name__)

REMAKE = "Delete this file, and run the command that made its folder again"


class Stage:
    """One run of a command, and the folder that it writes.

    Args:
        command: Words of the command, such as `export triplets`.
        output: Its folder; None keeps the result in memory, and writes nothing.
        options: Dataclasses of options. Neutral ones may change in a finished folder.
        inputs: What else decides the result, by name: digests of what the stage reads.
        items: The images and captions of the pairs that the stage reads.
        needs: Keys that the summary of a finished stage has.
        neutral: Names of inputs that do not affect the result.
        words: Flags of further options, for `command.txt`.
        writes: Patterns of the files that the work makes. Those of other options are removed before it starts; what
            was paid is none of them.
        otherwise: What to do if the folder is finished with other options.

    Attributes:
        config: What `config.yaml` holds.
    """

    def __init__(
        self,
        command: str,
        output: str | Path | None,
        options: Sequence[Any] = (),
        inputs: Mapping[str, Any] | None = None,
        *,
        items: Items | None = None,
        needs: Iterable[str] = (),
        neutral: Iterable[str] = (),
        words: Iterable[str] = (),
        writes: Iterable[str] = (),
        otherwise: str = "Give another --output, or delete the folder.",
    ) -> None:
        self.command = command
        self.folder = None if output is None else Path(output)
        self.items = items
        self.needs, self.writes = list(needs), list(writes)
        self._otherwise = otherwise
        self._has_begun = False
        self._neutral = set(neutral).union(*map(neutral_names, options))
        values = {field.name: getattr(group, field.name) for group in options for field in fields(group) if field.init}
        self.config: dict[str, Any] = hide_keys(as_json(values | dict(inputs or {})))
        typed = [word for group in options for word in flags(hide_keys(as_json(changed(group))))]
        self._words = ["repair-hf", *command.split(), *typed, *words, "--output", str(output)]

    def check(self) -> None:
        """Check that the stage may write to its folder; change nothing.

        Raises:
            UserError: If the folder is not empty and not of this command, holds a finished result of other options, or
                its own files are damaged.
        """
        if self.folder is None or self.summary is not None:
            return
        check_folder(self.folder, self.command)
        if is_finished(self.folder) and (changes := self._differences(self.folder)):
            raise UserError(f"{self.folder} holds a finished result with other options: {changes}. {self._otherwise}")

    @property
    def deciding(self) -> dict[str, Any]:
        """What decides the result: `config` without neutral options."""
        return {name: value for name, value in self.config.items() if name not in self._neutral}

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary, if the folder holds the result of these options, even of a stopped run; else None.

        Raises:
            UserError: If the folder's files are damaged.
        """
        if self.folder is None or not (self.folder / "summary.json").is_file():
            return None
        if command_of(self.folder) != self.command or self._differences(self.folder):
            return None
        return read_json(self.folder / "summary.json", needs=self.needs, remedy=REMAKE)

    def run(self, work: Callable[[Path | None], dict[str, Any]], *, again: bool = False) -> dict[str, Any]:
        """Do the work unless it is done, and return the summary.

        Args:
            work: Makes everything else in the folder, and returns the summary. Of several processes, the first one's
                is kept; the others may return anything.
            again: Do it even in a finished folder, because that makes more of it. The work then calls `begin` itself,
                once everything is loaded and checked: until then an earlier result stays as it is.

        Raises:
            UserError: As `check`; or if another run holds the folder.
        """
        folder = self.folder
        if folder is None:
            return as_json(work(None))
        if not again or is_first():  # the others read nothing that this one removes
            self.check()
        if not again and (summary := self.summary) is not None:
            return summary
        with one_writer(folder):
            if not again and (summary := self.summary) is not None:  # another run has finished it in the meantime
                return summary
            if is_first():
                self.check()
                if not again or command_of(folder) is None:
                    self.begin()
            summary = as_json(work(folder))
            if is_first():  # last: it means that everything else in the folder is complete
                assert self._has_begun, "the work calls `begin`"
                write_json(folder / "summary.json", hide_keys(summary))
            return summary

    def begin(self) -> None:
        """Record what is about to run. What an interrupted run of the same options left stays."""
        self._has_begun, folder = True, self.folder
        if folder is None or not is_first():
            return
        claim(folder, self.command)
        (folder / "summary.json").unlink(missing_ok=True)  # the result is about to be rewritten
        if changes := self._differences(folder):
            if (folder / "config.yaml").is_file():
                logger.warning("%s was started with other options: %s. The new ones are used.", folder, changes)
            for path in [path for pattern in self.writes for path in folder.glob(pattern) if path.is_file()]:
                path.unlink()
        _write_mark(folder, self.command, here=_local(self.config))
        write_atomically(folder / "config.yaml", yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True))
        write_atomically(folder / "command.txt", shlex.join(self._words) + "\n")
        if self.items is not None:
            self.items.save(folder)

    def _differences(self, folder: Path) -> str:
        """Describe the options in which the folder's result differs from this run; empty if there are none."""
        path = folder / "config.yaml"
        before = read_yaml(path, remedy=REMAKE) if path.is_file() else {}
        return differences(before, self.config, without=self._neutral)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *, without: Iterable[str] = ()) -> str:
    """Describe the values in which two records of options differ; empty if there are none. Absent is None."""
    ignored = set(without)
    keys = [key for key in {**before, **now} if key not in ignored and before.get(key) != now.get(key)]
    return ", ".join(f"{key} ({before.get(key, 'absent')} -> {now.get(key, 'absent')})" for key in keys)


def check_folder(folder: Path, command: str) -> None:
    """Check that a command may write to a folder: there is none, it is empty, or it carries marks of this command.

    Raises:
        UserError: If it is a file, or holds files of the user or of another command.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give --output the path of a folder.")
    before = command_of(folder)
    if before not in (command, None):
        raise UserError(f"{folder} belongs to `{before}`, not to `{command}`; give another --output.")
    names = [path.name for path in folder.glob("[!.]*")] if before is None else []
    if names:
        raise UserError(
            f"{folder} holds {min(names)}, and no mark of `repair-hf {command}`. Nothing is overwritten: give "
            "--output a new or empty folder."
        )


def claim(folder: str | Path, command: str) -> None:
    """Make a folder, and mark it as that of a command.

    Raises:
        UserError: As `check_folder`.
    """
    folder = Path(folder)
    check_folder(folder, command)
    if is_first() and command_of(folder) is None:
        folder.mkdir(parents=True, exist_ok=True)
        _write_mark(folder, command)


def _write_mark(folder: Path, command: str, *, here: Iterable[str] = ()) -> None:
    """Write `versions.json`: whose folder it is, and by which code; `here` lists inputs that are local paths."""
    write_json(folder / "versions.json", {"command": command, "output": str(folder), "here": [*here]} | versions())


def command_of(folder: Path) -> str | None:
    """Return the command that a folder belongs to; None if it carries no mark of ours."""
    path = folder / "versions.json"
    try:
        return read_json(path).get("command") if path.is_file() else None
    except UserError:  # a file of this name that somebody else wrote
        return None


def open_in(folder: Path) -> int:
    """Return how much a stopped stage has left to do; 0 if it is finished, or the folder is of no stage."""
    path = folder / "summary.json"
    left = read_json(path, remedy=REMAKE).get("open") if path.is_file() else 0
    return left if isinstance(left, int) else 0


def is_finished(folder: Path) -> bool:
    """Return whether a folder holds the whole result of a stage."""
    return (folder / "summary.json").is_file() and not open_in(folder)


def refuse_unfinished(place: str | Path) -> None:
    """Raise an error for a folder that a stage is writing, or was killed while writing; any other place is fine.

    Whoever opens a model, pairs, failures, records or a contrast set by name asks this first.

    Raises:
        UserError: With how to finish it.
    """
    folder = Path(place)
    if (command := command_of(folder)) is not None and not (folder / "summary.json").is_file():
        raise UserError(
            f"{folder} is unfinished: `repair-hf {command}` still runs, or was killed. Run the command in its "
            "command.txt: it finishes the folder, and pays for no answer that has arrived."
        )


def _local(config: Mapping[str, Any]) -> list[str]:
    """Return the values that are local paths although they look like Hub ids."""
    lists = [value if isinstance(value, list) else [value] for value in config.values()]
    texts = {value for values in lists for value in values if isinstance(value, str)}
    return sorted(text for text in texts if text.count("/") == 1 and Path(text).exists())
