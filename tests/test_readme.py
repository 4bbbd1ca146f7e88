"""The documents are right: files, flags and commands exist, and every block of the README runs.

Blocks run in a folder of their own, with a copy of `recipes/` (its toy recipe made small) and a Hub on loopback:
- `bash`: line by line, with the smaller sizes of `SMALLER`. `make` runs dry, and installations are skipped.
- `bash` under `<!-- test: dry-run -->`, if it needs a key, a GPU or minutes: our commands with `--dry-run`.
- `python`: all blocks in order, as one program.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hub_server import Hub

from repair_hf.cli import main as cli
from repair_hf.cli.subcommands import load_command
from repair_hf.runtime.flags import add_arguments

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "recipes").rglob("README.md"))]
ACCELERATE = {"--config_file", "--num_processes", "--num-processes", "--cpu", "-m"}  # flags of `accelerate launch`
EVERYWHERE = {"--config", "--debug", "--help", "--help-all", "--version"}
INSTALLS = re.compile(r"git clone|python3? -m venv|(\.venv/bin/)?pip install|(\.venv/bin/)?pre-commit")
SMALLER = {
    "repair-hf demo": "--size tiny",
    "repair-hf train": "--per-device-train-batch-size 16",
    "repair-hf world build": "--train 60 --validation 20 --test 30",
    "repair-hf world pretrain": "--epochs 1 --batch-size 32",
    "accelerate launch": "--per-device-train-batch-size 8",
}
TOKEN = "hf_goodgoodgoodgoodgood"


@dataclass(frozen=True)
class Block:
    """A fenced block, and the rule above it, if any."""

    language: str
    text: str
    rule: str | None = None


def blocks(text: str) -> list[Block]:
    found = re.finditer(r"(?:<!-- test: (.+?) -->\n)?^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
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


def spoken(text: str) -> list[str]:
    """Return the commands in bash blocks, and our commands in the text between."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`((?:repair-hf|accelerate launch) [^`]+)`", prose)
    return [line for block in blocks(text) if block.language == "bash" for line in lines(block.text)] + inline


def types_of(words: list[str]) -> tuple[type, ...]:
    """Return the options of a command; of all its actions if none is named."""
    module = load_command(words[0])
    if "ACTIONS" not in vars(module):
        return module.OPTIONS
    named = {name: types for name, (types, _) in module.ACTIONS.items() if words[1:2] == [name]}
    return sum(named.values() or (types for types, _ in module.ACTIONS.values()), ())


def flags_of(types: tuple[type, ...]) -> set[str]:
    parser = ArgumentParser(conflict_handler="resolve")  # two actions may share a flag
    actions = [action for each in types for action in add_arguments(parser, each)]
    return EVERYWHERE.union(*(action.option_strings for action in actions))


def all_flags() -> set[str]:
    return ACCELERATE.union(*(flags_of(types_of([name])) for name in cli.COMMANDS))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_of_a_document_is_one_and_takes_its_flags(path):
    for line in filter(ours, spoken(path.read_text(encoding="utf-8"))):
        words = ours(line)
        if words[0] in ("...", "<command>"):
            continue
        assert words[0].startswith("--") or words[0] in cli.COMMANDS, line
        known = flags_of(types_of(words)) if words[0] in cli.COMMANDS else EVERYWHERE
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_flag_and_file_that_a_document_names_is_there(path):
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= all_flags()
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", text)
    named = re.findall(r"(?<![\w/])((?:recipes|tests|hub_cards|src)/[\w./-]+\w)", text)
    for name in links:
        file, _, heading = name.partition("#")
        assert (target := path.parent / file if file else path).exists(), name
        assert not heading or heading in anchors(target.read_text(encoding="utf-8")), name
    for name in named:
        assert (ROOT / name).exists(), name


def anchors(text: str) -> set[str]:
    """Return GitHub's anchors of the headings of a document."""
    return {
        re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def test_every_file_of_the_tree_is_there():
    tree = next(block.text for block in blocks(README.read_text(encoding="utf-8")) if "├──" in block.text)
    here, count = ROOT, 0
    for line in tree.splitlines():
        is_inside = line[0] in "├└│"
        names = re.sub(r"#.*", "", line).strip("├└│─ ").split()
        here = here if is_inside else ROOT
        for name in names:
            assert (here / name).exists(), f"{name} in {here.relative_to(ROOT)}/"
            count += 1
        if not is_inside:
            here = ROOT / names[0]
    assert count >= 20


def test_every_target_of_make_and_every_extra_that_a_document_names_exists():
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)
    assert named and set(named) <= set(targets)
    assert set(re.findall(r"(?:repair-hf|\.)\[([a-z]+)\]", text)) <= set(extras)


def test_a_block_is_read_with_its_rule():
    text = "x\n\n<!-- test: dry-run -->\n```bash\na \\\n  b  # c\n\n```\n```python\nd\n```\n"
    assert blocks(text) == [Block("bash", "a \\\n  b  # c\n\n", "dry-run"), Block("python", "d\n")]
    assert list(lines(blocks(text)[0].text)) == ["a b"]


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Iterator[Desk]:
    """A folder where the README's commands run, with a Hub."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    sizes = {"world": {"train": 60, "validation": 20, "test": 30}, "mine": {"max_queries": 30}}
    sizes |= {"train": {"max_steps": 3, "per_device_train_batch_size": 16}}
    for stage, few in sizes.items():
        path = folder / "recipes" / "toy" / f"{stage}.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | few))
    with Hub({TOKEN: "me"}) as hub:
        yield Desk(folder, hub.url)


class Desk:
    """Runs what a reader would type."""

    def __init__(self, folder: Path, hub: str) -> None:
        self.folder = folder
        left_out = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        self.env = {name: value for name, value in os.environ.items() if name not in left_out} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HF_ENDPOINT": hub,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(folder / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "OMP_NUM_THREADS": "1",
        }

    def type(self, *words: str) -> None:
        done = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    def bash(self, line: str, rule: str | None) -> None:
        if INSTALLS.match(line):
            return
        if line.startswith("make"):
            self.type("make", "-C", str(ROOT), "--dry-run", "--old-file", ".venv/ready", *shlex.split(line)[1:])
            line = "true"
        smaller = next((words for start, words in SMALLER.items() if line.startswith(start)), "")
        assert line == "true" or ours(line) is not None, f"no rule says how to test `{line}`"
        self.type("bash", "-ec", f"{line} --dry-run" if rule == "dry-run" and ours(line) else f"{line} {smaller}")


@pytest.mark.slow
def test_every_block_of_the_readme_runs(desk):
    found = blocks(README.read_text(encoding="utf-8"))
    assert {block.language for block in found} <= {"bash", "python", "bibtex", ""}
    assert {block.rule for block in found} <= {None, "dry-run"}
    for block in found:
        if block.language == "bash":
            for line in lines(block.text):
                desk.bash(line, block.rule)
    program = "\n".join(block.text for block in found if block.language == "python")
    desk.type(sys.executable, "-c", program)
    assert program


@pytest.mark.slow
def test_every_block_of_the_toy_recipe_runs(desk):
    for block in blocks((ROOT / "recipes" / "toy" / "README.md").read_text(encoding="utf-8")):
        for line in lines(block.text):
            desk.bash(line, block.rule)
