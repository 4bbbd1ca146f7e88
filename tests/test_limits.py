"""What no file may hold: too many lines, long functions, private names of other libraries, and long sentences."""

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
PRIVATE = {"src/repair_hf/pairs/tables.py: _indices"}
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


# Documents are short, and so are their paragraphs and sentences


README = ROOT / "README.md"
GENERATED = ("api.md", "command-line.md")  # from docstrings and help texts, if `make docs` was run
RECIPES = sorted((ROOT / "recipes").rglob("README.md"))
PAGES = [README, *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in GENERATED), *RECIPES]
MOST_LINES, MOST_WORDS = 110, 1100  # of README
PARAGRAPH, SENTENCE = 80, 30  # words at most
END = re.compile(r"(?<=[.!?])\s+(?=[^a-z])")


def paragraphs(text: str) -> list[str]:
    """Return the prose of a page: paragraphs, items of lists and cells of tables; a code span counts as a word."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]+`", "Code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(#|\|[-:| ]+\|$).*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(?=\s*([-*]|\d+\.) )", "\n", text, flags=re.MULTILINE)  # each item of a list by itself
    text = re.sub(r"^\|(.*)\|$", lambda row: "\n\n".join(row[1].split("|")), text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_paragraphs_and_sentences_are_short(path):
    for paragraph in paragraphs(path.read_text(encoding="utf-8")):
        assert len(paragraph.split()) <= PARAGRAPH, paragraph
        for sentence in END.split(paragraph):
            assert len(sentence.split()) <= SENTENCE, sentence


def test_readme_is_short():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert len(text.split()) <= MOST_WORDS
