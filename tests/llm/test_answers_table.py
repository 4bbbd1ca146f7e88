"""Each row of the table of answers, over HTTP on loopback; and the documentation that shows the table."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ledgers import ledger_in, rows, send_once
from provider_server import Script, Wire

from repair_hf.llm.answers import RefusedAnswer
from repair_hf.llm.client import ChatModel
from repair_hf.llm.cost import price_per_token
from repair_hf.llm.errors import FailedRequest, PassingError, ProviderError
from repair_hf.llm.provider import KEEP
from tests.llm.answers_table import GOOD, ROWS, Row, as_markdown
from tests.llm.asking import PRICED, QUESTION, Verdict

MODELS = {"openai": PRICED, "gemini": "gemini/gemini-2.5-flash"}
PRICES = {"openai": (0.15e-6, 0.6e-6), "gemini": (0.3e-6, 2.5e-6)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.shape}: {row.sent}")
def test_what_happens_when_a_provider_sends_this(row: Row, ask, tmp_path):
    script = Script(row.wire, GOOD)
    is_answered = row.then in ("answered", "asked again", "once more", "once more, then stop")
    if is_answered:
        assert ask(script, model=MODELS[row.shape], shape=row.shape)[0] == Verdict(valid=True, reason="it fits")
    else:
        with pytest.raises(RefusedAnswer if row.then == "refused" else ProviderError):
            ask(script, model=MODELS[row.shape], shape=row.shape)
    is_once = row.then in ("answered", "refused", "stop")
    assert len(script.questions) == (1 if is_once else 2)
    with ledger_in(tmp_path) as ledger:
        dollars, _ = ledger.total
    usage = 1000 * PRICES[row.shape][0] + 100 * PRICES[row.shape][1]
    worst = max((call["worst"] for state in ("answered", "lost") for call in rows(tmp_path, state)), default=0.0)
    first = dollars - (0.0 if is_once else usage)
    if row.billed == "highest":
        assert first == pytest.approx(worst) and first > 0
    else:
        assert first == pytest.approx(usage if row.billed == "usage" else 0.0)
    if row.then == "once more, then stop":
        with pytest.raises(ProviderError, match="cannot be read"):
            ask(Script(row.wire), model=MODELS[row.shape], shape=row.shape, seed=1)


def test_the_documentation_shows_the_table():
    page = (Path(__file__).parents[2] / "docs" / "synthesis.md").read_text(encoding="utf-8")
    assert as_markdown() in page, f"put this into docs/synthesis.md:\n{as_markdown()}"


CLAUDE_SAYS = {
    "id": "1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": GOOD}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1000, "output_tokens": 100},
}


@pytest.mark.parametrize("model", [PRICED, "anthropic/claude-sonnet-4-5"])
def test_a_body_that_a_killed_process_has_received_is_read_and_not_asked_for(model, with_chat, tmp_path, monkeypatch):
    """The process dies between the body and the reply: its ledger is closed before the row is answered."""
    script = Script(GOOD if model == PRICED else Wire(body=CLAUDE_SAYS))
    price_in, price_out = price_per_token(model)
    answered = "repair_hf.llm.ledger.Ledger.answer"

    async def ask_once(chat: ChatModel):
        return await chat.ask(QUESTION, stage="audit", direction="i2t", schema=Verdict)

    def die(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(answered, die)
        patch.setattr("repair_hf.llm.ledger.Ledger.give_up", lambda *_, **__: None)
        with pytest.raises(asyncio.CancelledError):
            with_chat(script, ask_once, model)
    (received,) = rows(tmp_path, "received")
    assert b"it fits" in received["body"] and received["worst"] > 0
    assert with_chat(script, ask_once, model).valid and len(script.questions) == 1
    (row,) = rows(tmp_path)
    assert row["body"] is None and row["dollars"] == pytest.approx(1000 * price_in + 100 * price_out)


def test_a_body_that_nothing_can_read_is_kept_but_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key-0123456789")

    async def pay(ledger, key: str, body: bytes) -> None:
        async def send():
            KEEP.get()(body)
            raise PassingError("no shape", may_be_billed=True)

        with pytest.raises(FailedRequest):
            await send_once(ledger, key, send)

    with ledger_in(tmp_path) as ledger:
        asyncio.run(pay(ledger, "a", b"<html>"))
        asyncio.run(pay(ledger, "b", b"<html>planted-key-0123456789"))
    assert [row["body"] for row in rows(tmp_path, "lost")] == [b"<html>", None]
