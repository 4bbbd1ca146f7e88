"""The documents are right: files, commands, options and messages exist, and each block and example runs."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from desk import ROOT, TOKEN, Desk, blocks, lines, ours
from hub_server import Hub

import repair_hf
from repair_hf.cli import main as cli
from repair_hf.cli.subcommands import load_command
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.flags import add_arguments

README = ROOT / "README.md"
GENERATED = {"api.md", "command-line.md"}
DOCS = sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in GENERATED)
READMES = sorted((ROOT / "recipes").rglob("README.md"))
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS, *READMES]
EXECUTED = [README, *DOCS, ROOT / "recipes" / "toy" / "README.md"]
LANGUAGES = {"bash", "python", "json", "bibtex", "text", "", "{toctree}", "{include}"}
ACCELERATE = {"--config_file", "--num_processes", "--num-processes", "--cpu", "-m"}  # flags of `accelerate launch`
EVERYWHERE = {"--config", "--debug", "--help", "--help-all", "--version"}

REPLACED = {  # in README's ten lines
    "gemini/gemini-3.5-flash-lite": "world/oracle",
    "black-forest-labs/FLUX.2-klein-4B": "world",
    'RepairConfig("tuned")': 'RepairConfig("tuned", max_steps=3, per_device_train_batch_size=8)',
}
LOADED = """
from transformers import AutoModel, AutoProcessor
from repair_hf.encoder.shipped import locate
model, processor = AutoModel.from_pretrained(locate("world/base")), AutoProcessor.from_pretrained(locate("world/base"))
"""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def spoken(text: str) -> list[str]:
    """Return our commands in the text between blocks."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`((?:repair-hf|accelerate launch) [^`]+)`", prose)


def typed(text: str) -> list[str]:
    """Return our commands in bash blocks."""
    return [line for block in blocks(text) if block.language == "bash" for line in lines(block.text) if ours(line)]


def types_of(words: list[str]) -> tuple[type, ...]:
    """Return the options of a command; of all its actions if none is named."""
    module = load_command(words[0])
    if "ACTIONS" not in vars(module):
        return module.OPTIONS
    found = {name: types for name, (types, _) in module.ACTIONS.items() if words[1:2] == [name]}
    return sum(found.values() or (types for types, _ in module.ACTIONS.values()), ())


@cache
def flags_of(types: tuple[type, ...]) -> set[str]:
    parser = ArgumentParser(conflict_handler="resolve")  # two actions may share a flag
    actions = [action for each in types for action in add_arguments(parser, each)]
    return EVERYWHERE.union(*(action.option_strings for action in actions))


