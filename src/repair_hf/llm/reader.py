"""Read the body of an answer, in OpenAI's shape or Gemini's: text, pictures, finish, usage, cost, error.

Fields of another type than expected count as missing: an answer that was paid for is not lost to an odd field beside
it. Only the counts of tokens are strict, because they decide the bill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MOST_TOKENS, MOST_DOLLARS = 10_000_000, 1_000  # of a request: more than any model takes

# What Gemini calls a block. `IMAGE_` may stand in front.
_BLOCKS = ("SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "MODEL_ARMOR", "LANGUAGE")
_FAILURES = ("error", "OTHER")  # the model's server failed, by the words of OpenRouter and of Gemini


@dataclass
class Tokens:
    """What an answer used. `cached` and `images_in` are parts of `prompt`, `images_out` of `completion`."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    images_in: int | None = None
    images_out: int | None = None


@dataclass
class Reading:
    """What stands in the body of an answer.

    Args:
        finish: `stop`, `length`, `content_filter`, `refusal`, or the provider's own word.
        word: The provider's own word for `finish`.
        pictures: In base 64; a draft is left out if a final picture follows.
        addresses: Where pictures are that the body does not hold.
        tokens: None if they are not reported, or impossible (`is_odd`).
        cost: In dollars, in the provider's own words.
        error: The error object, if the provider failed after it had accepted the request.
    """

    text: str = ""
    finish: str = "stop"
    word: str = ""
    pictures: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    tokens: Tokens | None = None
    is_odd: bool = False
    cost: float | None = None
    model: str = ""
    error: Any = None


def parse_body(body: bytes | str) -> Any:
    """Parse the JSON of a body; None if it is not JSON."""
    try:
        return json.loads(body.decode("utf-8", "replace") if isinstance(body, bytes) else body)
    except (ValueError, RecursionError):
        return None


