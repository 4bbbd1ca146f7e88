"""Keep keys out of messages, logs and settings, and commands to a terminal out of what is printed."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

SHORTEST_KEY = 16  # characters; a shorter value, such as `none`, is a placeholder and may occur anywhere
_SECRET_TEXT = re.compile(r"\b(hf_|sk-|AIza)[A-Za-z0-9_-]{16,}|(?<=://)[^/@\s]+(?=@)")  # by shape; user:password@host

_SECRET_NAME = re.compile(r"(^|_)(token|(zen)?api_?key|key|secret|password|bearer_token_bedrock)$")

_KEYS_IN_USE = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY"}  # more are noted by `use_keys`


def use_keys(names: Iterable[str]) -> None:
    """Note environment variables whose values are keys that this process uses."""
    _KEYS_IN_USE.update(names)


def without_secrets(text: str) -> str:
    """Hide the keys in use, and whatever has the shape of a key. For messages, logs and settings; not for answers."""
    for key in _keys_in_use():
        text = text.replace(key, "<hidden>")
    return _SECRET_TEXT.sub("<hidden>", text)


def hide_keys(value: Any) -> Any:
    """Hide keys in settings: lists and dictionaries of plain values. A value whose name is that of a key is hidden."""
    if isinstance(value, dict):
        return {k: "<hidden>" if v and _SECRET_NAME.search(k) else hide_keys(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hide_keys(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


_JOINERS = "\u200c\u200d"  # between letters of Persian and Indian scripts, and in emoji


def printable(text: str) -> str:
    """Escape what could command a terminal or change a page: control characters, line breaks, reversing marks.

    All text from outside passes here on its way to a terminal, a card or a figure.
    """
    return "".join(sign if _is_shown(sign) else sign.encode("unicode_escape").decode() for sign in text)


def _is_shown(sign: str) -> bool:
    return sign.isprintable() or sign in _JOINERS or unicodedata.category(sign) == "Zs"


def _keys_in_use() -> list[str]:
    values = (os.environ[name].strip() for name in _KEYS_IN_USE if name in os.environ)  # `get` is slow
    return [value for value in values if len(value) >= SHORTEST_KEY]
