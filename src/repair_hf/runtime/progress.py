"""Progress of whatever may take over ten seconds."""

from __future__ import annotations

import sys
from typing import Any

from tqdm.auto import tqdm

from repair_hf.runtime.processes import processes

EVERY = 60.0  # seconds between lines where there is no terminal
WAIT = 1.0  # seconds before a bar is shown


class Progress(tqdm):
    """A bar of tqdm in the main process alone; where there is no terminal, a new state once a minute.

    Args:
        iterable: As of tqdm.
        desc: Title; None shows nothing.
        options: Other arguments of tqdm. `unit` is a plural noun after a space, such as ` images`.
    """

    def __init__(self, iterable: Any = None, desc: str | None = None, **options: Any) -> None:
        is_terminal = sys.stderr.isatty()
        defaults = {"delay": WAIT if is_terminal else EVERY, "mininterval": 0.1 if is_terminal else EVERY}
        if desc is None or not processes().is_main:
            options["disable"] = True
        super().__init__(iterable, desc, **defaults | options)
