"""Build chat messages from prompt templates: one Markdown file per stage and direction, filled by Jinja.

A template holds the system message, a line of dashes, and the lines of the user message. Rules come first, and images
before captions, so that a provider can cache the beginning of a request. The files of a folder may replace ours, and
notes on the domain may be added to all prompts (`Prompts`).

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
from typing import Any, Literal, TypeGuard

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest

NAMES = ("audit_i2t", "audit_t2i", "instruct_i2t", "instruct_t2i", "edit_i2t", "edit_t2i", "check")

DASHES = "\n-----\n"  # between the system message and the lines of the user message

DRAW = "Draw from this text alone:"
FIT = "Make this true of the image, by as small a change as will do:"

IMAGE = "_image"  # ending of a field that takes an image
WORDINGS = {"audit", "always_instruct"}  # what a template may depend on beside its fields

# What json.dumps does not escape: other line breaks and control characters, bidirectional marks, invisible tags, and
# halves of surrogate pairs, which cannot be sent.
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f\ud800-\udfff]")

_literal = json.JSONEncoder(ensure_ascii=False).encode

# In a sandbox, because a folder of prompts may come from a stranger.
_JINJA = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)


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
        UserError: If a file of the folder is no template, lacks a field of ours, or uses an unknown field.
    """

    folder: str | Path | None = None
    notes: str | None = None
    audit: Literal["strict", "lenient"] = "strict"
    always_instruct: bool = False

    def __post_init__(self) -> None:
        self.own  # noqa: B018  # a wrong file is an error before anything is asked

    @cached_property
    def own(self) -> dict[str, str]:
        """The templates of the folder, by name."""
        if self.folder is None:
            return {}
        paths = {path.stem: path for path in sorted(Path(self.folder).glob("*.md"))}
        if not paths or (unknown := set(paths) - set(_shipped())):
            got = f"{sorted(unknown)}" if paths else "none"
            names = ", ".join(f"{name}.md" for name in _shipped())
            raise UserError(f"`prompts` {self.folder} must hold prompts named as ours, got {got}; ours are {names}.")
        templates = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
        for name, template in templates.items():
            if fault := self._fault_of(name, template):
                raise UserError(f"The prompt {paths[name]} {fault}; copy from our {name}.md.")
        return templates

    def text(self, name: str) -> str:
        """The text of a prompt as it is sent, with the name of each field in braces."""
        return self._render(name, _names(name))

    def chat(self, name: str, **fields: str) -> list[dict]:
        """Build the messages of one request, in the OpenAI chat format.

        Args:
            name: Name of the prompt, such as `audit_i2t`.
            fields: Values of the template's fields. A field that ends in `_image` takes a data URL. Any other takes a
                text, which is quoted.
        """
        urls = {f"{{{field}}}": value for field, value in fields.items() if field.endswith(IMAGE)}
        values = {field: quote(value) for field, value in fields.items() if not field.endswith(IMAGE)}
        system, user = self._render(name, {url[1:-1]: url for url in urls} | values).split(DASHES)
        parts: list[dict] = []
        for line in filter(None, map(str.strip, user.split("\n"))):
            label, _, end = line.rpartition(" ")
            if end in urls:  # no caption is taken for an image: the line of a caption ends in a quotation mark
                parts.append({"type": "text", "text": label})
                parts.append({"type": "image_url", "image_url": {"url": urls[end]}})
            elif parts and parts[-1]["type"] == "text":  # some servers join text parts without a line break
                parts[-1]["text"] += f"\n{line}"
            else:
                parts.append({"type": "text", "text": line})
        return [{"role": "system", "content": system.strip()}, {"role": "user", "content": parts}]

    def image(self, edit_instruction: str) -> str:
        """Return the prompt of an image editing model; for a `Drawing` it is the caption alone."""
        if draws(edit_instruction):
            return edit_instruction.caption
        return self._render("edit_t2i", {"edit_instruction": " ".join(edit_instruction.split())}).strip()

    @property
    def mark(self) -> str:
        """What an image editor adds to its id, which names its images, if the prompt of an image is not ours."""
        return "" if self.text("edit_t2i") == SHIPPED.text("edit_t2i") else f"&prompt={self.digest(['edit_t2i'])}"

    def digest(self, names: Sequence[str] = NAMES) -> str:
        """Return a digest of some prompts. Each record holds that of all RePair prompts: the wording that made it."""
        return digest({name: self.text(name) for name in names})

    def _render(self, name: str, fields: dict[str, Any], source: str | None = None) -> str:
        """Fill a template: ours, the user's of this name, or `source`."""
        template = _template(source or self.own.get(name) or _read(name))
        wording = {"audit": self.audit, "always_instruct": self.always_instruct}
        text, note = template.render(fields | wording), " ".join((self.notes or "").split())
        if not note:
            return text
        if DASHES not in text:
            return f"{text.rstrip()}\n{note}\n"
        system, user = text.split(DASHES)
        return f"{system.rstrip()}\n\nAbout this domain: {note}{DASHES}{user}"

    def _fault_of(self, name: str, source: str) -> str | None:
        """Say what is wrong with a template of the user's: what it lacks of ours, or why it cannot be filled."""
        ours = _read(name)
        if source.count(DASHES) != ours.count(DASHES):
            return f"has {source.count(DASHES)} lines -----, not {ours.count(DASHES)}"
        try:
            needed, variables = _variables(ours), _variables(source)
            text = self._render(name, _names(name), source)
        except (TemplateError, TypeError) as error:  # the second one if it includes another file
            return f"cannot be filled: {' '.join(str(error).split())[:200]}"
        if missing := [f"{{{{ {field} }}}}" for field in sorted(needed - variables - WORDINGS)]:
            return f"lacks {', '.join(missing)}"
        for field in sorted(needed):
            if field.endswith(IMAGE) and not re.search(rf" {{{field}}} *$", text, re.MULTILINE):
                return f"has no line that ends in a space and {{{{ {field} }}}}"
        return None


