"""A client of the Hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hub_server import Hub


class Client:
    """A Python process that runs code against the Hub: libraries read HF_ENDPOINT and HF_HOME when they are imported.

    Names that the code sets are kept for the next call. The name `result` is returned, as JSON.
    """

    def __init__(self, hub: Hub, home: Path, token: str | None) -> None:
        own = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        own |= {"OMP_NUM_THREADS": "1"} | ({} if token is None else {"HF_TOKEN": token})
        env = {**os.environ, **own}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            env.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
        )

    def run(self, code: str) -> Any:
        """Execute code; return `result`, or raise what it raised as a RuntimeError with its type and text."""
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the client has died"
        kind, value = json.loads(line)
        if kind == "error":
            raise RuntimeError(value)
        return value

    def main(self, *words: object) -> tuple[int, str, str]:
        """Run a command line; return its exit code, its output, and the last line on stderr."""
        return tuple(self.run(f"result = typed({[str(word) for word in words]!r})"))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(600)


_WORKER = """
import contextlib, io, json, os, sys, traceback
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever a library prints does not mix with the answers

def typed(words):
    from repair_hf.cli.main import main
    printed, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        code = main(words)
    return code, printed.getvalue(), (complained.getvalue().strip().splitlines() or [""])[-1]

names = {"typed": typed, "os": os}
for line in sys.stdin:
    names["result"] = None
    try:
        exec(json.loads(line), names)
        answer = ["result", names["result"]]
    except Exception as error:
        traceback.print_exc()
        answer = ["error", f"{type(error).__name__}: {error}"]
    print(json.dumps(answer), file=out, flush=True)
"""
