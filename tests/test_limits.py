"""What no file may hold: more than 300 lines, a function above 50, a private or replaced name of another library."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE, FUNCTION = 300, 50


def too_long(folder: str) -> Iterator[str]:
    """Yield `path` of each long file and `path:function` of each long function below a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if text.count("\n") > FILE:
            yield name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= FUNCTION:
                yield f"{name}:{node.name}"


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks"])
def test_files_and_functions_are_short(folder):
    assert list(too_long(folder)) == []


SOURCE = ROOT / "src" / "repair_hf"
FILES = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
STANDARD = {"_replace", "_exit"}  # of the standard library
# What is left: `datasets` has no public name for the rows of a selection, whose images would be copied.
PRIVATE = {"pairs/sources.py: _indices"}
# Variables of modules that one may set.
SETTINGS = {"litellm.suppress_debug_info", "constants.HF_HUB_OFFLINE", "datasets.config.HF_HUB_OFFLINE"}


def own_names() -> set[str]:
    """Names with an underscore that our own code defines."""
    pattern = re.compile(r"(?:def|class) (_\w+)|self\.(_\w+)|^ *(_\w+)(?:: .*)?(?: =|$)", re.MULTILINE)
    return {name for text in FILES.values() for names in pattern.findall(text) for name in names if name}


def imported(tree: ast.Module) -> set[str]:
    """Names in a file that come from other libraries."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (
            isinstance(node, ast.ImportFrom) and "repair_hf" not in (node.module or "")
        ):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def test_no_private_name_of_another_library_is_used():
    ours, used = own_names() | STANDARD, set()
    for file, text in FILES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in ours:
                used.add(f"{file}: {node.attr}")
            if isinstance(node, ast.ImportFrom) and "repair_hf" not in (node.module or ""):
                used |= {f"{file}: {alias.name}" for alias in node.names if alias.name.startswith("_")}
    assert used == PRIVATE


def test_nothing_of_another_library_is_replaced():
    replaced = set()
    for text in FILES.values():
        tree = ast.parse(text)
        foreign = imported(tree) - {"self"}
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            for target in targets:
                root = target
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(target, ast.Attribute) and isinstance(root, ast.Name) and root.id in foreign:
                    replaced.add(ast.unparse(target))
    assert replaced == SETTINGS
