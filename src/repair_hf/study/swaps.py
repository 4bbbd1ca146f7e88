"""Named swaps: the models of RePair with another LLM or image editor, each a method of the study."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from repair_hf.runtime.command_line import parse
from repair_hf.runtime.options import UserError, changed, flags
from repair_hf.synthesis.models import find_editor, find_llm
from repair_hf.synthesis.options import EditorOptions, LLMOptions

# the toy world's own: the study's LLM and editor with these rates, and the editor that never errs
WEAK_LLM, WEAK_EDITOR, PERFECT_EDITOR = "keeps_bad=0.2&rejects_good=0.2", "drift=0.3", "world"
TOY_SWAPS = ("weak-editor", "weak-llm", "perfect-editor")


@dataclass(frozen=True)
class Models:
    """An LLM and an image editor."""

    llm: LLMOptions
    editor: EditorOptions


def settle_swaps(given: dict[str, Any], models: Models, *, is_toy: bool) -> dict[str, Models]:
    """Return the models of each swap: those of the study, with the options that differ.

    Raises:
        UserError: If a name or an option cannot be used.
    """
    return {name: _swapped(name, own, models) for name, own in ((_of_toy(models) if is_toy else {}) | given).items()}


def _of_toy(models: Models) -> dict[str, Any]:
    (llm_place, llm), (editor_place, editor) = find_llm(models.llm), find_editor(models.editor)
    own: dict[str, Any] = {}
    if editor_place == "world":
        own["weak-editor"] = {"editor": f"{editor.partition('?')[0]}?{WEAK_EDITOR}"}
    if llm_place == "world":
        own["weak-llm"] = {"llm": f"{llm.partition('?')[0]}?{WEAK_LLM}"}
    return own | {"perfect-editor": {"editor": PERFECT_EDITOR}}


def _swapped(name: str, own: Any, models: Models) -> Models:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"`swaps` has {name!r}, and each name becomes a method; use letters, digits and dashes.")
    if not isinstance(own, Mapping):
        raise UserError(f"`swaps` {name} has {own!r}; give its options by name, such as `llm: openai/gpt-4o`.")
    if taken := [each for each in ("max_usd", "max_calls") if each in own]:
        raise UserError(f"`swaps` {name} has `{taken[0]}`, which is one for all methods; give it beside `swaps`.")
    llm, editor = models.llm, models.editor
    if _provider(own.get("llm", llm.llm)) != _provider(llm.llm):  # the other provider is not at this address
        llm = replace(llm, llm_base_url=None)
    if _provider(own.get("editor", editor.editor)) != _provider(editor.editor):
        editor = replace(editor, editor_base_url=None)
    try:
        found = parse(
            (LLMOptions, EditorOptions),
            [*flags(changed(llm)), *flags(changed(editor)), *flags(own)],
            "repair-hf study",
        )
    except UserError as error:
        raise UserError(f"`swaps` {name}: {error}") from error
    return Models(*found)


def _provider(id: str) -> str:
    return id.removeprefix("litellm:").partition("/")[0]
