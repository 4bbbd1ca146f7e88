"""Pushes that are killed at any moment leave nothing behind for good, and the next one completes them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from hub_server import Hub

from repair_hf.runtime.scratch import PREFIX

TOKEN = "hf_goodgoodgoodgoodgood"


@pytest.mark.slow  # a start of Python for each kill
def test_killed_pushes_go_on_and_leave_nothing(folder, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Hub({TOKEN: "me"}) as hub:
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN, "TMPDIR": str(scratch)}
        env = os.environ | own | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}

        def push(repo: str, number: signal.Signals | None = None) -> str:
            """Push, and send a signal at a moment after the first file in the scratch folder."""
            words = ["push", "records", folder, "--repo", repo, "--no-embed-source-images"]
            process = subprocess.Popen(
                [sys.executable, "-m", "repair_hf", *words], env=env, stderr=subprocess.PIPE, text=True
            )
            if number is not None:
                while process.poll() is None and not any(scratch.glob(f"{PREFIX}*/records")):
                    time.sleep(0.005)
                time.sleep(random.random() * 0.2)
                process.send_signal(number)
            said = process.communicate()[1]
            assert process.returncode in ((0,) if number is None else (-number, 128 + number, 0)), said
            return said

        push("me/whole")
        for number in [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGHUP, signal.SIGKILL]:
            said = push("me/killed", number)
            assert "leaked semaphore" not in said and "Traceback" not in said
            assert number is signal.SIGKILL or not list(scratch.glob(f"{PREFIX}*"))
            if ("dataset", "me/killed") in hub.repos:
                hub.repos["dataset", "me/killed"].commits[1:] = []  # as if none had been completed
        push("me/killed")
        one, other = hub.files("dataset", "me/whole"), hub.files("dataset", "me/killed")
        assert {name: data for name, data in one.items() if name != "README.md"} == {
            name: data for name, data in other.items() if name != "README.md"
        }
    assert not list(scratch.glob(f"{PREFIX}*"))
