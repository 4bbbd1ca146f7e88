"""`repair-hf completion`: print the script that completes commands, flags, choices and file names in a shell.

The script is complete by itself: pressing Tab starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from repair_hf.cli.main import COMMANDS, first_line
from repair_hf.cli.subcommands import load_command
from repair_hf.runtime.flags import add_arguments
from repair_hf.runtime.options import is_needed, need

EPILOG = """examples:
  repair-hf completion bash > ~/.local/share/bash-completion/completions/repair-hf
  repair-hf completion zsh > "${fpath[1]}/_repair-hf"
  repair-hf completion fish > ~/.config/fish/completions/repair-hf.fish

Open a new shell afterwards. Write the script again after an update of repair_hf."""


@dataclass
class CompletionOptions:
    shell: Literal["bash", "zsh", "fish"] = need("The shell.")


OPTIONS = (CompletionOptions,)


def run(options: CompletionOptions) -> None:
    import shtab

    print(shtab.complete(_all_commands(), options.shell))


def _all_commands() -> argparse.ArgumentParser:
    """Return one parser with all commands and their flags."""
    parser = argparse.ArgumentParser(prog="repair-hf")
    commands = parser.add_subparsers()
    for name, description in COMMANDS.items():
        module = load_command(name)
        command = commands.add_parser(name, help=description, conflict_handler="resolve")
        if "ACTIONS" not in vars(module):
            _add_flags(command, module.OPTIONS)
            continue
        actions = command.add_subparsers()
        for action, (types, run) in module.ACTIONS.items():
            _add_flags(actions.add_parser(action, help=first_line(run)), types)
    return parser


def _add_flags(parser: argparse.ArgumentParser, types: Sequence[type]) -> None:
    import shtab

    added: list[Any] = [action for each in types for action in add_arguments(parser, each)]
    needed = next((field.name for each in types for field in fields(each) if is_needed(field)), None)
    if needed is not None:  # its value may stand first, without the flag
        added.append(parser.add_argument(f"first_{needed}", nargs="?"))
    added.append(parser.add_argument("--config"))
    parser.add_argument("--debug", action="store_true")  # as on the command line, not that of TrainingArguments
    for action in added:
        action.option_strings = [flag for flag in action.option_strings if "_" not in flag]
        if action.nargs != 0 and action.choices is None:
            action.complete = shtab.FILE  # the attribute by which shtab completes file names
