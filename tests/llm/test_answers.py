"""How answers are read, the form that is asked for, and the keys of questions."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, StringConstraints

from repair_hf.llm.answers import AnswerError, RefusedAnswer, UnparsedAnswer, read_answer, response_format
from repair_hf.llm.keys import ImageURL, as_sent, has_to_encode, question_key


class Verdict(BaseModel):
    valid: bool
    reason: str = ""


class Rich(BaseModel):
    model_config = ConfigDict(extra="forbid")

    side: Literal["left", "right"]
    score: float


@pytest.mark.parametrize(
    "text",
    [
        '{"valid": false}',
        ' \n{"valid": false}\n ',
        '```json\n{"valid": false}\n```',
        '```\n{"valid":false}```',
        'I looked closely.\n{"valid": false}\nThat is all.',
        'The braces { and } mean nothing. Answer: {"valid": false}',
        'The caption {a red dog} does not fit {it}.\n{\n  "valid": false\n}',
    ],
)
def test_finds_the_object(text):
    assert read_answer(text, "stop", Verdict) == Verdict(valid=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "false",
        '{"valid": "no"}',
        '{"reason": "none"}',
        '{"valid": false',
        '{"verdict": {"valid": false}}',
        '{"draft": {"valid": false}, "valid": tr',
        '[{"valid": true}, {"valid": false}]',
        '{"valid": true} No, wait. {"valid": false}',
        '{"valid": false, "reason": 3}',
        "{" * 5000,
        '{"a":' * 5000,
    ],
)
def test_is_no_verdict(text):
    with pytest.raises(UnparsedAnswer):
        read_answer(text, "stop", Verdict)


def test_fault_names_the_field():
    with pytest.raises(UnparsedAnswer, match="side: Input should be 'left' or 'right'; score: .*number.*extra"):
        read_answer('{"side": "up", "score": "1", "extra": 1}', "stop", Rich)


@pytest.mark.parametrize("finish", ["content_filter", "refusal"])
@pytest.mark.parametrize("text", ["", '{"valid": true}'])
def test_refusal(finish, text):
    with pytest.raises(RefusedAnswer, match=finish) as caught:
        read_answer(text, finish, Verdict)
    assert caught.value.drop_reason == "llm_refused"


@pytest.mark.parametrize("schema", [Verdict, None])
def test_cut_off(schema):
    with pytest.raises(UnparsedAnswer, match="cut off") as caught:
        read_answer('{"valid": true}', "length", schema)
    assert caught.value.drop_reason == "llm_unparsed" and isinstance(caught.value, AnswerError)


def test_plain_text():
    assert read_answer(" two dogs\n", "stop", None) == "two dogs"
    with pytest.raises(UnparsedAnswer, match="empty"):
        read_answer(" \n", "stop", None)


class Inner(BaseModel):
    """Not for the model's eyes."""

    title: Annotated[str, StringConstraints(min_length=1, pattern="^[a-z]+$")]
    side: Literal["left", "right"] = "left"


class Outer(BaseModel):
    """Nor is this."""

    reason: str
    description: bool | None = None
    verdicts: list[Inner]


def test_form_is_what_strict_providers_take_and_what_fills_it_is_read():
    inner = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "side": {"type": "string", "enum": ["left", "right"]}},
        "required": ["title", "side"],
        "additionalProperties": False,
    }
    outer = {
        "$defs": {"Inner": inner},
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "description": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "verdicts": {"type": "array", "items": {"$ref": "#/$defs/Inner"}},
        },
        "required": ["reason", "description", "verdicts"],
        "additionalProperties": False,
    }
    asked = response_format(Outer)
    assert asked == {"type": "json_schema", "json_schema": {"name": "Outer", "strict": True, "schema": outer}}
    assert list(asked["json_schema"]["schema"]["properties"]) == ["reason", "description", "verdicts"]  # reasons first
    text = '{"reason": "r", "description": null, "verdicts": [{"title": "a", "side": "right"}]}'
    assert read_answer(text, "stop", Outer).verdicts == [Inner(title="a", side="right")]


# Keys: what was asked decides them, not how it was sent


def question(text: str, url: str, source: str) -> list[dict]:
    parts = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": ImageURL(source, lambda: url)}},
    ]
    return [{"role": "user", "content": parts}]


@pytest.mark.parametrize("text", ["", "a dog", 'é "\u2028"', "\0\U0001f436"])
def test_the_encoding_of_an_image_does_not_matter(text):
    keys = {question_key(question(text, url, "s"), model="m") for url in ("", "data:,", text, "data:image/png;é")}
    assert len(keys) == 1


def test_an_image_is_encoded_once():
    """The event loop waits for a thread only while there is something to encode."""
    messages = question("t", "data:,", "s")
    assert has_to_encode(messages) and not has_to_encode([{"role": "user", "content": "t"}])
    assert as_sent(messages) == as_sent(question("t", "data:,", "other")) and not has_to_encode(messages)


def test_all_else_matters():
    asked = {"model": "m", "temperature": 0.0, "max_tokens": 9, "seed": 0, "schema": "A"}
    others = {"model": "n", "temperature": 0.7, "max_tokens": 8, "seed": 1, "schema": "B"}
    keys = [question_key(question("t", "u", "s"), **asked)]
    keys += [question_key(question("t", "u", "s"), **asked | {name: value}) for name, value in others.items()]
    keys += [question_key(question(text, "u", source), **asked) for text, source in (("t" * 2000, "s"), ("t", "r"))]
    keys += [question_key(question("t" * 1999 + "u", "u", "s"), **asked)]
    assert len(set(keys)) == len(keys)


def test_keys_stay_so_that_paid_answers_are_found_again():
    asked = {"model": "m", "temperature": 0.0, "max_tokens": 9, "seed": 0, "schema": "A"}
    messages = [{"role": "system", "content": "Judge."}, *question('Q: "café"', "u", "ab/64")]
    messages[1]["content"].append({"type": "text", "text": "x" * 2000})
    assert question_key(messages, **asked) == "7ef315b29178b6cf9833ea18bbfa6773"
