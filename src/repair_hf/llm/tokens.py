"""Tokens that a request will be billed as, counted before it is sent.

In:  a model id and messages in the OpenAI chat format, images as data URLs.
Out: about how many tokens they are. Texts are counted by a tokenizer of OpenAI's, from which others differ by some percent; images by
     the rule that the model's provider publishes.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from PIL import Image

from repair_hf.llm.loading import load_litellm

PER_MESSAGE = 4  # what stands between messages


def count_tokens(model: str, messages: Sequence[Mapping[str, Any]]) -> int:
    """Tokens of all messages, their images included."""
    total = 0
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        total += PER_MESSAGE + sum(_part_tokens(model, part) for part in parts)
    return total


def text_tokens(text: str) -> int:
    """Tokens of a text."""
    return load_litellm().token_counter(model="", text=text)  # a model's own name could make it fetch a tokenizer


def image_tokens(model: str, width: int, height: int) -> int:
    """Tokens of an image of so many pixels.

    Gemini: tiles whose side is two thirds of the image's shorter one, and a single one up to 384 pixels. OpenAI: tiles of 512 pixels,
    or for the small models patches of 32. Others: patches of 28, as Claude and Qwen-VL have them.
    """
    name = model.lower()
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
    data = part["image_url"]["url"].partition(";base64,")[2]
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:  # reads the header only
        return image_tokens(model, *image.size)
