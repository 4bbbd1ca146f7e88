"""What a provider sent, what we do, and what we count as billed: one row each. `docs/synthesis.md` shows this table.

To add a row: describe the body, copy nothing. `then` is one of

- `answered`: the answer is used;
- `asked again`: after a wait, up to eight times;
- `once more`: asked once more, then dropped for this run;
- `refused`: the failure is dropped, for good;
- `stop`: the run stops at once; the same command goes on later.

`billed` is `usage` (by the tokens it reports), `highest` (its highest price) or `free`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from provider_server import Shape, Wire, edited, error, png, said

GOOD = '{"valid": true, "reason": "it fits"}'


class Row(NamedTuple):
    sent: str
    shape: Shape
    wire: Wire
    then: str
    billed: str


def openai(**changes: Any) -> Wire:
    return Wire(body=said("openai", GOOD) | changes)


def choice(**changes: Any) -> Wire:
    body = said("openai", GOOD)
    body["choices"][0] |= changes
    return Wire(body=body)


def usage(**counts: Any) -> Wire:
    body = said("openai", GOOD)
    return Wire(body=body | {"usage": body["usage"] | counts})


def gemini(finish: str = "STOP", *, text: str | None = GOOD, **changes: Any) -> Wire:
    body = said("gemini", text)
    body["candidates"][0]["finishReason"] = finish
    return Wire(body=body | changes)


def failed(status: int, message: str, code: str | None = None, shape: Shape = "openai") -> Wire:
    return Wire(status, error(shape, status, message, code))


PARTS = [{"type": "text", "text": GOOD[:9]}, {"type": "text", "text": GOOD[9:]}]
MIDWAY = {
    "finish_reason": "error",
    "message": {"role": "assistant", "content": ""},
    "error": {"code": 502, "message": "x"},
}
UPSTREAM, NO_KEY = (Wire(body={"error": {"code": code, "message": "no"}}) for code in (502, 401))
ROWS = [
    Row("an answer", "openai", openai(), "answered", "usage"),
    Row("`created` is a text", "openai", openai(created="today"), "answered", "usage"),
    Row("the name of the model is a number", "openai", openai(model=7), "answered", "usage"),
    Row("`service_tier` is a list", "openai", openai(service_tier=[]), "answered", "usage"),
    Row("the content is a list of parts", "openai", choice(message={"content": PARTS}), "answered", "usage"),
    Row("no finish", "openai", choice(finish_reason=None), "answered", "usage"),
    Row("the refusal is a list", "openai", choice(message={"content": GOOD, "refusal": []}), "answered", "usage"),
    Row("no usage", "openai", openai(usage=None), "answered", "highest"),
    Row("the usage is a list", "openai", openai(usage=[1]), "answered", "highest"),
    Row("a count of tokens is a text", "openai", usage(prompt_tokens="1000"), "answered", "highest"),
    Row("a count of tokens is a bool", "openai", usage(completion_tokens=True), "answered", "highest"),
    Row("a count of tokens is negative", "openai", usage(prompt_tokens=-5), "answered", "highest"),
    Row("fewer tokens than the text must have", "openai", usage(prompt_tokens=1), "answered", "highest"),
    Row("a choice that ends in an error", "openai", choice(**MIDWAY), "asked again", "highest"),
    Row("an error of the server, sent as a success", "openai", UPSTREAM, "asked again", "free"),
    Row("an error about the key, sent as a success", "openai", NO_KEY, "stop", "free"),
    Row("a web page, sent as a success", "openai", Wire(body=b"<html>"), "once more, then stop", "highest"),
    Row("an empty body", "openai", Wire(body=b""), "once more, then stop", "highest"),
    Row("no choices", "openai", openai(choices=[]), "once more", "usage"),
    Row("an empty text", "openai", choice(message={"content": ""}), "once more", "usage"),
    Row("an answer", "gemini", gemini(), "answered", "usage"),
    Row("a prompt that is blocked, without usage", "gemini", Wire(body={"promptFeedback": {"blockReason": "SAFETY"}}),
        "refused", "free"),
    Row("finish MODEL_ARMOR", "gemini", gemini("MODEL_ARMOR", text=None), "refused", "usage"),
    Row("finish PROHIBITED_CONTENT", "gemini", gemini("PROHIBITED_CONTENT", text=None), "refused", "usage"),
    Row("finish RECITATION", "gemini", gemini("RECITATION", text=None), "refused", "usage"),
    Row("finish OTHER, an internal error", "gemini", gemini("OTHER", text=None), "asked again", "highest"),
    Row("no candidates, and no block", "gemini", Wire(body={"candidates": []}), "once more", "highest"),
]  # fmt: skip


def drawn(**changes: Any) -> Wire:
    return Wire(body=edited("openai", png()) | changes)


def gemini_drew(finish: str = "STOP", *, parts: list[dict] | None = None, **usage: Any) -> Wire:
    body = edited("gemini", png())
    candidate = body["candidates"][0]
    candidate["finishReason"] = finish
    if parts is not None:
        candidate["content"]["parts"] = parts
    body["usageMetadata"] |= usage
    return Wire(body=body)


def picture(colour: str, **more: Any) -> dict:
    (_, part) = edited("gemini", png(colour=colour))["candidates"][0]["content"]["parts"]
    return part | more


DRAFT = [picture("blue", thought=True), picture("red")]
NO_DETAILS = {"input_tokens": 300, "output_tokens": 272, "total_tokens": 572}
IMAGE_ROWS = [
    Row("an image", "openai", drawn(), "answered", "usage"),
    Row("an image, whose `created` is a text", "openai", drawn(created="today"), "answered", "usage"),
    Row("an image, without `input_tokens_details`", "openai", drawn(usage=NO_DETAILS), "answered", "usage"),
    Row("an image, and the usage is a list", "openai", drawn(usage=[1]), "answered", "highest"),
    Row("an image, after a draft in a thought", "gemini", gemini_drew(parts=DRAFT), "answered", "usage"),
    Row("an image, and tokens of thinking", "gemini", gemini_drew(thoughtsTokenCount=400), "answered", "usage"),
    Row("no image, finish NO_IMAGE", "gemini", gemini_drew("NO_IMAGE", parts=[]), "once more", "usage"),
    Row("no image, finish IMAGE_OTHER", "gemini", gemini_drew("IMAGE_OTHER", parts=[]), "once more", "usage"),
    Row("text in place of an image", "gemini", gemini_drew(parts=[{"text": "Sorry."}]), "once more", "usage"),
    Row("no image, finish IMAGE_SAFETY", "gemini", gemini_drew("IMAGE_SAFETY", parts=[]), "refused", "usage"),
    Row("JSON that is no image", "openai", Wire(body={"result": "done"}), "once more, then stop", "highest"),
    Row("a web page in place of an image", "openai", Wire(body=b"<html>"), "once more, then stop", "highest"),
]


def as_markdown() -> str:
    """Return the table as the documentation shows it."""
    names = {"openai": "OpenAI's", "gemini": "Gemini's"}
    lines = ["| sent | protocol | what happens | counted as |", "|---|---|---|---|"]
    rows = ROWS + IMAGE_ROWS
    lines += [f"| {row.sent} | {names[row.shape]} | {row.then} | {BILLS[row.billed]} |" for row in rows]
    return "\n".join(lines) + "\n"


BILLS = {"usage": "its tokens", "highest": "its highest price", "free": "nothing"}
