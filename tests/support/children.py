"""Processes of their own, forked from one that has imported what they need: for slow tests LiteLLM and torch, too.

A new interpreter needs ten seconds and more of processor time for these imports.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

TWO_ON_THE_CPU = Path(__file__).parents[2] / "recipes" / "accelerate" / "cpu-2.yaml"
PRELOADED = ["pytest", "repair_hf.cli.main", "repair_hf.llm.ledger"]
# Only slow tests ask a provider, or run whole commands.
FOR_SLOW_TESTS = ["repair_hf.llm.asker", "litellm", "repair_hf.training.finetune", "repair_hf.synthesis.synthesize"]


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


def launch(function: Callable, *arguments: object, exit_code: int = 0) -> str:
    """Call a function in two processes, in the environment that accelerate and torchrun give them.

    Check the exit code of both, and return what they have written to their outputs.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--config_file", str(TWO_ON_THE_CPU), "train.py"]
    shared = prepare_multi_gpu_env(_validate_launch_command(launch_command_parser().parse_args(words))[0])
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [shared | {"RANK": rank, "LOCAL_RANK": rank, "TQDM_DISABLE": "1"} for rank in "01"]
    both = [Child(function, *arguments, env=env) for env in ranks]
    codes = [child.wait() for child in both]
    assert codes == [exit_code] * 2, "\n".join(child.said()[-4000:] for child in both)
    return "".join(child.said() for child in both)


def _run(function: Callable, arguments: tuple, env: dict[str, str], said: str) -> None:
    os.setsid()
    os.environ.clear()
    os.environ |= env
    output = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1), os.dup2(output, 2)
    # as in a command: with `forkserver`, the lock of tqdm's bars is a semaphore that a killed process leaks
    multiprocessing.set_start_method("fork", force=True)
    code = function(*arguments)
    atexit._run_exitfuncs()  # a process of multiprocessing ends without them
    raise SystemExit(code)
