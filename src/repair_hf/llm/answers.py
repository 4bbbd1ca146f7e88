"""Read and validate the answers of an LLM.

Every answer is checked against its schema, because not every provider enforces the requested format. An empty, cut-off
or malformed answer never counts as a verdict.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from repair_hf.llm.ledger import LEAKED_KEY, Reply
from repair_hf.runtime.redaction import holds_key
from repair_hf.runtime.texts import UnreadableText, end_of_json

Schema = TypeVar("Schema", bound=BaseModel)

# Keywords of JSON schema that the strict mode of the OpenAI protocol supports. The rest (lengths, patterns) is checked
# in the answer; titles and descriptions would add instructions to the prompt.
_SHAPE = ("type", "properties", "items", "enum", "const", "anyOf", "$ref", "$defs")

MORE_ROOM = 4  # factor for `max_tokens` when an answer was cut off

_OBJECT_BEGINS = re.compile(r'\{\s*"')


class AnswerError(Exception):
    """An answer is unusable: its row is dropped with `drop_reason`, and the run goes on."""

    drop_reason: str


class UnparsedAnswer(AnswerError):
    """The answer is empty, cut off, or does not match the schema."""

    drop_reason = "llm_unparsed"


class RefusedAnswer(AnswerError):
    """The model, or the provider's filter, refused to answer."""

    drop_reason = "llm_refused"


class FailedAnswer(AnswerError):
    """No answer came: every attempt at the request failed. The next run asks again."""

    drop_reason = "llm_failed"


@cache
def response_format(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the `response_format` of the OpenAI protocol for a schema. It is cached: do not modify it."""
    shape = _shape(schema.model_json_schema())
    return {"type": "json_schema", "json_schema": {"name": schema.__name__, "strict": True, "schema": shape}}


def read_answer(text: str, finish: str, schema: type[Schema] | None) -> Schema | str:
    """Read the JSON object in an answer, with strict types, or plain text without a schema.

    Raises:
        AnswerError: If the answer is unusable.
    """
    if finish == LEAKED_KEY:
        raise RefusedAnswer("the answer held an API key")
    if finish in ("content_filter", "refusal"):
        raise RefusedAnswer(f"{finish}: {_shortened(text)}" if text else finish)
    if finish == "length":
        raise UnparsedAnswer("the answer was cut off at the limit of its length")
    if not text.strip():
        raise UnparsedAnswer("the answer was empty")
    if schema is None:
        return text.strip()
    value = _parse(text, schema)
    if "\\" in text and holds_key(value.model_dump_json()):  # escapes hide a key from the check of the whole text
        raise RefusedAnswer("the answer held an API key")
    return value


def request_seed(seed: int, sample: int, *, attempt: int) -> int:
    """Return a 31-bit seed (what providers accept) that differs between samples and between attempts."""
    return zlib.crc32(f"{seed}/{sample}/{attempt}".encode()) >> 1


def next_attempt(request: dict[str, Any], max_tokens: int, reply: Reply, fault: UnparsedAnswer) -> dict[str, Any]:
    """Return the first request again, with what was wrong with the newest answer, which had so many tokens at most."""
    if reply.finish == "length":
        return request | {"max_tokens": max_tokens * MORE_ROOM}
    if not reply.text.strip():
        return request
    said = {"role": "assistant", "content": reply.text}
    wanted = "JSON object" if "response_format" in request else "text"
    complaint = f"This cannot be used: {fault}. Answer again with the {wanted} that was asked for, and nothing else."
    return request | {"messages": [*request["messages"], said, {"role": "user", "content": complaint}]}


def _shape(node: dict[str, Any]) -> dict[str, Any]:
    """Reduce a JSON schema to what strict mode supports: all properties required, no others allowed."""
    kept = {name: value for name, value in node.items() if name in _SHAPE}
    for name in ("properties", "$defs"):  # their keys are our names, not keywords
        if name in kept:
            kept[name] = {key: _shape(value) for key, value in kept[name].items()}
    if "items" in kept:
        kept["items"] = _shape(kept["items"])
    if "anyOf" in kept:
        kept["anyOf"] = [_shape(value) for value in kept["anyOf"]]
    if "properties" in kept:
        kept |= {"required": list(kept["properties"]), "additionalProperties": False}
    return kept


def _parse(text: str, schema: type[Schema]) -> Schema:
    """Validate the JSON objects in the text. Exactly one must match: of two that differ, neither can be trusted."""
    with suppress(ValidationError):  # mostly the text is nothing else
        return schema.model_validate_json(text, strict=True)
    found: list[Schema] = []
    faults: list[str] = []
    for piece in _objects(text):
        try:
            value = schema.model_validate_json(piece, strict=True)
        except ValidationError as error:
            faults.append("; ".join(f"{'.'.join(map(str, e['loc'])) or 'answer'}: {e['msg']}" for e in error.errors()))
        else:
            if value not in found:
                found.append(value)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnparsedAnswer(
            f"the answer holds {len(found)} JSON objects that contradict each other: {_shortened(text)}"
        )
    raise UnparsedAnswer(f"{faults[-1] if faults else 'the answer holds no JSON object'}; it was: {_shortened(text)}")


def _objects(text: str) -> Iterator[str]:
    """Yield the outermost JSON objects of a text: alone, in a code fence, or within prose."""
    at = text.find("{")
    while at >= 0:
        try:
            end = end_of_json(text, at)
        except UnreadableText:
            if _OBJECT_BEGINS.match(text, at):  # cut off or malformed: an object inside it is no answer
                return
            end = at + 1
        else:
            yield text[at:end]
        at = text.find("{", end)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")
