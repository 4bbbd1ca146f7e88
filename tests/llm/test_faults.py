"""Each row of the table of faults, in the shapes of OpenAI and Gemini, over HTTP on loopback."""

import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from ledgers import ledger_in, rows
from provider_faults import ROWS, Row, as_markdown
from provider_server import KEY, Script, Wire, error

from repair_hf.llm import paid_model
from repair_hf.llm.answers import FailedAnswer, RefusedAnswer, UnparsedAnswer
from repair_hf.llm.paid_model import Retries
from repair_hf.llm.provider import ProviderError
from tests.llm.asking import BILLS, GOOD, Verdict

CASES = [
    pytest.param(row, shape, id=f"{row.sent}-{shape}", marks=[pytest.mark.slow] * (shape != row.shapes[0]))
    for row in ROWS
    for shape in row.shapes
]
PATIENT = Retries(attempts=20, first_wait=0.01)  # a busy machine may not even send a request in 0.3 s
both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])
# What comes of a question whose provider sends the same for ever, and how many requests it takes with three attempts.
ENDS = {
    "retried": (FailedAnswer, 3),
    "all wait": (ProviderError, 3),
    "once more": (FailedAnswer, 2),
    "asked again": (UnparsedAnswer, 2),
    "refused": (RefusedAnswer, 1),
    "dropped": (FailedAnswer, 1),
    "stop": (ProviderError, 1),
}


@pytest.mark.parametrize(("row", "shape"), CASES)
def test_what_happens_and_what_is_counted(row: Row, shape, ask, tmp_path, monkeypatch):
    monkeypatch.setattr(paid_model, "MARGIN", 0.1)
    wire = row.wire(shape, GOOD)
    script = Script(wire, GOOD)
    end, requests = ENDS.get(row.then, (None, 1))
    if requests > 1 or row.then == "used":
        slow = {"first_timeout": 0.3, "asker": {"retries": PATIENT}} if wire.delay else {}
        answer, _ = ask(script, shape=shape, **slow)
        assert answer == Verdict(valid=True, reason="it fits")
        assert len(script.questions) == min(requests, 2)
    else:
        with pytest.raises(end) as caught:
            ask(script, shape=shape)
        message = wire.body["error"]["message"] if "error" in wire.body else ""
        assert message in str(caught.value) and "Exception" not in str(caught.value) and "{" not in str(caught.value)
        assert len(script.questions) == 1
    lost = rows(tmp_path, "lost")
    with ledger_in(tmp_path) as ledger:
        dollars, calls = ledger.total
    first = dollars - (BILLS[shape] if requests > 1 else 0.0)
    if row.bill == "worst":
        assert first == pytest.approx(sum(call["worst"] for call in lost or rows(tmp_path))) and first > 0
    else:
        usage = BILLS[shape] if row.sent != "a prompt that a filter stopped, with usage" else 1000 * 0.3e-6
        assert first == pytest.approx(usage if row.bill == "tokens" else 0.0) and not lost
    assert calls == len(lost) + len(rows(tmp_path))
    if requests > 1 and not wire.delay:
        script = Script(wire)
        with pytest.raises(end):
            ask(script, shape=shape, seed=1)
        assert len(script.questions) == requests


def test_the_documentation_shows_the_table():
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert as_markdown() in page, f"put this into docs/reliability.md:\n{as_markdown()}"


@both_shapes
def test_a_server_that_is_not_there_costs_nothing(shape, tmp_path, ask, provider_and_loop, monkeypatch):
    monkeypatch.setattr(provider_and_loop[0], "url", lambda shape: "http://127.0.0.1:9/v1")
    with pytest.raises(FailedAnswer, match="failed 3 times"):
        ask(Script(GOOD), shape=shape)
    assert not rows(tmp_path, "lost")


@both_shapes
def test_a_message_of_a_server_neither_commands_the_terminal_nor_shows_a_key(shape, ask):
    message = f"\x1b[2JIncorrect \u202ekey\x07: {KEY}, {quote(KEY)}"
    with pytest.raises(ProviderError, match="Incorrect") as caught:
        ask(Script(Wire(401, error(shape, 401, message))), shape=shape)
    shown = "".join(traceback.format_exception(caught.value))
    assert str(caught.value).isprintable() and "<hidden>" in shown and KEY not in shown
