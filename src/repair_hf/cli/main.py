"""The command line: `repair-hf <command> [--config FILE.yaml] [flags]`.

A command is a module of this folder with `OPTIONS` (dataclasses), `run(*options)` and `EPILOG` (examples), or with
`ACTIONS: dict[str, (OPTIONS, run)]` where a second word selects one of several. It is imported only when it is used. A
command of many options shows the main ones by `--help`, and all by `--help-all`.

Exit codes: 0 done; 1 stopped from outside, and the same command resumes; 2 a mistake of the user; 130, 143 or 129
ended by Ctrl-C, SIGTERM or SIGHUP; 141 the reader of the output has left.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from repair_hf import __version__
from repair_hf.cli.subcommands import load_command
from repair_hf.runtime.command_line import as_flag, parse
from repair_hf.runtime.options import UserError, did_you_mean, fields_of
from repair_hf.runtime.redaction import printable
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.runtime.signals import like_ctrl_c

COMMANDS = {
    "demo": "Repair a small retriever end to end in a toy world: no key, GPU or download.",
    "world": "Draw the toy world.",
    "mine": "Find the retriever's false positives in both directions.",
    "synthesize": "Check the failures and edit their false positives into records.",
    "contrast": "Make a contrast set: pictures with a true caption, and one with a changed detail.",
    "train": "Fine-tune the retriever on pairs and records.",
    "evaluate": "Measure recall@K and MRR in both directions, and compare models.",
    "run": "Run all stages of a recipe folder, for one or more rounds.",
    "study": "Compare repair with other methods in one table.",
    "show": "Draw records as a page: query, ground truth, false positive, edit.",
    "analyze": "Write a report on a run: failures, edits, cost, repairs.",
    "annotate": "Let people judge failures or edits on a web page.",
    "export": "Write a blend of two models, or records as triplets for sentence-transformers.",
    "push": "Upload records or a model to the Hugging Face Hub, with a card.",
}
HELP = ("-h", "--help", "--help-all")
GARBAGE = 20_000  # new objects that make a collection due, not 700: each looks through the libraries' half a million
# What a full disk, a quota or a limit on the size of files raises in Python, SQLite, safetensors and torch.
_FULL = re.compile(
    r"No space left on device|disk is full|Disk quota|File too large|disk I/O error|PytorchStreamWriter|"
    r"inline_container\.cc.*unexpected pos"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.set_threshold(GARBAGE)
        for stream in (sys.stdout, sys.stderr):  # as from Python 3.15 on; others cannot print a minus sign
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        if not words or words[0] in (*HELP, "--version"):
            print(f"repair-hf {__version__}" if words[:1] == ["--version"] else _overview(), flush=True)
            return 0
        return _run_guarded(words, debug)
    except BrokenPipeError:  # the reader has left, such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it exits
        return 141  # a shell's code for a program killed by SIGPIPE


def _run_guarded(words: list[str], debug: bool) -> int:
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # read when `datasets` is imported
    prog = f"repair-hf {words[0]}" if words[0] in COMMANDS else "repair-hf"
    try:
        with _logging_ours(), like_ctrl_c():
            _run(words)
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        is_full = _FULL.search(str(error)) is not None
        if debug or not (_is_foreseen(error) or is_full):
            raise
        print(f"{prog}: {_one_line(error, prog, is_full=is_full)}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            return 128 + getattr(error, "number", signal.SIGINT)
        return 1 if is_full or isinstance(error, RunStopped) else 2
    return 0


def _is_foreseen(error: BaseException) -> bool:
    """Return whether one line says enough: not of a fault of ours, nor of one of the system that names no file."""
    names_file = isinstance(error, OSError) and error.filename is not None
    return names_file or isinstance(error, UserError | RunStopped | FileNotFoundError | KeyboardInterrupt)


def _one_line(error: BaseException, prog: str, *, is_full: bool) -> str:
    if isinstance(error, KeyboardInterrupt):
        start = "the last checkpoint, if --save-strategy wrote one" if prog == "repair-hf train" else "what is on disk"
        return f"{str(error) or 'interrupted'}; the same command resumes from {start}."
    text = printable(" ".join(str(error).split()))
    if is_full:
        return f"error: nothing more can be written ({text}). Free some space; the same command resumes from here."
    if isinstance(error, OSError) and error.filename is not None:
        return f"error: {printable(str(error.filename))}: {error.strerror}. Give another path, or change this one."
    return f"error: {text}"


@contextmanager
def _logging_ours() -> Iterator[None]:
    """Log to stderr what this package says; a handler at the root would print the libraries' messages twice."""
    logger, handler = logging.getLogger("repair_hf"), logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Formatter(logging.Formatter):
    """A message may quote text from outside."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def _run(words: list[str]) -> None:
    name, rest = words[0], words[1:]
    description = COMMANDS[_known(name, COMMANDS, "command")]
    module, prog = load_command(name), f"repair-hf {name}"
    help = next((word for word in rest if word in HELP), None)
    is_brief = help is not None and help != "--help-all"
    if "ACTIONS" in vars(module):
        if not rest or rest[0] in HELP:
            print(_actions(prog, description, module))
            return
        options, run = module.ACTIONS[_known(rest[0], module.ACTIONS, f"word for `{prog}`")]
        prog, rest, description = f"{prog} {rest[0]}", rest[1:], first_line(run)
    else:
        options, run = (is_brief and vars(module).get("OWN_OPTIONS")) or module.OPTIONS, module.run
    argv = ["--help"] if help else rest
    filled = parse(options, argv, prog, description=description, epilog=module.EPILOG, is_brief=is_brief)
    from transformers.utils import logging as transformers_logging  # here, because `--help` ends in `parse`

    transformers_logging.disable_progress_bar()  # for loading and saving models; downloads keep theirs
    try:
        run(*filled)
    except UserError as error:  # what Python calls `max_images` is a flag here
        names = {name for kind in options for name in fields_of(kind) if "_" in name}
        message = re.sub(
            r"`(\w+)`", lambda match: f"`{as_flag(match[1])}`" if match[1] in names else match[0], str(error)
        )
        raise UserError(message) from error


def _known(word: str, words: Iterable[str], what: str) -> str:
    if word in words:
        return word
    raise UserError(f"`{word}` is not a {what}. {did_you_mean([word], words)}Known: {', '.join(words)}.")


def _overview() -> str:
    rows = "\n".join(f"  {name:<12}{help}" for name, help in COMMANDS.items())
    return (
        "usage: repair-hf <command> [--config FILE.yaml] [options]\n\n"
        "Repair an image-text retriever: mine its near-miss errors, have them edited, and train on the result.\n\n"
        f"commands:\n{rows}\n\n"
        "`repair-hf <command> --help` shows a command's options. Start with `repair-hf demo`."
    )


def _actions(prog: str, description: str, module: ModuleType) -> str:
    rows = "\n".join(f"  {name:<12}{first_line(run)}" for name, (_, run) in module.ACTIONS.items())
    return f"usage: {prog} <action> [options]\n\n{description}\n\nactions:\n{rows}\n\n{module.EPILOG}"


def first_line(run: Any) -> str:
    """Return the first line of a function's docstring, which is the help of an action."""
    return run.__doc__.strip().splitlines()[0]
