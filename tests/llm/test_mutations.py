"""One odd field beside an answer loses nothing: mutations of one good body for each reader of a provider's bytes.

The rule: no traceback, nothing that arrived whole is bought again but once, and the bill is between what
the texts must have and what was set aside.
"""

from __future__ import annotations

import asyncio
import base64
import json
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import send_once
from provider_server import edited, png, said

from repair_hf.llm.batch_api import BatchAPI, Finished
from repair_hf.llm.batches import Batches
from repair_hf.llm.cost import price_per_token
from repair_hf.llm.errors import ProviderError, UnreadableBody
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.provider import read_reply
from repair_hf.llm.reader import parse_body
from repair_hf.llm.sending import Retries
from repair_hf.synthesis.hosted import _reply as read_image

WORST = 0.5
ODD = st.sampled_from(
    [None, True, False, -1, -0.5, 1.5, 10**18, 10**400, float("nan"), float("inf"), "", "12", [], {}, [None], [[1]]]
    + [{"a": {"b": None}}, "\ud800", "x" * 5000]
)
MUTATIONS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MODELS = {"openai": "openai/gpt-4o-mini", "gemini": "gemini/gemini-2.5-flash"}
EDITORS = {"openai": "openai/gpt-image-1", "gemini": "gemini/gemini-2.5-flash-image"}


def places(value, path=()):
    """Yield the path of every field of a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@st.composite
def mutated(draw, body: dict) -> bytes:
    body = deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(sorted(places(body), key=str)))
        holder = body
        for key in path:
            holder = holder[key]
        if draw(st.booleans()):
            holder[last] = deepcopy(draw(ODD))
        else:
            del holder[last]
        if not list(places(body)):
            break
    return json.dumps(body).encode()


def pay(read) -> tuple[Reply | None, float]:
    """Send once to a ledger; return the reply, if it can be read, and what the ledger counts."""

    async def main() -> tuple[Reply | None, float]:
        with Ledger() as ledger:
            try:
                call = await send_once(ledger, "key", send, worst=WORST)
            except ProviderError:
                return None, ledger.total[0]
            return call.reply, ledger.total[0]

    async def send() -> Reply:
        return read()

    return asyncio.run(main())


@pytest.mark.parametrize("shape", MODELS)
def test_a_mutated_answer(shape):
    price = price_per_token(MODELS[shape])
    least = min(price) * 1

    @MUTATIONS
    @given(mutated(said(shape, "It fits.")))
    def check(body: bytes) -> None:
        reply, dollars = pay(lambda: read_reply(parse_body(body), MODELS[shape]))
        assert 0 <= dollars <= WORST
        if reply is not None and reply.text:
            assert dollars >= least and reply.text.encode()
        if b'"It fits."' in body and b'"choices": [{"index": 0, "message": {"role": "assistant", "content"' in body:
            assert reply is not None  # an answer that is there is read

    check()


@pytest.mark.parametrize("shape", EDITORS)
def test_a_mutated_image(shape):
    whole = base64.b64encode(png())

    @MUTATIONS
    @given(mutated(edited(shape, png())))
    def check(body: bytes) -> None:
        reply, dollars = pay(lambda: read_image(parse_body(body), EDITORS[shape]))
        assert 0 <= dollars <= WORST
        if reply is not None and reply.text:
            assert dollars >= 0.001
        if shape == "openai" and b'"data": [{"b64_json": "' + whole in body:
            assert reply is not None and reply.text.encode() == whole

    check()


def test_a_mutated_line_of_a_batch():
    line = {"custom_id": "key", "response": {"status_code": 200, "body": said("openai", "It fits.")}, "error": None}
    api = BatchAPI(MODELS["openai"], base_url="http://127.0.0.1:9/v1", retries=Retries())

    @MUTATIONS
    @given(mutated(line))
    def check(odd: bytes) -> None:
        whole = json.dumps(line | {"custom_id": "good"}).encode()
        with Ledger() as ledger:
            for key in ("key", "good"):
                assert ledger.add(key, WORST, Topic("audit", "i2t", api.model), "submitted", "batch")
            answers = list(api._read(b"\n".join([odd, whole]).decode("utf-8", "replace")))
            Batches(api.model, ledger, base_url="http://127.0.0.1:9/v1")._settle("batch", Finished(answers, None), [])
            assert ledger.find("good").reply.text == "It fits." and ledger.total[0] <= 2 * WORST
            call = ledger.find("key")
            assert call is None or call.reply is not None

    check()


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b"<html>", b'{"a":' * 5000, b"\xff\xfe{", b'{"choices": {}}']
)
def test_what_has_no_shape_is_unreadable(body):
    with pytest.raises(UnreadableBody):
        read_reply(parse_body(body) or body, "openai/gpt-4o-mini")
