"""Fill the prompt templates, one Markdown file per stage and direction, and build chat messages from them.

A template holds the system message, a line of dashes, then one line per caption or image of the user message. Rules
come first, and images before captions, so that a provider can cache the beginning of a request.

Captions are untrusted. They enter as JSON string literals on one line each, so that no caption can close its quotation
marks, start a new line, imitate a label, or hold characters that a model reads and a person does not see.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from repair_hf.runtime.run_folder import digest

NAMES = ("audit_i2t", "audit_i2t_grouped", "audit_t2i", "instruct_i2t", "instruct_t2i", "edit_i2t", "edit_t2i")

DRAW = "Fill this empty canvas with a new image, as natural as a photograph, of:"
FIT = "Make this true of the image, by as small a change as will do:"

_LINE = re.compile(r"(?P<label>.+:) \{(?P<blank>\w+)\}")
# What json.dumps does not escape: other line breaks and control characters, bidirectional marks, invisible tags, and
# halves of surrogate pairs, which cannot be sent.
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f\ud800-\udfff]")


def chat(name: str, **blanks: str | list[str] | None) -> list[dict]:
    """Build the messages of one request, in the OpenAI chat format.

    Args:
        name: Name of the template, such as `audit_i2t`.
        blanks: Values of the template's blanks. A blank that ends in `_image` takes a data URL. Any other takes a
            text, which is quoted, or a list of texts, whose lines are numbered from 1. A line whose blank is None is
            left out.
    """
    system, lines = _template(name)
    parts: list[dict] = []
    for label, blank in lines:
        value = blanks[blank]
        if value is None:
            continue
        if blank.endswith("_image"):
            parts.append({"type": "text", "text": label})
            parts.append({"type": "image_url", "image_url": {"url": value}})
        else:
            text = _lines(label, value)
            if parts and parts[-1]["type"] == "text":  # some servers join text parts without a line break
                parts[-1]["text"] += f"\n{text}"
            else:
                parts.append({"type": "text", "text": text})
    return [{"role": "system", "content": system}, {"role": "user", "content": parts}]


def draw_instruction(caption: str) -> str:
    """Return the instruction that draws a new image on an empty canvas."""
    return f"{DRAW} {quote(caption)}"


def fit_instruction(caption: str) -> str:
    """Return the instruction that makes a caption true of an image."""
    return f"{FIT} {quote(caption)}"


def image_prompt(edit_instruction: str) -> str:
    """Return the prompt of an image editing model."""
    if edit_instruction.startswith(DRAW):
        return edit_instruction  # an empty canvas holds nothing to preserve
    return _read("edit_t2i").replace("{edit_instruction}", " ".join(edit_instruction.split())).strip()


def quote(text: str) -> str:
    """Quote a text as a JSON string literal on one line."""
    return _UNSEEN.sub(lambda letter: json.dumps(letter[0])[1:-1], json.dumps(text, ensure_ascii=False))


@cache
def prompt_digest(names: tuple[str, ...] = NAMES) -> str:
    """Return a digest of some templates. Each record holds that of all RePair templates: the wording that made it."""
    return digest({name: _read(name) for name in names})


def _lines(label: str, value: str | list[str]) -> str:
    if isinstance(value, str):
        return f"{label} {quote(value)}"
    name = label.removesuffix(":")
    return "\n".join(f"{name} {number}: {quote(text)}" for number, text in enumerate(value, start=1))


@cache
def _template(name: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the system message, and label and blank of each line of the user message."""
    system, user = _read(name).split("\n-----\n")
    lines = [_LINE.fullmatch(line) for line in user.splitlines()]
    return system.strip(), [(line["label"], line["blank"]) for line in lines if line]


@cache
def _read(name: str) -> str:
    return (files("repair_hf.llm") / "templates" / f"{name}.md").read_text(encoding="utf-8")
