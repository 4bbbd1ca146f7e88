"""Fill the prompt templates, one Markdown file per stage and direction, and build chat messages from them.

A template holds the system message, a line of dashes, then one line per caption or image of the user message. Rules
come first, and images before captions, so that a provider can cache the beginning of a request. A line that begins
with `[strict]`, `[lenient]`, `[always]` or `[null]` is sent with that wording alone. Files of a folder may replace
ours, and notes on the domain may be added to all of them (`Prompts`).

Captions are untrusted. They enter as JSON string literals on one line each, so that no caption can close its quotation
marks, start a new line, imitate a label, or hold characters that a model reads and a person does not see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Literal

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest

NAMES = ("audit_i2t", "audit_i2t_grouped", "audit_t2i", "instruct_i2t", "instruct_t2i", "edit_i2t", "edit_t2i")

DASHES = "\n-----\n"  # between the system message and the lines of the user message

DRAW = "Draw from this text alone:"
FIT = "Make this true of the image, by as small a change as will do:"

_LINE = re.compile(r"(?P<label>.+:) \{(?P<blank>\w+)\}")
_MARKED = re.compile(r"^\[(strict|lenient|always|null)\] (.*\n)", re.MULTILINE)
# What json.dumps does not escape: other line breaks and control characters, bidirectional marks, invisible tags, and
# halves of surrogate pairs, which cannot be sent.
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f\ud800-\udfff]")


@dataclass(frozen=True)
class Prompts:
    """The prompts of a run: ours, those that files of a folder replace, and notes on the domain in all of them.

    Args:
        folder: Files named as ours, such as `audit_t2i.md`; any may be missing. Other names raise an error.
        notes: Added to every prompt, such as "Brand and size decide."
        audit: Whether one contradiction makes a false positive wrong (`strict`), or only a major mismatch (`lenient`,
            the paper's wording).
        always_instruct: Ask for an instruction in any case; otherwise the LLM may answer that nothing has to change.

    Raises:
        UserError: If a file of the folder lacks a field of ours, holds a line that would not be sent, or is no prompt.
    """

    folder: str | Path | None = None
    notes: str | None = None
    audit: Literal["strict", "lenient"] = "strict"
    always_instruct: bool = False

    def __post_init__(self) -> None:
        self.own  # noqa: B018  # a wrong file is an error before anything is asked

    @cached_property
    def own(self) -> dict[str, str]:
        """The files of the folder, by name."""
        if self.folder is None:
            return {}
        found = {file.stem: file for file in sorted(Path(self.folder).glob("*.md"))}
        if not found or (unknown := set(found) - set(_shipped())):
            got = f"{sorted(unknown)}" if found else "none"
            names = ", ".join(f"{name}.md" for name in _shipped())
            raise UserError(f"`prompts` {self.folder} must hold prompts named as ours, got {got}; ours are {names}.")
        texts = {name: file.read_text(encoding="utf-8") for name, file in found.items()}
        for name, text in texts.items():
            if fault := _fault(self._worded(_read(name)), self._worded(text)):
                raise UserError(f"The prompt {found[name]} {fault}; copy from our {name}.md.")
            if self.audit == "lenient" and name.startswith("audit_") and "\n[lenient] " not in text:
                raise UserError(f"The prompt {found[name]} has no [lenient] lines; add some, or leave out `audit`.")
        return texts

    def text(self, name: str) -> str:
        """The text of a prompt, as it is sent."""
        text, note = self._worded(self.own.get(name, _read(name))), " ".join((self.notes or "").split())
        if not note:
            return text
        if DASHES not in text:
            return f"{text.rstrip()}\n{note}\n"
        system, user = text.split(DASHES)
        return f"{system.rstrip()}\n\nAbout this domain: {note}{DASHES}{user}"

    def _worded(self, text: str) -> str:
        """Return a prompt without the marks, and without the lines that are marked for another wording."""
        wording = (self.audit, "always" if self.always_instruct else "null")
        return _MARKED.sub(lambda line: line[2] if line[1] in wording else "", text)

    def chat(self, name: str, **blanks: str | list[str] | None) -> list[dict]:
        """Build the messages of one request, in the OpenAI chat format.

        Args:
            name: Name of the template, such as `audit_i2t`.
            blanks: Values of the template's blanks. A blank that ends in `_image` takes a data URL. Any other takes a
                text, which is quoted, or a list of texts, whose lines are numbered from 1. A line whose blank is None
                is left out.
        """
        system, lines = _template(self.text(name))
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

    def image(self, edit_instruction: str) -> str:
        """Return the prompt of an image editing model; for a `draw_instruction` it is the caption alone."""
        if draws(edit_instruction):
            return json.loads(edit_instruction.removeprefix(DRAW))
        return self.text("edit_t2i").replace("{edit_instruction}", " ".join(edit_instruction.split())).strip()

    @property
    def mark(self) -> str:
        """What an image editor adds to its id, which names its images, if the prompt of an image is not ours."""
        return "" if self.text("edit_t2i") == _read("edit_t2i") else f"&prompt={self.digest(['edit_t2i'])}"

    def digest(self, names: Sequence[str] = NAMES) -> str:
        """Return a digest of some prompts. Each record holds that of all RePair prompts: the wording that made it."""
        return digest({name: self.text(name) for name in names})


SHIPPED = Prompts()


def draw_instruction(caption: str) -> str:
    """Return the instruction that draws a new image from a caption, without looking at another image."""
    return f"{DRAW} {quote(caption)}"


def draws(instruction: str) -> bool:
    """Return whether an instruction asks for a new image, in place of an edit."""
    return instruction.startswith(DRAW)


def fit_instruction(caption: str) -> str:
    """Return the instruction that makes a caption true of an image."""
    return f"{FIT} {quote(caption)}"


def quote(text: str) -> str:
    """Quote a text as a JSON string literal on one line."""
    return _UNSEEN.sub(lambda letter: json.dumps(letter[0])[1:-1], json.dumps(text, ensure_ascii=False))


def _lines(label: str, value: str | list[str]) -> str:
    if isinstance(value, str):
        return f"{label} {quote(value)}"
    name = label.removesuffix(":")
    return "\n".join(f"{name} {number}: {quote(text)}" for number, text in enumerate(value, start=1))


def _fault(ours: str, text: str) -> str | None:
    """Return what a prompt lacks of ours: the keys of its answer, the line of dashes, the blanks."""
    needed = re.findall(r'"\w+"(?=:)', ours.split(DASHES)[0]) if DASHES in ours else re.findall(r"\{\w+\}", ours)
    if missing := [each for each in dict.fromkeys(needed) if each not in text]:
        return f"lacks {', '.join(missing)}"
    if text.count(DASHES) != (count := ours.count(DASHES)):
        return f"has {text.count(DASHES)} lines -----, not {count}"
    if count and (got := _blanks(text)) != (blanks := _blanks(ours)):
        return f"must end in lines of a label and {', '.join(blanks)}, got {', '.join(got) or 'none'}"
    return None


def _blanks(text: str) -> list[str]:
    """Return the blanks of the user message, sorted; a line that is no label and blank counts as itself."""
    lines = [line.strip() for line in text.split(DASHES)[1].splitlines() if line.strip()]
    return sorted(f"{{{found['blank']}}}" if (found := _LINE.fullmatch(line)) else line for line in lines)


@cache
def _template(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the system message, and label and blank of each line of the user message."""
    system, user = text.split(DASHES)
    lines = [_LINE.fullmatch(line.strip()) for line in user.splitlines()]
    return system.strip(), [(line["label"], line["blank"]) for line in lines if line]


@cache
def _shipped() -> tuple[str, ...]:
    names = (file.name for file in (files("repair_hf.llm") / "templates").iterdir())
    return tuple(sorted(name.removesuffix(".md") for name in names if name.endswith(".md")))


@cache
def _read(name: str) -> str:
    return (files("repair_hf.llm") / "templates" / f"{name}.md").read_text(encoding="utf-8")
