"""Keys of questions: digests of what is asked, not of how it is sent.

So an answer is found again after an upgrade of the library that encodes images, of LiteLLM's table of models, or of
the one that generates schemas.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

LONG = 1024  # characters; longer strings are hashed separately, which avoids escaping them as JSON

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class ImageURL(str):
    """A data URL of an image. `source` names what it shows: the image and its side, however it is encoded."""

    source: str

    def __new__(cls, url: str, *, source: str) -> ImageURL:
        self = super().__new__(cls, url)
        self.source = source
        return self


def question_key(messages: Sequence[Mapping[str, Any]], **asked: Any) -> str:
    """Return the key of a question: its messages, the model, how an answer is drawn, and which attempt this is."""
    return hashlib.sha256(_canonical([_fold(list(messages)), asked]).encode()).hexdigest()[:32]


def _fold(value: Any) -> Any:
    """Replace each image by its source, and each long text by its digest."""
    kind = type(value)  # faster than isinstance, and a question has dozens of values
    if kind is ImageURL:
        return ["image", value.source]
    if kind is str:
        return value if len(value) <= LONG else ["text", hashlib.sha256(value.encode()).hexdigest()]
    if kind is dict:
        return {key: _fold(item) for key, item in value.items()}
    return [_fold(item) for item in value] if kind is list else value