def all_flags() -> set[str]:
    return ACCELERATE.union(*(flags_of(types_of([name])) for name in cli.COMMANDS))


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_every_command_of_a_document_is_one_and_takes_its_options(path, monkeypatch):
    """Whole commands are parsed with their values; those that the text mentions may lack some."""
    monkeypatch.chdir(ROOT)
    text = path.read_text(encoding="utf-8")
    for line in typed(text):
        words = ours(line)
        count = 2 if "ACTIONS" in vars(load_command(words[0])) else 1
        assert parse(types_of(words), words[count:], "repair-hf"), line
    for line in filter(ours, spoken(text)):
        words = ours(line)
        if words[0] in ("...", "COMMAND"):
            continue
        assert words[0].startswith("--") or words[0] in cli.COMMANDS, line
        known = flags_of(types_of(words)) if words[0] in cli.COMMANDS else EVERYWHERE
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_every_flag_and_file_that_a_document_names_is_there(path):
    text = re.sub(r"^curl .*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= all_flags()
    for name in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        file, _, heading = name.partition("#")
        target = path.parent / file if file else path
        assert file in GENERATED or target.exists(), name
        if heading:
            page = generated()[file] if file in GENERATED else target.read_text(encoding="utf-8")
            assert heading in anchors(page), name
    for name in re.findall(r"(?<![\w/])((?:recipes|tests|hub_cards|src|examples|docs)/[\w./-]+\w)", text):
        assert (ROOT / name).exists(), name


@cache
def generated() -> dict[str, str]:
    """Return the pages that `make docs` writes, by name."""
    return runpy.run_path(str(ROOT / "docs" / "reference.py"))["pages"]()


def anchors(text: str) -> set[str]:
    """Return GitHub's anchors of the headings of a document."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}


def test_every_file_of_the_tree_is_there():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = next(block.text for block in blocks(text) if "hub_cards/" in block.text)
    names = [line.split()[0] for line in tree.splitlines()]
    assert len(names) >= 7 and all((ROOT / name).is_dir() for name in names)


def test_every_target_of_make_and_every_extra_that_a_document_names_exists():
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)
    assert made and set(made) <= set(targets)
    assert set(re.findall(r"(?:repair-hf|\.)\[([a-z-]+)\]", text)) <= set(extras)


@pytest.mark.parametrize("path", EXECUTED, ids=named)
def test_every_block_has_a_language_and_a_rule_that_are_known(path):
    for block in blocks(path.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES and block.rule in (None, "parse", "python-api"), block
        if block.language == "python":
            compile(block.text, "block", "exec")
        elif block.language == "json":
            json.loads(block.text)


def test_the_generated_pages_have_every_command_and_every_public_name():
    pages = generated()
    assert set(pages) == GENERATED
    for command in cli.COMMANDS:
        assert f"\n## {command}\n" in pages["command-line.md"], command
    for name in set(repair_hf.__all__) - {"__version__"}:
        assert re.search(rf"^## .*{name}", pages["api.md"], re.MULTILINE), name


def test_every_message_of_troubleshooting_is_one_of_the_program():
    """A heading quotes parts of a message, with … between them."""
    quoted = re.findall(r"^### `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(quoted) >= 20
    for message in quoted:
        assert is_said(message), message


def is_said(message: str) -> bool:
    """Return whether a text of the program holds the parts of a message, with … between them."""
    pattern = re.compile(".*".join(re.escape(part.strip()) for part in message.split("…")))
    return any(pattern.search(text) for text in said())


@cache
def said() -> set[str]:
    return {text for path in (ROOT / "src").rglob("*.py") for text in texts(path.read_text(encoding="utf-8"))}


def texts(source: str) -> Iterator[str]:
    """Yield the texts of a source; an f-string with … for its values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Iterator[Desk]:
    with Hub({TOKEN: "me"}) as hub:
        desk = Desk(tmp_path_factory.mktemp("desk"), hub.url)
        desk.run([("repair-hf", "demo --size tiny")])
        yield desk


@pytest.mark.slow
@pytest.mark.parametrize("path", EXECUTED, ids=named)
def test_every_block_of_a_page_runs(path, desk):
    desk.read(path.read_text(encoding="utf-8"))


def ten_lines() -> str:
    """Return README's program in the toy world."""
    (program,) = (block.text for block in blocks(README.read_text(encoding="utf-8")) if block.rule == "python-api")
    for word, other in REPLACED.items():
        assert word in program
        program = program.replace(word, other)
    return program


def test_the_ten_lines_of_readme_name_what_the_toy_world_replaces():
    assert "gemini" not in ten_lines() and "FLUX" not in ten_lines()


@pytest.mark.slow
def test_the_ten_lines_of_readme_run(desk):
    world = desk.folder / "runs" / "demo" / "world"
    for row in map(json.loads, (world / "captions.jsonl").read_text().splitlines()):
        if row["split"] != "test":
            file = desk.folder / "photos" / row["split"] / Path(row["image"]).name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes((world / "images" / file.name).read_bytes())
            with (file.parent / "metadata.jsonl").open("a") as table:
                table.write(json.dumps({"file_name": file.name, "captions": row["captions"]}) + "\n")
    desk.type(sys.executable, "-c", LOADED + ten_lines())


SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(script, tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert list((tmp_path / "runs" / "examples").iterdir())


def test_the_notebook_is_that_of_its_script():
    make = runpy.run_path(str(ROOT / "docs" / "notebook.py"))
    notebook = json.loads(make["NOTEBOOK"].read_text(encoding="utf-8"))
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert found == make["cells"](make["SCRIPT"].read_text(encoding="utf-8")), "Run `python docs/notebook.py`."
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) >= 3 and not any(output["output_type"] == "error" for output in outputs)
