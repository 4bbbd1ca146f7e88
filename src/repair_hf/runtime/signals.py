"""End a command by SIGTERM or SIGHUP as Ctrl-C ends it: what is open gets closed, and one line says why."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from repair_hf.runtime.processes import is_first

ENDING = {"SIGTERM": "terminated", "SIGHUP": "the terminal was closed"}  # Windows has no SIGHUP


class Ended(KeyboardInterrupt):
    """A signal other than Ctrl-C ended the command; its text says which."""

    def __init__(self, number: int) -> None:
        super().__init__(ENDING[signal.Signals(number).name])
        self.number = number


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt what runs inside. Ignored signals (`nohup`) stay ignored.

    Of several processes only the first listens: the others may wait for it in code that runs no handler.

    Raises:
        Ended: If such a signal came, whatever it was turned into on the way.
    """
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name) and is_first()]
    numbers = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    raised: list[Ended] = []
    process = os.getpid()

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a forked worker
            os._exit(128 + number)
        raised.append(Ended(number))
        raise raised[0]

    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    except BaseException as error:
        if raised and error is not raised[0]:
            raise raised[0] from error
        raise
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
