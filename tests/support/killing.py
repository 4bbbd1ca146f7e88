"""Kill processes at a moment that does not depend on the machine's speed: the server that they ask waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from children import Child
from ledgers import answers

from repair_hf.cli.main import main
from repair_hf.runtime.options import UserError

LAUNCH = """
import sys
from repair_hf.cli.main import main

if __name__ == "__main__":  # the editor has a process of its own, which reads this file too
    sys.exit(main(sys.argv[1:]))
"""


class Held:
    """An answer function of a server that may hold its answers back.

    Args:
        answer: Makes the answers, also those that are held.

    Attributes:
        came: How many requests have come.
    """

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer, self.came = answer, 0
        self._let_through, self._changed = inf, threading.Condition()

    def __call__(self, request: Any) -> Any:
        answer = self.answer(request)
        with self._changed:
            self.came += 1
            number = self.came
            self._changed.notify_all()
            self._changed.wait_for(lambda: number <= self._let_through, 600)
        return answer

    def hold_after(self, answers: float) -> None:
        """Hold all answers back but so many more; `inf` lets all through."""
        with self._changed:
            self._let_through = self.came + answers
            self._changed.notify_all()

    def is_holding(self, process: subprocess.Popen | Child | None = None) -> bool:
        """Wait until an answer is held, or the process (this one, if None) has ended; return whether one is held."""
        with self._changed:
            while not self._changed.wait_for(lambda: self.came > self._let_through, 0.05):
                if process is not None and process.poll() is not None:
                    return False
        return True

    def kill(self, start: Callable[[], subprocess.Popen | Child], answers: int) -> bool:
        """Start a process, and kill it when it has so many answers; return False if it has ended before that."""
        self.hold_after(answers)
        process = start()
        is_alive = self.is_holding(process)
        if is_alive:
            kill_family(process.pid)
        process.communicate()
        self.hold_after(inf)
        return is_alive


def start(words: list[str], processes: int, folder: Path) -> subprocess.Popen | Child:
    """Start `repair-hf` with these words in a session of its own; several processes by torchrun."""
    if processes == 1:
        return Child(main, words)
    (folder / "launch.py").write_text(LAUNCH)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # as in this process: sums in another order would round differently
    return subprocess.Popen(
        [sys.executable, *torchrun, str(folder / "launch.py"), *words],
        env=alone, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def answered(folder: Path) -> int:
    """Return how many answers a run has so far; its ledger may be about to be made."""
    try:
        return answers(folder)
    except UserError:
        return 0


def kill_family(leader: int) -> None:
    """Kill the processes of a session at once; those that `torchrun` starts lead sessions of their own."""
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(leader)], capture_output=True, text=True
    ).stdout.split()
    for pid in [leader, *map(int, children)]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)
