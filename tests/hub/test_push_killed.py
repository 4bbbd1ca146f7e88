"""Pushes that are killed at any stage are completed by the next one; what they packed goes with SIGTERM and SIGHUP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from signal import SIGHUP, SIGKILL, SIGTERM, Signals

import pytest
from hub_server import Hub

hears_all = partial(signal.signal, SIGHUP, signal.SIG_DFL)  # also under `nohup`
TOKEN = "hf_goodgoodgoodgoodgood"
KILLS = {"POST .*/create": SIGTERM, "POST .*/preupload/": SIGKILL, "PUT /lfs/": SIGHUP} | dict.fromkeys(
    ["POST .*/commit/main", "POST .*/tag/"], SIGKILL
)


@pytest.mark.slow  # a start of Python for each kill
def test_killed_pushes_go_on_and_leave_nothing(folder, tmp_path):
    """Killed while the records are packed, and then at each request that changes something on the Hub."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Hub({TOKEN: "me"}) as hub:
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN, "TMPDIR": str(scratch)}
        env = os.environ | own | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}

        def left() -> set:
            return set(scratch.glob("repair-hf-*"))

        def push(repo: str, at: str | None = None, number: Signals = SIGKILL) -> int:
            """Push, and send a signal at a request, or with `at=""` once files are packed; return the exit code."""
            words = ["push", "records", folder, "--repo", repo, "--no-embed-source-images", "--tag", "one"]
            command, before = [sys.executable, "-m", "repair_hf", *words], left()
            if at:
                hub.before[at] = lambda: process.send_signal(number)
            process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=hears_all)
            if at == "":
                while process.poll() is None and not any(list(each.iterdir()) for each in left() - before):
                    time.sleep(0.001)
                process.send_signal(number)
            said = process.communicate()[1]
            assert not hub.before, f"ended before it could be killed: {said}"
            assert "leaked semaphore" not in said and "Traceback" not in said
            return process.returncode

        assert push("me/killed", "") == -SIGKILL and left()
        for at, number in KILLS.items():
            before = left()
            assert push("me/killed", at, number) == (-SIGKILL if number is SIGKILL else 128 + number)
            assert len(left() - before) == (number is SIGKILL)
        before = left()
        assert push("me/killed") == push("me/whole") == 0 and left() == before
        one, other = hub.files("dataset", "me/whole", "one"), hub.files("dataset", "me/killed", "one")
        one.pop("README.md"), other.pop("README.md")  # which name their repositories
        assert one == other and len(one) > 2
