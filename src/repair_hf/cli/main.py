"""The command line: `repair-hf <command> [--config FILE.yaml] [flags]`.

In:  the words that a user typed.
Out: one command run, and an exit code: 0 done, 1 stopped by something outside (the same command goes on from there),
     2 a mistake of the user, told in one line, 130 interrupted, 141 nobody reads on. `--debug` lets the traceback through.

A command is a module with `OPTIONS` (dataclasses), `run(*options)` and `EPILOG` (an example), or with
`ACTIONS: dict[str, (OPTIONS, run)]` where a word chooses among several. It is imported when it is asked for, and not before. Where
`OPTIONS` are long in loading and in reading, `BRIEF` are those that `--help` tells, and `--help-all` tells all.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "repair_hf.cli.demo",
        "Repair a small retriever end to end in a toy world: no key, GPU or download.",
    ),
    "world": ("repair_hf.cli.world", "Make the toy world, train its base retriever, serve its oracle."),
    "mine": ("repair_hf.cli.mine", "Find the retriever's false positives, in both directions."),
    "synthesize": ("repair_hf.cli.synthesize", "Audit the failures and edit what is wrong in them: records."),
    "train": ("repair_hf.cli.train", "Fine-tune the retriever on pairs and records."),
    "evaluate": ("repair_hf.cli.evaluate", "Measure R@1/5/10 and MRR in both directions."),
    "run": ("repair_hf.cli.run", "Run all stages of a recipe folder, round after round."),
    "study": ("repair_hf.cli.study", "Compare repair with other methods: one table, one command."),
    "show": (
        "repair_hf.cli.show",
        "Draw records side by side, as a page or a picture: query, ground truth, false positive, edit.",
    ),
    "analyze": ("repair_hf.cli.analyze", "Report on a run: what was mined, audited, edited, paid, repaired."),
    "figure": ("repair_hf.cli.figure", "Draw a record, a 3x3 grid, or margins, for a paper or a card."),
    "annotate": ("repair_hf.cli.annotate", "Let people judge failures or edits on a page, by keyboard."),
    "agreement": ("repair_hf.cli.agreement", "Count what people said: of the audit, the edits, and each other."),
    "export": ("repair_hf.cli.export", "Write a retriever in the format of open_clip, and so of CLIP_benchmark."),
    "push": ("repair_hf.cli.push", "Send records or a model to the Hugging Face Hub, with a card."),
    "completion": ("repair_hf.cli.completion", "Print what lets a shell complete these words at the Tab key."),
    "env": ("repair_hf.cli.env", "Print versions and devices, for a bug report."),
}
# What the system may say of a file or folder that a user named; other trouble of its keeps its traceback.
_DENIED = "may not be read or written by you; give another path, or take the right to it"
_FULL = "does not fit on its disk, which is full; make room, and the same command goes on from here"
TROUBLE: dict[int, str] = {
    errno.ENOENT: "does not exist",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: "lies on a disk that is read-only; give another path",
    errno.ENOTDIR: "lies below a file as if that were a folder; give another path",
    errno.EISDIR: "is a folder, and a file is wanted; give the path of a file",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; give back the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        from repair_hf import __version__

        print(f"repair-hf {__version__}")
        return 0
    return _run_guarded(words, debug)


def _run_guarded(words: list[str], debug: bool) -> int:
    from repair_hf.runtime.options import UserError
    from repair_hf.runtime.run_folder import RunStopped

    _log_ours()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # read when `datasets` is imported
    prog = f"repair-hf {words[0]}" if words[0] in COMMANDS else "repair-hf"
    try:
        _run(words)
        sys.stdout.flush()
    except (UserError, OSError, RunStopped, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and not _is_read():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it leaves
            return 141  # as a shell says it of a program whose output nobody reads any more
        if debug or not _is_foreseen(error):
            raise
        print(f"{prog}: {_one_line(error)}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            return 130
        return 1 if isinstance(error, RunStopped) or _told(error) == _FULL else 2
    return 0


def _is_read() -> bool:
    """Whether somebody reads what is printed: `| head` leaves when it has enough. Other pipes may break, too."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return False
    return True


def _is_foreseen(error: BaseException) -> bool:
    return not isinstance(error, OSError) or isinstance(error, FileNotFoundError) or _told(error) is not None


def _told(error: BaseException) -> str | None:
    return TROUBLE.get(error.errno) if isinstance(error, OSError) else None


def _log_ours() -> None:
    """To stderr. Libraries tell their own: a handler at the root would print what they say twice."""
    ours = logging.getLogger("repair_hf")
    ours.setLevel(logging.INFO)
    if not ours.handlers:
        ours.addHandler(logging.StreamHandler())
        ours.handlers[0].setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _run(words: list[str]) -> None:
    from repair_hf.runtime.options import parse

    name, rest = words[0], words[1:]
    module_name, description = COMMANDS[_known(name, COMMANDS, "command")]
    module = importlib.import_module(module_name)
    prog, options, run = f"repair-hf {name}", (), None
    if "ACTIONS" in vars(module):
        if not rest or rest[0] in ("-h", "--help"):
            print(_actions(prog, description, module))
            return
        options, run = module.ACTIONS[_known(rest[0], module.ACTIONS, f"word for `{prog}`")]
        prog, rest, description = f"{prog} {rest[0]}", rest[1:], _first_line(run)
    else:
        is_brief = rest[:1] in (["-h"], ["--help"]) and "BRIEF" in vars(module)
        options, run = (module.BRIEF if is_brief else module.OPTIONS), module.run
    filled = parse(
        options, ["--help"] if rest == ["--help-all"] else rest, prog, description=description, epilog=module.EPILOG
    )
    _hush_transformers()
    run(*filled)


def _hush_transformers() -> None:
    """No bars for loading and saving models, which takes a moment; those of downloads, which take long, stay."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


def _known(word: str, words: Iterable[str], what: str) -> str:
    from repair_hf.runtime.options import UserError

    if word in words:
        return word
    near = difflib.get_close_matches(word, words, n=1)
    meant = f"Did you mean `{near[0]}`? " if near else ""
    raise UserError(f"`{word}` is not a {what}. {meant}Known: {', '.join(words)}.")


def _one_line(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; the same command goes on with what is on disk."
    if isinstance(error, OSError) and error.filename is not None:
        return f"error: {error.filename} {_told(error)}."
    return f"error: {' '.join(str(error).split())}"


def _overview() -> str:
    rows = "\n".join(f"  {name:<12}{help}" for name, (_, help) in COMMANDS.items())
    return (
        "usage: repair-hf <command> [--config FILE.yaml] [options]\n\n"
        "Repair an image-text retriever: mine its near misses, edit what is wrong in them, train on the result.\n\n"
        f"commands:\n{rows}\n\n"
        "`repair-hf <command> --help` tells a command's options. Start with `repair-hf demo`."
    )


def _actions(prog: str, description: str, module: ModuleType) -> str:
    rows = "\n".join(f"  {name:<12}{_first_line(run)}" for name, (_, run) in module.ACTIONS.items())
    return f"usage: {prog} <action> [options]\n\n{description}\n\nactions:\n{rows}\n\n{module.EPILOG}"


def _first_line(run) -> str:
    return run.__doc__.strip().splitlines()[0]
