"""Start a command in processes of its own, and kill them all at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

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
