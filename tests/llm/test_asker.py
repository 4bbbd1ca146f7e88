"""An `Asker` against a scripted provider over HTTP: answers, attempts, prices, replay, the circuit, an early stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial

import pytest
from ledgers import ledger_in, rows
from provider_server import KEY, Script, Wire, error, said

from repair_hf.llm.answers import UnparsedAnswer
from repair_hf.llm.asker import Asker
from repair_hf.llm.cost import paid_in
from repair_hf.llm.ledger_file import FILE
from repair_hf.llm.provider import THINKING_TOKENS
from repair_hf.runtime.options import UserError
from tests.llm.asking import BILLS, GOOD, QUESTION, Verdict, texts

BUSY = Wire(429, error("openai", 429, "slow down"))
BROKEN = Wire(500, error("openai", 500, "boom"))
REJECTED = Wire(400, error("openai", 400, "too large"))


# What is asked, and how an answer is taken


def test_a_question_is_sent_as_it_is_and_its_answer_counted(ask):
    script = Script(GOOD)
    answer, usage = ask(script, temperature=0.5, max_tokens=77, seed=3)
    assert answer == Verdict(valid=True, reason="it fits")
    assert (usage.calls, usage.replayed, usage.unpriced) == (1, 0, 0)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.dollars) == (1000, 100, pytest.approx(BILLS["openai"]))
    body = script.bodies[0]
    assert body["messages"] == QUESTION and body["temperature"] == 0.5 and body["max_tokens"] == 77
    assert 0 <= body["seed"] < 2**31 and KEY in script.questions[0].headers["authorization"]


def test_an_unusable_answer_is_asked_again_with_the_complaint_and_another_seed(ask):
    faulty = '{"valid": "yes", "reason": "it fits"}'
    script = Script(faulty, GOOD)
    answer, usage = ask(script)
    assert answer.valid and usage.calls == 2
    first, second = script.bodies
    asked, answered, complaint = second["messages"]
    assert asked == QUESTION[0] and answered == {"role": "assistant", "content": faulty}
    assert "valid" in complaint["content"] and "boolean" in complaint["content"] and first["seed"] != second["seed"]


def test_what_was_answered_is_never_paid_again_and_more_attempts_ask_on(ask):
    script = Script("no JSON", "", GOOD, "not reached")
    with pytest.raises(UnparsedAnswer, match="empty"):
        ask(script)
    with pytest.raises(UnparsedAnswer, match="empty"):
        ask(script)
    assert len(script.bodies) == 2
    answer, usage = ask(script, asker={"answer_attempts": 3})
    assert answer.valid and (usage.calls, usage.replayed) == (1, 2)
    again, usage = ask(script, asker={"answer_attempts": 3})
    assert again == answer and (usage.calls, usage.replayed, usage.dollars) == (0, 3, 0.0)
    assert len(script.bodies) == 3


def test_an_answer_that_was_cut_off_gets_more_room_and_a_model_that_thinks_too(ask):
    script = Script(Wire(body=said("openai", GOOD, "length")), GOOD)
    assert ask(script, max_tokens=50)[0].valid
    assert [body["max_tokens"] for body in script.bodies] == [50, 200]
    script = Script(GOOD)
    for effort in (None, "minimal", "low", "low"):
        ask(script, model="openai/gpt-5-mini", max_tokens=50, asker={"reasoning_effort": effort})
    assert [body.get("reasoning_effort") for body in script.bodies] == [None, "minimal", "low"]
    assert script.bodies[0]["max_completion_tokens"] == 50 + THINKING_TOKENS


def test_equal_questions_share_a_payment_and_samples_do_not(with_asker):
    async def work(asker, samples):
        asker.ledger.database.set_trace_callback(lambda statement: looks.append(statement.startswith("SELECT text")))
        asked = (asker.ask(QUESTION, stage="edit", direction="i2t", sample=sample) for sample in samples)
        return await asyncio.gather(*asked), asker.usage["edit", "i2t"], asker.ledger.total[1]

    looks: list[bool] = []
    script = Script("a", "b", "c", "not reached")
    same, usage, kept = with_asker(script, partial(work, samples=[0] * 5))
    assert same == ["a"] * 5 and (usage.calls, usage.replayed, kept, len(script.bodies)) == (1, 4, 1, 1)
    for calls in (2, 0):
        looks.clear()
        answers, usage, _ = with_asker(script, partial(work, samples=range(3)))
        assert answers[0] == "a" and sorted(answers) == ["a", "b", "c"] and usage.calls == calls
        assert sum(looks) == 3  # once for each question
    assert len({body["seed"] for body in script.bodies}) == 3


@pytest.mark.parametrize("takes_schema", [True, False])
def test_an_unknown_server_is_asked_for_a_schema_once_and_again_only_if_it_takes_it(with_asker, takes_schema):
    def answer(question) -> str | Wire:
        forms.append("response_format" in question.body)
        return GOOD if takes_schema or not forms[-1] else REJECTED

    async def work(asker):
        ask = partial(asker.ask, stage="a", direction="t2i", schema=Verdict)
        return await ask(texts(0, 1)[0]), *await asyncio.gather(*map(ask, texts(1, 8)))

    forms: list[bool] = []
    assert all(verdict.valid for verdict in with_asker(answer, work, "openai/my-model"))
    assert forms == ([True] * 8 if takes_schema else [True] + [False] * 8)


def test_a_key_stands_in_no_column_of_settings_though_an_answer_may_hold_it(ask, tmp_path):
    body = said("openai", f"the key is {KEY}, half an emoji \ud83d") | {"model": f"m-{KEY}"}
    answer, _ = ask(Script(Wire(body=body)), schema=None)
    assert KEY in answer
    (row,) = rows(tmp_path)
    assert KEY in row.pop("text") and row["answered_by"] == "m-<hidden>" and KEY not in str(row)


def test_an_unreadable_reply_is_asked_once_more_whatever_came_before(ask):
    script = Script(BROKEN, Wire(body=b"<html>"), GOOD)
    assert ask(script)[0].valid and len(script.questions) == 3


# What it costs


def test_a_stated_price_belongs_to_the_call_that_states_it(ask, tmp_path):
    model = "openai/mine"
    with ledger_in(tmp_path, max_usd=1.0) as ledger, pytest.raises(UserError, match="no list price.*--price"):
        Asker(model, ledger)
    script, dollars = Script(GOOD), []
    for seed, price in enumerate([(0.0, 0.0), (1e-6, 2e-6), (2e-6, 4e-6), None]):
        dollars.append(ask(script, model=model, seed=seed, asker={"price": price})[1].dollars)
    assert dollars == [0.0, pytest.approx(1200e-6), pytest.approx(2400e-6), 0.0]
    reserved = [row["worst"] for row in rows(tmp_path)]
    assert reserved[0] == 0.0 and 1024 * 2e-6 < reserved[1] < 1100 * 2e-6 < 1024 * 4e-6 < reserved[2]
    assert paid_in(tmp_path / FILE)["audit", "i2t"].unpriced == 1  # the last one
    with ledger_in(tmp_path, max_usd=1.0) as ledger, pytest.raises(UserError, match="no list price"):
        Asker(model, ledger)


def test_a_deployment_that_answers_as_a_dearer_model_is_reserved_and_billed_as_that(with_asker, tmp_path, caplog):
    dearer = 1000 * 2.5e-6 + 100 * 10e-6

    async def work(asker):
        before = asker.worst({"messages": QUESTION, "max_tokens": 100})
        for question in texts(0, 2):
            await asker.ask(question, stage="audit", direction="i2t")
        return asker.worst({"messages": QUESTION, "max_tokens": 100}) / before

    gpt_4o = Wire(body=said("openai", "yes") | {"model": "gpt-4o-2024-08-06"})
    with caplog.at_level(logging.WARNING, "repair_hf"):
        assert with_asker(Script(gpt_4o), work) == pytest.approx(2.5 / 0.15, rel=0.02)
    assert [row["dollars"] for row in rows(tmp_path)] == [pytest.approx(dearer)] * 2
    assert [record.getMessage().count("dearer") for record in caplog.records] == [1]


def test_a_model_without_a_list_price_costs_what_the_provider_reports(ask):
    for seed, (cost, dollars) in enumerate([(0.25, 0.25), (0, 0.0), ("1", 0.0)]):
        body = said("openai", GOOD)
        body["usage"]["cost"] = cost
        _, usage = ask(Script(Wire(body=body)), model="openai/my-model", seed=seed)
        assert usage.dollars == dollars and usage.unpriced == (cost == "1")


# What happens when a run stops early


@pytest.mark.parametrize("is_cancelled", [False, True])  # an answer is kept though nobody waits for it
@pytest.mark.parametrize("reply", [GOOD, "no JSON", BROKEN])  # the last two would be followed by another request
def test_drain_keeps_what_is_being_paid_and_gives_up_the_rest(with_asker, reply, is_cancelled):
    end_of_thinking = threading.Event()
    script = Script(lambda: end_of_thinking.wait(60) and reply)

    async def work(asker) -> int:
        asked = (asker.ask(question, stage="a", direction="t2i", schema=Verdict) for question in texts(0, 6))
        tasks = [asyncio.create_task(question) for question in asked]
        while len(script.bodies) < 2:
            await asyncio.sleep(0.01)
        for task in tasks if is_cancelled else ():
            task.cancel()
        draining = asyncio.create_task(asker.drain())
        await asyncio.sleep(0)  # it begins
        end_of_thinking.set()
        await draining
        kept = asker.ledger.total[1]
        await asyncio.wait(tasks)  # nothing may be sent any more
        return kept

    assert with_asker(script, work, concurrency=2) == (0 if reply is BROKEN else 2) and len(script.bodies) == 2
