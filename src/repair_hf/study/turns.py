"""Several processes on one study: each part is made by one of them, and who finds a part taken does something else first.

In:  a folder for locks; parts by name.
Out: what was made of each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import filelock

logger = logging.getLogger(__name__)
Part = TypeVar("Part")


class Turns:
    """Whose turn it is.

    Args:
        folder: Gets a lock for each part.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._waits = folder, True

    def alone(self, name: str) -> filelock.FileLock:
        """Held while a part is made. Whoever wants it meanwhile waits, and finds it made; but within `all_of` others come first.

        Raises:
            filelock.Timeout: When it is entered, if the part is taken and `all_of` has others left to make.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(self.folder / f"{name}.lock", timeout=-1 if self._waits else 0)

    def all_of(self, parts: Mapping[str, Callable[[], Part]]) -> dict[str, Part]:
        """Make all parts in their order, but what other processes are at last.

        Args:
            parts: What makes each. It may be called again after it has met a lock, and is to remember what it has done. It may
                itself be made of parts: then several processes work on one.

        Returns:
            Of each part, in the order of `parts`.

        Raises:
            filelock.Timeout: If this is within another `all_of`, which has others left to make, and all that is left here is taken.
        """
        made: dict[str, Part] = {}
        while left := [name for name in parts if name not in made]:
            for name in left:
                with suppress(filelock.Timeout), self._not_waiting():
                    made[name] = parts[name]()
            if made.keys().isdisjoint(left):
                if not self._waits:
                    raise filelock.Timeout(left[0])
                logger.info("Other processes are at all that is left; waiting for %s.", left[0])
                made[left[0]] = parts[left[0]]()
        return {name: made[name] for name in parts}

    @contextmanager
    def _not_waiting(self) -> Iterator[None]:
        before, self._waits = self._waits, False
        try:
            yield
        finally:
            self._waits = before
