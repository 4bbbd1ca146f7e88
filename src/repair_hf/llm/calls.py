"""What the ledger knows of a call: what it is about, and the reply to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

CALL = "key, state, prompt_tokens, completion_tokens, dollars, answered_by, reply"  # columns of `read_call`


@dataclass(frozen=True)
class Reply:
    """The reply to one request.

    Args:
        text: The answer; of an edited image, the name of its file.
        finish: Why the model stopped: `stop`, `length`, `content_filter`, `refusal` or another word of the provider.
        prompt_tokens: 0 if the provider did not report them.
        completion_tokens: 0 if not reported.
        dollars: The bill; None if it is not known.
        answered_by: Model that answered, in the provider's words.
    """

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    answered_by: str


class Topic(NamedTuple):
    """What a call is about: its row's labels.

    Args:
        calls: How much it counts against a ceiling on LLM answers: 1, or 0 for an image.
        prompts: Digest of the prompts of the run; empty for an image.
    """

    stage: str
    direction: str
    model: str
    calls: int = 1
    prompts: str = ""


@dataclass
class Call:
    """A row of the ledger: `reply` is None until the call is answered or rejected."""

    key: str
    state: str
    reply: Reply | None = None


def read_call(row: tuple[Any, ...]) -> Call:
    """Return the call of a row with the columns `CALL`."""
    key, state, prompt_tokens, completion_tokens, dollars, answered_by, packed = row
    if packed is None:
        return Call(key, state)
    text, finish = json.loads(packed)
    return Call(key, state, Reply(text, finish, prompt_tokens, completion_tokens, dollars, answered_by))


def packed(reply: Reply) -> str:
    """Return the text of a reply as the ledger keeps it."""
    return json.dumps([reply.text, reply.finish], ensure_ascii=False)
