"""A place where the documents' blocks run as a reader would type them: a folder with recipes and a demo, and a Hub.

A block may have a rule, `<!-- test: RULE -->`, in the line above it:
- none: `bash` runs line by line, with the smaller sizes of `SMALLER`; `python` runs in order, as one program a page.
- `parse`: needs a key, a GPU or real data, or never ends; only commands and options are checked.
- `python-api`: README's ten lines, which run on a folder of photographs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
INSTALLS = re.compile(r"git clone|python3? -m (venv|build)|(\.venv/bin/)?pip install|(\.venv/bin/)?pre-commit")
SMALLER = {
    "demo": "--size tiny",
    "train": "--per-device-train-batch-size 8 --max-steps 3",
    "world build": "--train 60 --validation 20 --test 30",
}
RECIPES = {  # of the toy world
    "world": {"train": 60, "validation": 20, "test": 30},
    "mine": {"max_queries": 30},
    "train": {"max_steps": 3, "per_device_train_batch_size": 8},
}
TOKEN = "hf_goodgoodgoodgoodgood"
# Runs a page in one process: torch and transformers are imported once.
RUNNER = """
import json, shlex, sys
from repair_hf.cli.main import main
names = {"__name__": "page"}
for kind, text in json.load(sys.stdin):
    print(">>>", text, flush=True)
    if kind == "python":
        exec(compile(text, "block", "exec"), names)
    elif code := main(shlex.split(text)):
        sys.exit(code)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block, and the rule above it, if any."""

    language: str
    text: str
    rule: str | None = None


def blocks(text: str) -> list[Block]:
    found = re.finditer(r"(?:<!-- test: (.+?) -->\n)?^```([\w{}]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(each[2], each[3], each[1]) for each in found]


def lines(text: str) -> Iterator[str]:
    """Yield the commands of a bash block, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield line if "#" not in line else shlex.join(words)


def ours(line: str) -> list[str] | None:
    """Return the words after `repair-hf`, however it is started; None for another program."""
    words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
    if words[:2] == ["accelerate", "launch"] and "repair_hf" in words:
        return words[words.index("repair_hf") + 1 :]
    return words[1:] if words[0] == "repair-hf" else None


def smaller(line: str) -> str:
    """Return a command of ours with the flags that make it fast."""
    words = " ".join(ours(line) or ())
    return f"{line} {next((flags for start, flags in SMALLER.items() if words.startswith(start)), '')}"


class Desk:
    """Runs what a reader would type."""

    def __init__(self, folder: Path, hub: str) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "recipes", folder / "recipes")
        for stage, few in RECIPES.items():
            path = folder / "recipes" / "toy" / f"{stage}.yaml"
            path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | few))
        shutil.copytree(folder / "recipes" / "toy", folder / "toy")  # before the shipped recipe of that name
        left_out = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        self.env = {name: value for name, value in os.environ.items() if name not in left_out} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HF_ENDPOINT": hub,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(folder / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "OMP_NUM_THREADS": "1",
        }

    def type(self, *words: str, stdin: str = "") -> str:
        """Run a program in the folder, and return what it printed."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, input=stdin, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"{shlex.join(words[:2])}\n{done.stdout[-3000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def run(self, steps: Sequence[tuple[str, str]]) -> str:
        """Run commands of ours (`repair-hf`) and programs (`python`) in one process."""
        return self.type(sys.executable, "-c", RUNNER, stdin=json.dumps(list(steps))) if steps else ""

    def read(self, page: str) -> None:
        """Run the blocks of a page from top to bottom."""
        waiting: list[tuple[str, str]] = []
        for block in blocks(page):
            if block.rule is not None:
                continue
            if block.language == "python":
                waiting.append(("python", block.text))
            for line in lines(block.text) if block.language == "bash" else ():
                if line.startswith("repair-hf "):
                    waiting.append(("repair-hf", smaller(line).removeprefix("repair-hf ")))
                    continue
                self.run(waiting)
                waiting = []
                self._other(line)
        self.run(waiting)

    def _other(self, line: str) -> None:
        """Run a command that is not ours alone: launchers run, `make` runs dry, and installations are skipped."""
        if line.startswith("make"):
            self.type("make", "-C", str(ROOT), "--dry-run", "--old-file", ".venv/ready", *shlex.split(line)[1:])
        elif not INSTALLS.match(line):
            assert ours(line) is not None, f"no rule says how to test `{line}`"
            self.type("bash", "-ec", smaller(line))
