"""No file is longer than 300 lines and no function longer than 50: a reader holds each in mind at once."""

import ast
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
