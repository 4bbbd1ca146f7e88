"""Answers: what to ask for, and from what a model said to what was asked for, or to the reason why it cannot be used.

In:  the pydantic model that an answer must fill (or none, for plain text); the text of an answer, and why the model stopped.
Out: the form to ask for, and how to ask once more; the filled model, or the text, else `UnparsedAnswer` or `RefusedAnswer`. An empty,
     cut-off or malformed answer is never a verdict, whatever form was asked for: not every provider holds its model to it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from repair_hf.llm.journal import Entry

Schema = TypeVar("Schema", bound=BaseModel)

# What the strict form of the OpenAI protocol knows of JSON schema. The rest (lengths, patterns) is checked when the answer has come;
# titles and descriptions would be instructions beside the prompt.
_SHAPE = ("type", "properties", "items", "enum", "const", "anyOf", "$ref", "$defs")

MORE_ROOM = 4  # an answer that was cut off is asked for again with so many times the tokens

_OBJECT_BEGINS = re.compile(r'\{\s*"')

_decode = json.JSONDecoder().raw_decode


class AnswerError(Exception):
    """An answer that cannot be used: the fault of one row, which is dropped with `drop_reason`; the run goes on."""

    drop_reason: str


class UnparsedAnswer(AnswerError):
    """Empty, cut off, or not in the form that was asked for."""

    drop_reason = "llm_unparsed"


class RefusedAnswer(AnswerError):
    """The model or the provider's filter declined to answer."""

    drop_reason = "llm_refused"


class FailedAnswer(AnswerError):
    """None came: every attempt at the request failed."""

    drop_reason = "llm_failed"


@cache
def response_format(schema: type[BaseModel]) -> dict[str, Any]:
    """The form of answers that fill `schema`, as the OpenAI protocol asks for it. Equal for equal schemas; do not change it."""
    shape = _shape(schema.model_json_schema())
    return {"type": "json_schema", "json_schema": {"name": schema.__name__, "strict": True, "schema": shape}}


def read_answer(text: str, finish: str, schema: type[Schema] | None) -> Schema | str:
    """What an answer says.

    Args:
        text: The answer as it came.
        finish: Why the model stopped.
        schema: What the JSON object in the text must fill, its types taken strictly; None for plain text.

    Raises:
        AnswerError: If the answer cannot be used.
    """
    if finish in ("content_filter", "refusal", "rejected"):
        raise RefusedAnswer(f"{finish}: {_shortened(text)}" if text else finish)
    if finish == "length":
        raise UnparsedAnswer("the answer was cut off at the limit of its length")
    if not text.strip():
        raise UnparsedAnswer("the answer was empty")
    return text.strip() if schema is None else _parse(text, schema)


def request_seed(seed: int, sample: int, *, attempt: int) -> int:
    """A 31-bit number, which is what providers take, that differs between samples and between attempts."""
    return zlib.crc32(f"{seed}/{sample}/{attempt}".encode()) >> 1


def second_attempt(request: dict[str, Any], entry: Entry, fault: UnparsedAnswer) -> dict[str, Any]:
    """The request that follows one whose answer was of no use."""
    if entry.finish == "length":
        return request | {"max_tokens": request["max_tokens"] * MORE_ROOM}
    if not entry.text.strip():
        return request
    said = {"role": "assistant", "content": entry.text}
    complaint = (
        f"This cannot be used: {fault}. Answer again with the JSON object that was asked for, and nothing else."
    )
    return request | {"messages": [*request["messages"], said, {"role": "user", "content": complaint}]}


def _shape(node: Any) -> Any:
    """A JSON schema without what the strict form does not know; every property required, none beside them allowed."""
    if not isinstance(node, dict):
        return node
    kept = {name: value for name, value in node.items() if name in _SHAPE}
    for name in ("properties", "$defs"):  # their keys are names of ours, not of JSON schema
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
    """Of all JSON objects in the text, exactly one must be what was asked for: of two that differ, neither can be trusted."""
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
    """The outermost JSON objects of a text, wherever they stand: alone, in a code fence, amid prose."""
    at = text.find("{")
    while at >= 0:
        try:
            _, end = _decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            if _OBJECT_BEGINS.match(text, at):  # cut off or malformed: what lies inside it is no answer by itself
                return
            end = at + 1
        else:
            yield text[at:end]
        at = text.find("{", end)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")
