"""What the ledger knows of a call: what it is about, and the reply to it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

CALL = "key, state, prompt_tokens, completion_tokens, dollars, answered_by, reply, body"  # columns of `read_call`


class Topic(NamedTuple):
    """The labels of a call's row. `prompts` is the digest of the run's prompts; empty for an image."""

    stage: str
    direction: str
    model: str
    prompts: str = ""


class Reply(NamedTuple):
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


@dataclass
class Call:
    """A row of the ledger: `reply` is None until the call is answered or rejected; `body` is not read yet.

    `is_new` if this process has just paid for it.
    """

    key: str
    state: str
    reply: Reply | None = None
    body: bytes | None = None
    is_new: bool = False


def without_usage(reply: Reply) -> Reply:
    """Return the reply without its impossible usage, so that its worst case counts."""
    _warn_of_usage(reply.answered_by)
    return reply._replace(prompt_tokens=0, completion_tokens=0, dollars=None)


@cache  # once for each model
def _warn_of_usage(model: str) -> None:
    logger.warning("%s reports an impossible usage; such replies count as the most they may cost.", model)


def read_call(row: tuple[Any, ...]) -> Call:
    """Return the call of a row with the columns `CALL`."""
    key, state, *usage, packed, body = row
    return Call(key, state, packed and Reply(*json.loads(packed), *usage), body)


def packed(reply: Reply) -> str:
    """Return the text of a reply as the ledger keeps it."""
    return json.dumps([reply.text, reply.finish], ensure_ascii=False)


def format_dollars(amount: float | None) -> str:
    """Format an amount with two decimals; what they would show as nothing is below a cent."""
    if amount is None:
        return "unknown"
    return "<$0.01" if 0 < amount < 0.005 else f"${amount:,.2f}"
