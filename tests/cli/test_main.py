import ast
import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import fields, make_dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import TrainingArguments

import repair_hf
from repair_hf.cli import main as cli
from repair_hf.cli.subcommands import load_command, suggest, unused
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import UserError, need, opt
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.training.options import Hyperparameters


def test_the_overview_names_every_command(capsys):
    for words in ([], ["--help"]):
        assert cli.main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"\n  {name} " in shown for name in cli.COMMANDS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"repair-hf {repair_hf.__version__}\n"


@pytest.fixture
def command(monkeypatch):
    """Add a command named `cook` whose `run` a test gives."""

    def add(run) -> None:
        options = make_dataclass("Options", [("dish", str, need("What.")), ("salt", int, opt(1, "How much."))])
        module = SimpleNamespace(OPTIONS=(options,), EPILOG="", run=run)
        monkeypatch.setitem(cli.COMMANDS, "cook", "Cook.")
        monkeypatch.setitem(sys.modules, "repair_hf.cli.cook", module)

    return add


def test_a_command_of_several_actions_lists_them(capsys):
    for words in (["world"], ["world", "--help"]):
        assert cli.main(words) == 0
        assert "  build       Draw the world's pictures" in capsys.readouterr().out
    assert cli.main(["world", "built"]) == 2
    assert "`built` is not a word for `repair-hf world`. Did you mean `build`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, code, line",
    [
        (UserError("two\n  lines."), 2, "repair-hf cook: error: two lines."),
        (FileNotFoundError("no soup"), 2, "repair-hf cook: error: no soup"),
        (
            PermissionError(13, "Permission denied", "pot"),
            2,
            "repair-hf cook: error: pot: Permission denied. Give another path, or change this one.",
        ),
        (
            OSError(28, "No space left on device"),
            1,
            "repair-hf cook: error: nothing more can be written ([Errno 28] No space left on device). Free some "
            "space; the same command resumes from here.",
        ),
        (RunStopped("provider is down"), 1, "repair-hf cook: error: provider is down"),
        (KeyboardInterrupt(), 130, "repair-hf cook: interrupted; the same command resumes from what is on disk."),
    ],
)
def test_a_foreseen_error_is_one_line(command, capsys, error, code, line):
    def run(options):
        raise error

    command(run)
    assert cli.main(["cook", "--dish", "soup"]) == code
    assert capsys.readouterr().err == line + "\n"
    with pytest.raises(type(error)):
        cli.main(["cook", "--dish", "soup", "--debug"])


SIGNALS = [("SIGTERM", 143, "terminated"), ("SIGHUP", 129, "the terminal was closed")]


@pytest.mark.parametrize(("name", "code", "word"), SIGNALS)
@pytest.mark.parametrize("how", ["waiting", "asynchronous", "wrapped", "ctrl-c is ignored"])
def test_a_signal_ends_like_ctrl_c(command, request, capsys, name, code, word, how):
    number, closed = getattr(signal, name), []
    ctrl_c = signal.SIG_IGN if how == "ctrl-c is ignored" else signal.default_int_handler
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, ctrl_c)))
    request.addfinalizer(partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))

    async def wait():
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(60)
            closed.append("late")
        finally:
            closed.append(await asyncio.sleep(0, "in order"))  # the loop still runs

    def run(options):
        if how in ("asynchronous", "ctrl-c is ignored"):
            asyncio.run(wait())
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
            closed.append("late")
        except KeyboardInterrupt as error:
            closed.append("in order")
            if how == "wrapped":
                raise RuntimeError("a worker is gone") from error
            raise

    command(run)
    assert cli.main(["cook", "--dish", "soup"]) == code
    assert closed == ["in order"]
    assert capsys.readouterr().err == f"repair-hf cook: {word}; the same command resumes from what is on disk.\n"
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored(command, request):
    request.addfinalizer(partial(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN)))
    command(lambda options: os.kill(os.getpid(), signal.SIGHUP))
    assert cli.main(["cook", "--dish", "soup"]) == 0


ALL = "--pairs {pairs} --split all"


@pytest.mark.parametrize(
    "words",
    [
        f"mine {ALL} --model {{clip}}",
        f"train {ALL} --model {{clip}} --use-cpu --per-device-train-batch-size 4 --max-steps 1",
        f"evaluate {{clip}} {ALL}",
        "export blend world/base --base world/base --weight 0.5",
        "export triplets --records {run} --pairs {pairs}",
        "world build",
        "demo",
        "run toy",
        "analyze {run}",
    ],
)
def test_two_runs_do_not_write_into_one_folder(
    words, pairs_folder, clip_folder, illustrated_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    folder, run = tmp_path / "out", illustrated_folder
    given = [*words.format(pairs=pairs_folder, clip=clip_folder, run=run).split(), "--output", str(folder)]
    if words == "run toy":  # writes where its recipes do
        folder, given = Path("runs/toy"), words.split()
    with one_writer(folder):
        assert cli.main(given) == 2
    assert f"{folder} is in use by another run" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("a fault of ours"), OSError(5, "a fault of ours")])