SHIPPED = Prompts()


class Drawing(str):
    """An instruction to draw a new image of a caption, without looking at another image.

    The type makes it a drawing, not the words: an LLM may write an instruction that begins with the same words.
    """

    caption: str

    def __new__(cls, caption: str) -> Drawing:
        drawing = super().__new__(cls, f"{DRAW} {quote(caption)}")
        drawing.caption = caption
        return drawing


def draws(instruction: str) -> TypeGuard[Drawing]:
    """Return whether an instruction asks for a new image, in place of an edit."""
    return isinstance(instruction, Drawing)


def fit_instruction(caption: str) -> str:
    """Return the instruction that makes a caption true of an image."""
    return f"{FIT} {quote(caption)}"


def quote(text: str) -> str:
    """Quote a text as a JSON string literal on one line."""
    return _UNSEEN.sub(lambda letter: json.dumps(letter[0])[1:-1], _literal(text))


@cache
def _template(source: str) -> Template:
    template = _JINJA.from_string(source)
    template.globals = dict(template.globals)  # in the place of a ChainMap, which is slow
    return template


@cache
def _variables(source: str) -> set[str]:
    """Return the names that a template takes."""
    return meta.find_undeclared_variables(_JINJA.parse(source))


def _names(name: str) -> dict[str, Any]:
    """Return the name of each field of a prompt in braces, as a value of that field."""
    return {field: f"{{{field}}}" for field in _variables(_read(name)) - WORDINGS}


@cache
def _shipped() -> tuple[str, ...]:
    names = (file.name for file in (files("repair_hf.llm") / "templates").iterdir())
    return tuple(sorted(name.removesuffix(".md") for name in names if name.endswith(".md")))


@cache
def _read(name: str) -> str:
    return (files("repair_hf.llm") / "templates" / f"{name}.md").read_text(encoding="utf-8")
