"""Steps: commands that come one after the other, typed by a person or by a command that runs several.

In:  the words of commands.
Out: `suggest` tells a person which command comes next; `run_command` runs one in this process, exactly as if those words had been
     typed, where such advice would be noise.
"""

from __future__ import annotations

import importlib
import shlex
from contextvars import ContextVar

from repair_hf.runtime.options import parse

_is_inner: ContextVar[bool] = ContextVar("_is_inner", default=False)


def suggest(*words: str) -> None:
    """Say what to type next, ready to be copied, unless it was no person who typed."""
    if not _is_inner.get():
        print(f"next: repair-hf {shlex.join(words)}")


def print_command(*words: str) -> None:
    """Show a command as it would be typed."""
    print(f"$ repair-hf {shlex.join(words)}")


def run_command(*words: str) -> None:
    """Show a command, then do in this process what the command line does with its words.

    Raises:
        UserError: As the command does.
        RunStopped: As the command does.
    """
    print()
    print_command(*words)
    module = importlib.import_module(f"repair_hf.cli.{words[0]}")
    count = 2 if "ACTIONS" in vars(module) else 1  # words that name the command
    options, act = (module.OPTIONS, module.run) if count == 1 else module.ACTIONS[words[1]]
    before = _is_inner.set(True)
    try:
        act(*parse(options, words[count:], f"repair-hf {' '.join(words[:count])}"))
    finally:
        _is_inner.reset(before)
