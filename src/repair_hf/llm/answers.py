"""Read and validate the answers of an LLM.

Every answer is checked against its schema, because not every provider enforces the requested format. An empty, cut-off
or malformed answer never counts as a verdict.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Schema = TypeVar("Schema", bound=BaseModel)

# Keywords of JSON schema that the strict mode of the OpenAI protocol supports. The rest (lengths, patterns) is checked
# in the answer; titles and descriptions would add instructions to the prompt.
_SHAPE = ("type", "properties", "items", "enum", "const", "anyOf", "$ref", "$defs")
_BEGIN = re.compile(r'\{\s*"')  # of a JSON object, in contrast to braces in prose


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
    """No answer came: the request was rejected, or every attempt at it failed. The next run asks again."""

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
    if finish in ("content_filter", "refusal"):
        raise RefusedAnswer(f"{finish}: {_shortened(text)}" if text else finish)
    if finish == "length":
        raise UnparsedAnswer("the answer was cut off at the limit of its length")
    if not text.strip():
        raise UnparsedAnswer("the answer was empty")
    if schema is None:
        return text.strip()
    begin, end = _BEGIN.search(text), text.rfind("}") + 1  # it may stand in a code fence, or within prose
    if begin is None or end == 0:
        raise UnparsedAnswer(f"the answer holds no JSON object; it was: {_shortened(text)}")
    try:
        return schema.model_validate_json(text[begin.start() : end], strict=True)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc'])) or 'answer'}: {fault['msg']}" for fault in error.errors())
        raise UnparsedAnswer(f"{'; '.join(faults)}; it was: {_shortened(text)}") from error


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


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")
