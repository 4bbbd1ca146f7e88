"""Share the parts of a study among processes. A process skips parts that another process is already working on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import filelock

from repair_hf.llm.batches import BatchesOpen

logger = logging.getLogger(__name__)
T = TypeVar("T")


class WorkSharing:
    """Locks for the parts of a study, as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._waits = folder, True

    def lock(self, name: str) -> filelock.FileLock:
        """Return the lock of a part, to be held while the part is made. Entering it waits, except within `run_all`.

        Raises:
            filelock.Timeout: On entering, if the part is taken and `run_all` has other parts left to make.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(self.folder / f"{name}.lock", timeout=-1 if self._waits else 0)

    def run_all(self, parts: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Make all parts, those that other processes are working on last, and return the results in order.

        A part is called again after it has met a lock, so it must remember finished work. It may itself call
        `run_all`, so that several processes work on one part.

        Raises:
            filelock.Timeout: If an outer `run_all` has other parts left, and everything left here is taken.
            BatchesOpen: If parts wait for answers of a batch, after all others are made.
        """
        made: dict[str, T] = {}
        with_provider: dict[str, BatchesOpen] = {}
        while left := [name for name in parts if name not in made and name not in with_provider]:
            for name in left:
                with suppress(filelock.Timeout), self._not_waiting():
                    self._make(name, parts, made, with_provider)
            if made.keys().isdisjoint(left) and with_provider.keys().isdisjoint(left):
                if not self._waits:
                    raise filelock.Timeout(left[0])
                logger.info("Other processes are working on everything that is left; waiting for %s.", left[0])
                self._make(left[0], parts, made, with_provider)
        if with_provider:
            raise BatchesOpen({run: each for stop in with_provider.values() for run, each in stop.open.items()})
        return {name: made[name] for name in parts}

    def _make(
        self, name: str, parts: Mapping[str, Callable[[], T]], made: dict[str, T], stops: dict[str, BatchesOpen]
    ) -> None:
        try:
            made[name] = parts[name]()
        except BatchesOpen as stop:
            stops[name] = stop

    @contextmanager
    def _not_waiting(self) -> Iterator[None]:
        before, self._waits = self._waits, False
        try:
            yield
        finally:
            self._waits = before
