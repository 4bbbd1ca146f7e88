"""Whose turn it is, with another process that holds a lock."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest

from repair_hf.study.work_sharing import WorkSharing, logger

HOLDER = """
import sys
from pathlib import Path
from repair_hf.study.work_sharing import WorkSharing
with WorkSharing(Path(sys.argv[1])).lock("b"):
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


def parts(
    sharing: WorkSharing, made: list[str], then: Callable[[], object] = lambda: None
) -> dict[str, Callable[[], str]]:
    """Parts a, b and c, which note when they are made; c then does something else."""

    def make(name: str) -> str:
        with sharing.lock(name):
            made.append(name)
        if name == "c":
            then()
        return name.upper()

    return {name: partial(make, name) for name in "abc"}


def test_what_another_process_is_at_comes_last(tmp_path, holder):
    made: list[str] = []
    sharing = WorkSharing(tmp_path)
    found = sharing.run_all(parts(sharing, made, then=lambda: release(holder)))
    assert made == ["a", "c", "b"]
    assert list(found.items()) == [("a", "A"), ("b", "B"), ("c", "C")]


def test_of_a_part_that_another_process_is_at_the_rest_is_made_meanwhile(tmp_path, holder):
    """b is one part of `first`: its other parts are made, then `second`, and b at last."""
    made: list[str] = []
    sharing = WorkSharing(tmp_path)
    inner = {name: cache(make) for name, make in parts(sharing, made).items()}  # it remembers what it has done

    def second() -> str:
        made.append("second")
        release(holder)
        return "done"

    found = sharing.run_all({"first": partial(sharing.run_all, inner), "second": second})
    assert made == ["a", "c", "second", "b"]
    assert found == {"first": {"a": "A", "b": "B", "c": "C"}, "second": "done"}
    assert sharing.lock("d").timeout == -1


def test_waits_when_nothing_else_is_left(tmp_path, holder, monkeypatch):
    made: list[str] = []
    said: list[str] = []
    sharing = WorkSharing(tmp_path)
    # sets the other process free when this one says that it waits
    monkeypatch.setattr(logger, "info", lambda text, *args: said.append(text % args) or release(holder))
    assert sharing.run_all({"b": parts(sharing, made)["b"]}) == {"b": "B"}
    assert made == ["b"] and said == ["Other processes are working on everything that is left; waiting for b."]


def test_an_error_is_no_lock(tmp_path):
    sharing = WorkSharing(tmp_path)

    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        sharing.run_all({"a": fails})
    assert sharing.lock("a").timeout == -1  # it waits again
