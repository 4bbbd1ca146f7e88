"""How many tokens a request will be billed as, before it is sent.

Texts are counted by a tokenizer of OpenAI's, which differs from others by a few percent; images by the rule that the
model's provider publishes.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Any

from PIL import Image

from repair_hf.llm.loading import load_litellm

PER_MESSAGE = 4  # separators between messages
GEMINI_3_IMAGE = 1_120  # of MEDIA_RESOLUTION_HIGH, the default for images

MARGIN = 1.1  # of a bill above our count


def count_tokens(model: str, messages: Sequence[Mapping[str, Any]]) -> int:
    """Count the tokens of all messages, images included."""
    parts = (part for message in messages for part in content_parts(message))
    return PER_MESSAGE * len(messages) + sum(_part_tokens(model, part) for part in parts)


class PromptSize:
    """How many tokens a prompt may be billed as: our count with a margin, corrected by every bill that exceeds it."""

    def __init__(self) -> None:
        self._factor = MARGIN

    def bound(self, count: int) -> int:
        """Return an upper bound of the tokens billed for a prompt of which we count so many."""
        return ceil(self._factor * count)

    def learn(self, count: int, billed: int) -> None:
        """Correct later bounds by what the provider counted."""
        self._factor = max(self._factor, billed / count)


@lru_cache(1024)
def text_tokens(text: str) -> int:
    """Count the tokens of a text; cached, because requests share their rules."""
    return load_litellm().token_counter(model="", text=text)  # a model's name could make it download a tokenizer


def image_tokens(model: str, width: int, height: int) -> int:
    """Count the tokens of an image of this size in pixels.

    - Gemini from version 3 on: as many as its default resolution has, whatever the size.
    - Gemini before: a single tile up to 384 pixels, else tiles with two thirds of the shorter side.
    - OpenAI: tiles of 512 pixels, or patches of 32 for small models.
    - Others: patches of 28, as in Claude and Qwen-VL.
    """
    name = model.lower()
    if "gemini" in name and load_litellm().VertexGeminiConfig.is_gemini_3_or_newer(name):
        return GEMINI_3_IMAGE  # LiteLLM asks for another resolution only where a message's image has a `detail`
    if "gemini" in name or name.startswith("world/"):
        if max(width, height) <= 384:
            return 258
        side = max(min(width, height) * 2 // 3, 1)
        return 258 * ceil(width / side) * ceil(height / side)
    if name.startswith(("openai/", "azure/")) or "gpt-" in name:
        return _openai_tokens(name, width, height)
    scale = min(1.0, 1568 / max(width, height))
    return ceil(width * scale / 28) * ceil(height * scale / 28)


def _openai_tokens(name: str, width: int, height: int) -> int:
    for part, per_patch in (("-nano", 2.46), ("o4-mini", 1.72), ("gpt-4.1-mini", 1.62), ("gpt-5-mini", 1.62)):
        if part in name:
            return ceil(min(ceil(width / 32) * ceil(height / 32), 1536) * per_patch)
    base, per_tile = (2833, 5667) if "gpt-4o-mini" in name else (70, 140) if "gpt-5" in name else (85, 170)
    scale = min(1.0, 2048 / max(width, height))
    scale *= min(1.0, 768 / (min(width, height) * scale))
    return base + per_tile * ceil(width * scale / 512) * ceil(height * scale / 512)


def _part_tokens(model: str, part: Mapping[str, Any]) -> int:
    if part["type"] == "text":
        return text_tokens(part["text"])
    with image_of(part) as image:
        return image_tokens(model, *image.size)


def content_parts(message: Mapping[str, Any]) -> list[dict]:
    """Return the parts of a message in the OpenAI chat format, whose content may also be a single text."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def text_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict]:
    """Return the texts among the parts of all messages."""
    return [part for message in messages for part in content_parts(message) if part["type"] == "text"]


def image_of(part: Mapping[str, Any]) -> Image.Image:
    """Open the image in a part of a message; its pixels are not decoded yet."""
    return Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(";base64,")[2])))
