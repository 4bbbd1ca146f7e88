"""Find, run and suggest commands, for the commands that run others one after the other."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from repair_hf.runtime.options import changed, flags

_is_inner: ContextVar[bool] = ContextVar("_is_inner", default=False)


def load_command(name: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"repair_hf.cli.{name}")


def suggest(*words: str, why: str = "") -> None:
    """Print the next command, ready to be copied, below the line `why`, if any; nothing inside `perform`."""
    if not _is_inner.get():
        print(f"{why}\n" * bool(why) + f"next: repair-hf {shlex.join(words)}")


def unused(folder: str) -> str:
    """Return a folder to suggest as output: `folder`, or with the first number behind it that does not exist yet."""
    names = (folder, *(f"{folder}-{number}" for number in range(2, 1000)))
    return next(name for name in names if not Path(name).exists())


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str | float]], *, labels: int = 1) -> None:
    """Print a table whose first `labels` columns are left-aligned, with directions as `T2I` and `I2T`."""
    from rich.console import Console

    from repair_hf.analysis.tables import SIDES, terminal_table

    cells = ([SIDES.get(cell, cell) if isinstance(cell, str) else f"{cell:,}" for cell in row] for row in rows)
    console, table = Console(markup=False, emoji=False), terminal_table(heads, cells, labels=labels)
    width, console.width = console.width, 1000
    console.width = max(width, console.measure(table).minimum)  # any narrower, it would break words and numbers
    console.print(table)


def perform(command: str, *options: Any, dry_run: bool = False) -> None:
    """Print a command as a user would type it, then run its function with these options.

    Args:
        command: Its words, such as `world build`.
        options: One instance of each of its dataclasses.
        dry_run: Print only.
    """
    name, _, action = command.partition(" ")
    values = [group.changed if hasattr(group, "changed") else changed(group) for group in options]
    typed = [word for of_group in values for word in flags(of_group)]
    print(("" if dry_run else "\n") + f"$ repair-hf {shlex.join([*command.split(), *typed])}")
    if dry_run:
        return
    module = load_command(name)
    act = module.ACTIONS[action][1] if action else module.run
    before = _is_inner.set(True)
    try:
        act(*options)
    finally:
        _is_inner.reset(before)
