"""README, the pages of `docs/` and of `recipes/` are short, and so are their paragraphs and sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
