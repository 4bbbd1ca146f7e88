"""The prompts, one Markdown file per stage and direction, and how they become chat messages.

In:  a prompt's name (`audit_i2t`) and what fills its blanks: captions as text, images as data URLs.
Out: messages in the OpenAI chat format. A file holds the system message, a line of dashes, then one line per thing that the
     user message shows. The rules come first and the case last, images before the captions that change from case to case, so that
     a provider can reuse the beginning of a request.

Captions come from strangers. They enter as JSON string literals on a line of their own, so that no caption can close its quotation
marks, start a new line, pose as a label, or hold letters that a model reads and a person does not see.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from repair_hf.runtime.run_folder import digest

NAMES = ("audit_i2t", "audit_i2t_grouped", "audit_t2i", "instruct_i2t", "instruct_t2i", "edit_i2t", "edit_t2i")

DRAW = "Fill this empty canvas with a new image, as natural as a photograph, of:"
FIT = "Make this true of the image, by as small a change as will do:"

_LINE = re.compile(r"(?P<label>.+:) \{(?P<blank>\w+)\}")
# What json.dumps leaves as it is: other line breaks and control characters, marks that turn the direction of writing, tags, which are
# invisible, and halves of surrogate pairs, which cannot be sent at all.
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f\ud800-\udfff]")


class _Template(NamedTuple):
    system: str
    lines: tuple[tuple[str, str], ...]  # (label, blank)


def chat(name: str, **blanks: str | list[str] | None) -> list[dict]:
    """The messages of one request.

    Args:
        name: Which prompt, such as `audit_i2t`.
        blanks: What fills the prompt's blanks. A blank that ends in `_image` takes a data URL; any other takes a text,
            which is quoted, or a list of texts: each gets a line, its label numbered from 1. A line whose blank is None is
            left out.
    """
    template = _template(name)
    parts: list[dict] = []
    for label, blank in template.lines:
        value = blanks[blank]
        if value is None:
            continue
        if blank.endswith("_image"):
            parts.append({"type": "text", "text": label})
            parts.append({"type": "image_url", "image_url": {"url": value}})
        else:
            text = _lines(label, value)
            if parts and parts[-1]["type"] == "text":  # some servers join text parts without a line break between them
                parts[-1]["text"] += f"\n{text}"
            else:
                parts.append({"type": "text", "text": text})
    return [{"role": "system", "content": template.system}, {"role": "user", "content": parts}]


def draw_instruction(caption: str) -> str:
    """Asks an image editor for a new image: its source is an empty canvas."""
    return f"{DRAW} {quote(caption)}"


def fit_instruction(caption: str) -> str:
    """Asks an image editor to make a caption true of an image."""
    return f"{FIT} {quote(caption)}"


def image_prompt(edit_instruction: str) -> str:
    """What an image editing model is told."""
    if edit_instruction.startswith(DRAW):
        return edit_instruction  # there is nothing to leave as it is
    return _read("edit_t2i").replace("{edit_instruction}", " ".join(edit_instruction.split())).strip()


def quote(text: str) -> str:
    """`text` as a JSON string literal that takes one line whatever is in it."""
    return _UNSEEN.sub(lambda letter: json.dumps(letter[0])[1:-1], json.dumps(text, ensure_ascii=False))


@cache
def prompt_digest(names: tuple[str, ...] = NAMES) -> str:
    """Names the wording of some prompts; that of all of RePair's is kept with every record, so that records made by other words can be told apart."""
    return digest({name: _read(name) for name in names})


def _lines(label: str, value: str | list[str]) -> str:
    if isinstance(value, str):
        return f"{label} {quote(value)}"
    name = label.removesuffix(":")
    return "\n".join(f"{name} {number}: {quote(text)}" for number, text in enumerate(value, start=1))


@cache
def _template(name: str) -> _Template:
    system, user = _read(name).split("\n-----\n")
    lines = (_LINE.fullmatch(line) for line in user.splitlines())
    return _Template(system.strip(), tuple((line["label"], line["blank"]) for line in lines))


@cache
def _read(name: str) -> str:
    return (files("repair_hf.llm") / "templates" / f"{name}.md").read_text(encoding="utf-8")
