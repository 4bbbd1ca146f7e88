"""Find, run and suggest commands, for the commands that run others one after the other."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from repair_hf.runtime.command_line import parse

_is_inner: ContextVar[bool] = ContextVar("_is_inner", default=False)


def load_command(name: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"repair_hf.cli.{name}")


def suggest(*words: str) -> None:
    """Print the next command, ready to be copied; nothing inside `run_command`."""
    if not _is_inner.get():
        print(f"next: repair-hf {shlex.join(words)}")


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str | float]], *, labels: int = 1) -> None:
    """Print a table whose first `labels` columns are left-aligned."""
    from rich.console import Console

    from repair_hf.analysis.tables import terminal_table

    cells = ([cell if isinstance(cell, str) else f"{cell:,}" for cell in row] for row in rows)
    Console().print(terminal_table(heads, cells, labels=labels))


def print_command(*words: str) -> None:
    """Print a command as a user would type it."""
    print(f"$ repair-hf {shlex.join(words)}")


def run_command(*words: str) -> None:
    """Print a command, then run it in this process as the command line would, with the same errors."""
    print()
    print_command(*words)
    module = load_command(words[0])
    count = 2 if "ACTIONS" in vars(module) else 1  # words that name the command
    options, act = (module.OPTIONS, module.run) if count == 1 else module.ACTIONS[words[1]]
    before = _is_inner.set(True)
    try:
        perform(act, parse(options, words[count:], f"repair-hf {' '.join(words[:count])}"))
    finally:
        _is_inner.reset(before)


def perform(act: Callable[..., None], options: Sequence[Any]) -> None:
    """Run a command with its options, as the only one that writes into its output folder.

    Options whose class has `_is_shared` name a file, or a folder that several runs share; a dry run writes nothing.
    """
    from repair_hf.runtime.locks import one_writer

    writing = [vars(each).get("output") for each in options if not getattr(each, "_is_shared", False)]
    folder = next((output for output in writing if output is not None), None)
    is_dry = any(vars(each).get("dry_run") for each in options)
    with nullcontext() if folder is None or is_dry else one_writer(folder):
        act(*options)