def read_body(value: Any) -> Reading | None:
    """Read a parsed body; None if it has none of the shapes."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("choices"), list):
        found = _openai(value)
    elif isinstance(value.get("candidates"), list) or isinstance(value.get("promptFeedback"), dict):
        found = _gemini(value)
    elif isinstance(value.get("data"), list):
        found = _openai_images(value)
    elif value.get("error"):
        found = Reading(error=value["error"])
    else:
        return None
    found.model = _text(value.get("model") or value.get("modelVersion"))
    usage = _dict(value.get("usage")) or _dict(value.get("usageMetadata"))
    try:
        found.tokens = _tokens(usage)
    except ValueError:
        found.is_odd = True
    found.cost = _cost(usage)
    return found


def _openai(value: dict) -> Reading:
    if not value["choices"]:
        return Reading(finish="empty", error=value.get("error"))
    choice = _dict(value["choices"][0])
    message, word = _dict(choice.get("message")), _text(choice.get("finish_reason"))
    refusal = _text(message.get("refusal"))
    text = _text(message.get("content")) or refusal or _text(choice.get("text"))
    error = choice.get("error") or value.get("error")
    if word in _FAILURES:
        error = error or {"message": f"the answer ended with {word}", "code": 502}
    finish = "refusal" if refusal else word or "stop"
    urls = [_text(_dict(_dict(image).get("image_url")).get("url")) for image in _list(message.get("images"))]
    pictures = [url.partition(";base64,")[2] for url in urls if url.startswith("data:")]
    return Reading(text, finish, word, pictures, [url for url in urls if url[:4] == "http"], error=error)


def _openai_images(value: dict) -> Reading:
    images = [_dict(image) for image in value["data"]]
    pictures = [text for image in images if (text := _text(image.get("b64_json")))]
    addresses = [text for image in images if (text := _text(image.get("url")))]
    return Reading("", "stop" if pictures else "empty", "", pictures, addresses, error=value.get("error"))


def _gemini(value: dict) -> Reading:
    candidates = _list(value.get("candidates"))
    if not candidates:
        blocked = _text(_dict(value.get("promptFeedback")).get("blockReason"))
        return Reading(finish="content_filter" if blocked else "empty", word=blocked)
    candidate = _dict(candidates[0])
    word = _text(candidate.get("finishReason"))
    if word.removeprefix("IMAGE_") in _BLOCKS:
        finish = "content_filter"
    else:
        finish = {"STOP": "stop", "": "stop", "MAX_TOKENS": "length"}.get(word, word)
    parts = [_dict(part) for part in _list(_dict(candidate.get("content")).get("parts"))]
    text = "".join(_text(part.get("text")) for part in parts if part.get("thought") is not True)
    drawn = [(part.get("thought") is True, picture) for part in parts if (picture := _picture(part))]
    pictures = [picture for is_thought, picture in drawn if not is_thought] or [picture for _, picture in drawn]
    said = _text(candidate.get("finishMessage"))
    error = {"message": said or f"the answer ended with {word}", "code": 502} if word in _FAILURES else None
    return Reading(said or text if finish == "content_filter" else text, finish, word, pictures[-1:], error=error)


def _picture(part: dict) -> str:
    return _text(_dict(part.get("inlineData") or part.get("inline_data")).get("data"))


def _tokens(usage: dict) -> Tokens | None:
    """Read counts of tokens. Beyond prompt and completion the total holds what the model thought.

    Raises:
        ValueError: If one is impossible.
    """
    names = ("promptTokenCount", "prompt_tokens", "input_tokens"), ("candidatesTokenCount", "completion_tokens")
    prompt, completion = _count(usage, *names[0]), _count(usage, *names[1], "output_tokens")
    completion += _count(usage, "thoughtsTokenCount")
    total = _count(usage, "totalTokenCount", "total_tokens")
    if not prompt and not completion:
        return None
    details_in, details_out = _details(usage, "prompt", "input"), _details(usage, "candidates", "completion", "output")
    cached = _count(usage, "cachedContentTokenCount") or _count(details_in, "cached_tokens")
    found = Tokens(prompt, max(completion, total - prompt), cached, _part(details_in, prompt), _images(details_out))
    parts = (found.cached, found.images_in or 0, _count(details_in, "text_tokens"))
    if max(parts) > prompt or (found.images_out or 0) > completion or max(prompt, found.completion) > MOST_TOKENS:
        raise ValueError("the parts are more than the whole")
    return found


def _details(usage: dict, *names: str) -> dict:
    """Return counts by kind: those of OpenAI's, and of Gemini's list by modality."""
    for name in names:
        if isinstance(found := usage.get(f"{name}_tokens_details"), dict):
            return found
        listed = [_dict(each) for each in _list(usage.get(f"{name}TokensDetails"))]
        if listed:
            return {f"{_text(each.get('modality')).lower()}_tokens": each.get("tokenCount") for each in listed}
    return {}


def _part(details: dict, whole: int) -> int | None:
    """Return the tokens of images in a prompt; what is not said to be text counts as image."""
    texts = _count(details, "text_tokens")
    return max(_count(details, "image_tokens"), whole - texts) if texts else _images(details)


def _images(details: dict) -> int | None:
    return _count(details, "image_tokens") if details.get("image_tokens") is not None else None


def _count(usage: dict, *names: str) -> int:
    """Return the first of these counts that is given."""
    for name in names:
        if (value := usage.get(name)) is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_TOKENS:
                raise ValueError(f"{name} is {value!r}")
            return round(value)
    return 0


def _cost(usage: dict) -> float | None:
    """Return the cost in dollars, as OpenRouter sends it; with a key of one's own, the upstream provider's as well."""
    upstream = _dict(usage.get("cost_details")).get("upstream_inference_cost") if usage.get("is_byok") else None
    found = [cost for cost in (usage.get("cost"), upstream) if isinstance(cost, int | float)]
    is_cost = bool(found) and all(0 <= cost < MOST_DOLLARS and not isinstance(cost, bool) for cost in found)
    return float(sum(found)) if is_cost else None


def _text(value: Any) -> str:
    """Return a text, or that of a list of parts; half a surrogate pair, which cannot be sent, becomes a mark."""
    if isinstance(value, list):
        value = "".join(_text_parts(value))
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _text_parts(parts: list) -> Iterator[str]:
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []
