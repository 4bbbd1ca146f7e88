"""Progress of whatever may take over ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from tqdm.auto import tqdm

from repair_hf.runtime.processes import processes

EVERY = 60.0  # seconds between lines where there is no terminal
WAIT = 1.0  # seconds before a bar is shown


class Progress(tqdm):
    """A bar on a terminal, and elsewhere a line a minute; of the main process alone.

    Args:
        iterable: As of tqdm.
        desc: Title; None shows nothing.
        how: Other arguments of tqdm. `unit` is a plural noun after a space, such as ` images`. `disable=True` gives
            lines on a terminal, too.
    """

    postfix = ""

    def __init__(self, iterable: Any = None, desc: str | None = None, **how: Any) -> None:
        self._title, self._is_told = desc, processes().is_main and desc is not None
        if iterable is not None:
            how.setdefault("total", len(iterable) if hasattr(iterable, "__len__") else None)
        asked = how.pop("disable", None)
        off = asked if self._is_told else True
        super().__init__(iterable, desc, **{"delay": WAIT, **how}, disable=off)
        self._unit, self._first, self._start = how.get("unit", ""), how.get("initial", 0), time.monotonic()
        self._last = self._start

    def __iter__(self) -> Iterator[Any]:
        if not self.disable:
            yield from super().__iter__()
            return
        for item in self.iterable:
            yield item
            self.update()

    def update(self, n: float | None = 1) -> bool | None:
        if self.disable:  # then tqdm does not count
            self.n += int(n or 0)
            if self._is_told and time.monotonic() - self._last >= EVERY:
                tqdm.write(self._line(), file=sys.stderr)
                self._last = time.monotonic()
        return super().update(n)

    def _line(self) -> str:
        """Say what the bar would show."""
        passed = max(time.monotonic() - self._start, 1e-9)
        rate = (self.n - self._first) / passed
        parts = [f"{self._title}: {self.n:,} of {self.total:,}{self._unit}" if self.total else f"{self.n:,}"]
        parts.append(f"{rate:,.1f} a second" if rate >= 1 else f"{60 * rate:,.1f} a minute")
        if self.total and rate:
            parts.append(f"{self.format_interval((self.total - self.n) / rate)} left")
        return ", ".join([*parts, *([self.postfix] if self.postfix else [])])
