"""What no file may hold: more than 300 lines, a function above 50, a private or replaced name of another library."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE, FUNCTION = 300, 50
STANDARD = {"_replace", "_exit"}  # of the standard library
# What is left: `datasets` has no public name for the rows of a selection, whose images would be copied.
PRIVATE = {"src/repair_hf/pairs/sources.py: _indices"}
# Variables of modules that one may set.
SETTINGS = {"litellm.suppress_debug_info", "constants.HF_HUB_OFFLINE", "datasets.config.HF_HUB_OFFLINE"}


@cache
def read(folder: str) -> dict[str, tuple[str, list[ast.AST]]]:
    """Return the text and all nodes of each file below a folder, by its path."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).rglob("*.py"))}
    return {path.relative_to(ROOT).as_posix(): (text, [*ast.walk(ast.parse(text))]) for path, text in texts.items()}


def too_long(folder: str) -> Iterator[str]:
    """Yield `path` of each long file and `path:function` of each long function below a folder."""
    for name, (text, nodes) in read(folder).items():
        if text.count("\n") > FILE:
            yield name
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= FUNCTION:
                yield f"{name}:{node.name}"


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks"])
def test_files_and_functions_are_short(folder):
    assert list(too_long(folder)) == []


def own_names() -> set[str]:
    """Return the names with an underscore that our own code defines."""
    pattern = re.compile(r"(?:def|class) (_\w+)|self\.(_\w+)|^ *(_\w+)(?:: .*)?(?: =|$)", re.MULTILINE)
    texts = (text for text, _ in read("src").values())
    return {name for text in texts for names in pattern.findall(text) for name in names if name}


def imports_of_others(nodes: list[ast.AST]) -> Iterator[ast.alias]:
    """Yield what a file imports from other libraries."""
    for node in nodes:
        is_from_others = isinstance(node, ast.ImportFrom) and "repair_hf" not in (node.module or "")
        if isinstance(node, ast.Import) or is_from_others:
            yield from node.names


def root_of(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def test_other_libraries_are_used_by_their_public_names_and_are_not_changed():
    ours, private, replaced = own_names() | STANDARD, set(), set()
    for file, (_, nodes) in read("src").items():
        aliases = list(imports_of_others(nodes))
        foreign = {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        private |= {f"{file}: {alias.name}" for alias in aliases if alias.name.startswith("_")}
        for node in (node for node in nodes if isinstance(node, ast.Attribute)):
            if re.match("_[a-zA-Z]", node.attr) and node.attr not in ours:
                private.add(f"{file}: {node.attr}")
            root = root_of(node)
            if isinstance(node.ctx, ast.Store) and isinstance(root, ast.Name) and root.id in foreign:
                replaced.add(ast.unparse(node))
    assert (private, replaced) == (PRIVATE, SETTINGS)
