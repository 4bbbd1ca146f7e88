"""Whose turn it is, with another process that holds a lock."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial

import filelock
import pytest

from repair_hf.study.turns import Turns

HOLDER = """
import sys
from pathlib import Path
from repair_hf.study.turns import Turns
with Turns(Path(sys.argv[1])).alone("b"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path) -> Iterator[subprocess.Popen]:
    """Another process that is at part b until it is sent a line."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def release(process: subprocess.Popen) -> None:
    process.stdin.write("\n")
    process.stdin.close()
    process.wait(timeout=600)


def parts(turns: Turns, made: list[str], then: Callable[[], object] = lambda: None) -> dict[str, Callable[[], str]]:
    """Parts a, b and c, which note when they are made; c then does something else."""

    def make(name: str) -> str:
        with turns.alone(name):
            made.append(name)
        if name == "c":
            then()
        return name.upper()

    return {name: partial(make, name) for name in "abc"}


def test_what_another_process_is_at_comes_last(tmp_path, holder):
    made: list[str] = []
    turns = Turns(tmp_path)
    found = turns.all_of(parts(turns, made, then=lambda: release(holder)))
    assert made == ["a", "c", "b"]
    assert list(found.items()) == [("a", "A"), ("b", "B"), ("c", "C")]


def test_of_a_part_that_another_process_is_at_the_rest_is_made_meanwhile(tmp_path, holder):
    """b is one part of `first`: its other parts are made, then `second`, and b at last."""
    made: list[str] = []
    turns = Turns(tmp_path)
    inner = {name: cache(make) for name, make in parts(turns, made).items()}  # it remembers what it has done

    def second() -> str:
        made.append("second")
        release(holder)
        return "done"

    found = turns.all_of({"first": partial(turns.all_of, inner), "second": second})
    assert made == ["a", "c", "second", "b"]
    assert found == {"first": {"a": "A", "b": "B", "c": "C"}, "second": "done"}
    assert turns.alone("d").timeout == -1


class Releasing(logging.Handler):
    """Sets another process free when this one says that it waits."""

    def __init__(self, process: subprocess.Popen) -> None:
        super().__init__()
        self.process, self.said = process, []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        release(self.process)


def test_waits_when_nothing_else_is_left(tmp_path, holder, monkeypatch):
    made: list[str] = []
    turns, told = Turns(tmp_path), Releasing(holder)
    logger = logging.getLogger("repair_hf.study.turns")
    monkeypatch.setattr(logger, "handlers", [told])
    monkeypatch.setattr(logger, "level", logging.INFO)
    assert turns.all_of({"b": parts(turns, made)["b"]}) == {"b": "B"}
    assert made == ["b"] and told.said == ["Other processes are at all that is left; waiting for b."]


def test_outside_all_of_everyone_waits(tmp_path, holder):
    turns = Turns(tmp_path)
    with pytest.raises(filelock.Timeout), filelock.FileLock(tmp_path / "b.lock", timeout=0):
        pass  # it is held
    release(holder)
    with turns.alone("b"):
        assert turns.alone("a").timeout == -1


def test_an_error_is_no_lock(tmp_path):
    turns = Turns(tmp_path)

    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        turns.all_of({"a": fails})
    assert turns.alone("a").timeout == -1  # it waits again
