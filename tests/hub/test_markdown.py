"""Markdown of untrusted text: nothing in it is read as Markdown or HTML."""

from __future__ import annotations

import html
import re

from repair_hf.analysis.tables import markdown
from repair_hf.hub.rendering import code, without_folders


def test_a_code_span_shows_the_text_and_does_nothing(hostile_text, rendered):
    text = hostile_text
    page = rendered(markdown(("head",), [(code(text),)], labels=1))
    assert re.findall(r"<(\w+)", page) == ["table", "thead", "tr", "th", "tbody", "tr", "td", "code"]
    if text.isascii() and text.isprintable() and "  " not in text:
        shown = html.unescape(re.search(r"<code>(.*)</code>", page)[1])
        assert shown == text
    assert not re.search("[\u202e\u200b\x07]", page)


def test_a_head_with_a_bar_stays_one_cell(rendered):
    page = rendered(markdown(("", code("a|b")), [("x", 1)]))
    assert re.findall(r"<code>(.*?)</code>", page) == ["a|b"] and page.count("<td") == 2


def test_cells_without_a_value_are_dashes_and_heads_are_not():
    assert markdown(("", "n"), [(None, 1234), ("a", 0.5)]) == "|  | n |\n| --- | ---: |\n| – | 1,234 |\n| a | 0.500 |"
    assert code(None) == code("") == code(" \n") == "–"


def test_of_a_path_the_last_part_is_shown():
    assert without_folders("/home/ann/secret/photos") == "…/photos"
    assert without_folders({"a": [{"b": "/x/y"}, 1]}) == {"a": [{"b": "…/y"}, 1]}
    assert without_folders("runs/photos") == "runs/photos" and without_folders(3) == 3
