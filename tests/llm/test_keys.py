"""Keys of questions: what was asked decides them, not how it was sent."""

from hypothesis import given
from hypothesis import strategies as st

from repair_hf.llm.keys import ImageURL, question_key

TEXT = st.text(max_size=20)


def question(text: str, url: str, source: str) -> list[dict]:
    parts = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": ImageURL(source, lambda: url)}},
    ]
    return [{"role": "user", "content": parts}]


@given(TEXT, TEXT, TEXT)
def test_the_encoding_of_an_image_does_not_matter(text, first, second):
    assert question_key(question(text, first, "s"), model="m") == question_key(question(text, second, "s"), model="m")


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
