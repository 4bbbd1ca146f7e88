"""`repair-hf completion`: what lets a shell complete commands, flags, choices and file names at the Tab key.

In:  the name of a shell.
Out: its script on stdout. It is whole: completing runs no Python, so that it does not wait for any.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Literal

from repair_hf.cli.main import COMMANDS
from repair_hf.runtime.flags import add_arguments, is_needed
from repair_hf.runtime.options import need

EPILOG = """examples:
  repair-hf completion bash > ~/.local/share/bash-completion/completions/repair-hf
  repair-hf completion zsh > "${fpath[1]}/_repair-hf"
  repair-hf completion fish > ~/.config/fish/completions/repair-hf.fish

Open a new shell afterwards, and write the script anew after an update of repair_hf."""


@dataclass
class CompletionOptions:
    """For which shell."""

    _argument_group_name = "completion"

    shell: Literal["bash", "zsh", "fish"] = need("The shell.")


OPTIONS = (CompletionOptions,)


def run(options: CompletionOptions) -> None:
    """Print the script of a shell."""
    import shtab

    print(shtab.complete(_all_commands(), options.shell))


def _all_commands() -> argparse.ArgumentParser:
    """One parser that knows every word of every command."""
    parser = argparse.ArgumentParser(prog="repair-hf")
    commands = parser.add_subparsers()
    for word, (module_name, _) in COMMANDS.items():
        module = importlib.import_module(module_name)
        command = commands.add_parser(word, help=_what_it_does(module), conflict_handler="resolve")
        if "ACTIONS" not in vars(module):
            _add_flags(command, module.OPTIONS)
            continue
        actions = command.add_subparsers()
        for name, (types, act) in module.ACTIONS.items():
            _add_flags(actions.add_parser(name, help=act.__doc__.strip().splitlines()[0]), types)
    return parser


def _what_it_does(module: ModuleType) -> str:
    return module.__doc__.splitlines()[0].partition(": ")[2].replace("%", "%%")


def _add_flags(parser: argparse.ArgumentParser, types: Sequence[type]) -> None:
    import shtab

    for each in types:
        add_arguments(parser, each)
    needed = next((field.name for each in types for field in fields(each) if is_needed(field)), None)
    if needed is not None:
        parser.add_argument(
            f"first_{needed}", nargs="?"
        )  # the value of the first needed option may stand without its flag
    parser.add_argument("--config")
    parser.add_argument(
        "--debug", action="store_true"
    )  # in place of the one of TrainingArguments, as on the command line
    for action in parser._actions:
        action.option_strings = [flag for flag in action.option_strings if "_" not in flag]
        if action.nargs != 0 and action.choices is None:
            action.complete = shtab.FILE
