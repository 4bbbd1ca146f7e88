"""Keys of questions: digests of what is asked, not of how it is sent.

So an answer is found again after an upgrade of the library that encodes images, of LiteLLM's table of models, or of
the one that generates schemas.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from threading import Lock
from typing import Any

_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class ImageURL(str):
    """Stands for an image in a question, and names what it shows: the image and its side, however it is encoded.

    `encode` makes its data URL once, when the question is sent (`as_sent`), so an answer that is kept needs no pixels.
    """

    _encode: Callable[[], str]
    _url: str
    _lock: Lock

    def __new__(cls, source: str, encode: Callable[[], str]) -> ImageURL:
        self = super().__new__(cls, source)
        self._encode, self._lock = encode, Lock()
        self._url = ""
        return self

    @property
    def url(self) -> str:
        """The data URL. Errors are those of `encode`."""
        with self._lock:
            self._url = self._url or self._encode()
        return self._url

    @property
    def is_encoded(self) -> bool:
        return bool(self._url)


def has_to_encode(value: Any) -> bool:
    """Return whether messages, or a part of them, have an image whose data URL is not made yet."""
    if type(value) is dict:
        value = list(value.values())
    if type(value) is list:
        return any(map(has_to_encode, value))
    return type(value) is ImageURL and not value.is_encoded


def as_sent(value: Any) -> Any:
    """Return messages, or a part of them, with the data URLs of their images."""
    kind = type(value)
    if kind is dict:
        return {key: as_sent(item) for key, item in value.items()}
    if kind is list:
        return [as_sent(item) for item in value]
    return value.url if kind is ImageURL else value


def question_key(messages: list[dict], **asked: Any) -> str:
    """Return the digest of a question: its messages, the model, and how it is sampled. An image counts by its name."""
    return hashlib.sha256(_json([messages, asked]).encode()).hexdigest()[:32]
