"""End a command by SIGTERM or SIGHUP as Ctrl-C ends it: what is open gets closed, and one line says why."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = {"SIGTERM": "terminated", "SIGHUP": "the terminal was closed"}  # Windows has no SIGHUP


class Ended(KeyboardInterrupt):
    """A signal other than Ctrl-C ended the command; its text says which."""

    def __init__(self, number: int) -> None:
        super().__init__(_ENDING[signal.Signals(number).name])
        self.number = number


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt what runs inside as Ctrl-C does. Ignored signals (`nohup`) stay ignored.

    Of several processes only the first listens: the others may wait for it in code that runs no handler.

    Raises:
        Ended: If such a signal came, whatever it was turned into on the way.
    """
    is_listener = threading.current_thread() is threading.main_thread() and os.environ.get("RANK", "0") == "0"
    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name) and is_listener]
    own = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    came: list[int] = []
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked worker
            os._exit(128 + number)
        came.append(number)
        ctrl_c = signal.getsignal(signal.SIGINT)  # asyncio has one of its own; a background job of a shell ignores it
        (ctrl_c if callable(ctrl_c) else signal.default_int_handler)(signal.SIGINT, frame)

    for number in own:
        signal.signal(number, interrupt)
    try:
        yield
    except BaseException as error:
        if came:
            raise Ended(came[0]) from error
        raise
    finally:
        for number in own:
            signal.signal(number, signal.SIG_DFL)
    if came:
        raise Ended(came[0])
