"""Processes of their own, forked from one that has imported torch, transformers and LiteLLM.

A new interpreter needs ten seconds and more of processor time for these imports.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

PRELOADED = ["repair_hf.training.finetune", "repair_hf.synthesis.synthesize", "repair_hf.cli.main", "litellm"]


@cache
def context() -> multiprocessing.context.BaseContext:
    """Start the process that children are forked from: one for all tests of this process."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # read once; sums in another order would round differently
        multiprocessing.forkserver.ensure_running()
    return made


class Child:
    """Calls a function in a process of its own, which leads a session; what it returns is the exit code.

    A part of `subprocess.Popen`'s methods.

    Args:
        function: Of a module; its arguments are pickled.
        env: Environment in place of this process's.
    """

    def __init__(self, function: Callable, *arguments: object, env: Mapping[str, str] = os.environ) -> None:
        self._said = Path(tempfile.mkstemp(prefix="child-")[1])
        given = (function, arguments, dict(env), str(self._said))
        self._process = context().Process(target=_run, args=given)
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Return the exit code when the process has ended; a negative one is a signal."""
        self._process.join(1800)
        return self._process.exitcode

    def communicate(self) -> tuple[str, str]:
        """Wait, and return nothing and what was written to both outputs."""
        self.wait()
        return "", self.said()

    def said(self) -> str:
        """Return what the process has written to its outputs."""
        return self._said.read_text()


def _run(function: Callable, arguments: tuple, env: dict[str, str], said: str) -> None:
    os.setsid()
    os.environ.clear()
    os.environ |= env
    output = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1), os.dup2(output, 2)
    code = function(*arguments)
    atexit._run_exitfuncs()  # a process of multiprocessing ends without them
    raise SystemExit(code)