def test_an_unforeseen_error_keeps_its_traceback(command, error):
    def run(options):
        raise error

    command(run)
    with pytest.raises(type(error), match="a fault of ours"):
        cli.main(["cook", "--dish", "soup"])


def test_a_reader_who_leaves_ends_the_command_quietly(command, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        command(lambda options: sys.stdout.write(options.dish))
        assert cli.main(["cook", "--dish", "soup"]) == 141
    assert capsys.readouterr().err == ""


MINUS = """
import sys
from repair_hf.cli import main as cli
cli.COMMANDS['cook'] = 'At \u22121.5 degrees.'
sys.argv = ['repair-hf']
sys.exit(cli.main())
"""


def test_a_stream_of_another_encoding_prints_every_sign():
    env = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run([sys.executable, "-c", MINUS], capture_output=True, env=env)
    assert "At −1.5 degrees.\n" in done.stdout.decode() and done.returncode == 0, done.stderr


EVERY_HELP = """
import contextlib, sys
import repair_hf
from repair_hf.cli import main as cli
dir(repair_hf)
for name in cli.COMMANDS:
    with contextlib.suppress(SystemExit):
        assert cli.main([name, '--help']) == 0
heavy = {'torch', 'transformers', 'litellm', 'diffusers', 'datasets', 'matplotlib'}
sys.exit(', '.join(heavy & set(sys.modules)) or 0)
"""


def test_what_is_not_used_is_not_loaded():
    done = subprocess.run([sys.executable, "-c", EVERY_HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FLAG = re.compile(r"^  (--\S+)", re.MULTILINE)
TRANSFORMERS = {each.name for each in fields(TrainingArguments)} - {each.name for each in fields(Hyperparameters)}


def helped(capsys, *words: str) -> str:
    """Return what a help prints."""
    with contextlib.suppress(SystemExit):
        cli.main(list(words))
    return capsys.readouterr().out


def options() -> dict[tuple[str, ...], tuple[type, ...]]:
    """Return the dataclasses of each command and action, by its words."""
    modules = {name: load_command(name) for name in cli.COMMANDS}
    acting = {name: vars(module)["ACTIONS"] for name, module in modules.items() if "ACTIONS" in vars(module)}
    found = {(name, action): types for name, actions in acting.items() for action, (types, _) in actions.items()}
    return found | {(name,): module.OPTIONS for name, module in modules.items() if name not in acting}


@pytest.mark.parametrize("words, types", options().items(), ids=lambda value: " ".join(map(str, value))[:20])
def test_a_help_is_short_and_so_is_the_line_of_each_option(words, types, capsys):
    brief, everything = (helped(capsys, *words, word) for word in ("--help", "--help-all"))
    assert all(
        text.startswith(f"usage: repair-hf {' '.join(words)} ") and "example" in text for text in (brief, everything)
    )
    assert not re.search(r"^\w*Options:$", everything, re.MULTILINE)  # a heading is a word, not the name of a class
    shown, every = (FLAG.findall(text.partition("every command:")[0]) for text in (brief, everything))
    assert len(shown) <= 22 and ("--help-all" in brief) == (len(shown) < len(every))
    for each in (each for owner in types for each in fields(owner) if each.init and each.name not in TRANSFORMERS):
        assert 1 <= len(each.metadata["help"].split()) <= 20, each.name


def test_python_dash_m_is_the_same_command():
    done = subprocess.run([sys.executable, "-m", "repair_hf", "mien"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    line = "repair-hf: error: `mien` is not a command. Did you mean `mine` for `mien`? Known: "
    assert done.stderr.startswith(line) and done.stderr.count("\n") == 1


def test_the_suggested_command_is_quoted_for_a_shell(capsys):
    suggest("train", "--pairs", "my photos", "--records", "...")
    assert capsys.readouterr().out == "next: repair-hf train --pairs 'my photos' --records ...\n"


def test_a_suggested_output_does_not_exist_yet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, suggested in {"train-4": "train", "train": "train-2", "train-2": "train-3"}.items():
        Path("runs", name).mkdir(parents=True)
        assert unused("runs/train") == f"runs/{suggested}"


def test_public_names_are_there_and_type_checkers_see_where():
    assert all(getattr(repair_hf, name).__name__ == name for name in repair_hf._HOMES)
    block = next(node for node in ast.parse(Path(repair_hf.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {(each.name, node.module) for node in block.body for each in node.names if each.asname == each.name}
    assert seen == set(repair_hf._HOMES.items())
    assert (Path(repair_hf.__file__).parent / "py.typed").exists()
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    strict = project["tool"]["mypy"]["overrides"][0]["module"]
    assert set(repair_hf._HOMES.values()) <= set(strict)


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'Pears'; it offers"):
        repair_hf.Pears  # noqa: B018
