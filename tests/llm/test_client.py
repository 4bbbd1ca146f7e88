"""The client against a scripted provider over HTTP on loopback: answers, attempts, bills, and an early stop."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest
from provider_server import KEY, Script, Wire, error, said

from repair_hf.llm.client import ProviderError, RefusedAnswer, UnparsedAnswer
from repair_hf.llm.loading import THINKING_TOKENS
from repair_hf.llm.sending import Retries
from tests.llm.asking import GOOD, PRICED, QUESTION, Verdict, texts

# What an answer looks like


def test_answer_is_checked_and_counted(ask):
    script = Script(GOOD)
    answer, usage = ask(script, temperature=0.5, max_tokens=77, seed=3)
    assert answer == Verdict(valid=True, reason="it fits")
    assert (usage.calls, usage.replayed, usage.unpriced) == (1, 0, 1)
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    body = script.bodies[0]
    assert body["messages"] == QUESTION and body["temperature"] == 0.5 and body["max_tokens"] == 77
    assert 0 <= body["seed"] < 2**31


@pytest.mark.parametrize("status", [200, 400])
def test_an_unknown_model_is_asked_for_form_and_again_only_if_it_takes_it(with_chat, status):
    def answer(question) -> str | Wire:
        forms.append(has_form := "response_format" in question.body)
        return Wire(400, error("openai", 400, "response_format?")) if has_form and status == 400 else GOOD

    async def work(chat):
        ask = partial(chat.ask, stage="a", direction="t2i", schema=Verdict)
        return await ask(texts(0, 1)[0]), *await asyncio.gather(*map(ask, texts(1, 8)))

    forms: list[bool] = []
    assert all(verdict.valid for verdict in with_chat(answer, work, concurrency=8))
    assert forms == ([True] * 8 if status == 200 else [True] + [False] * 8)


def test_many_at_once_on_a_server_that_answers_500_to_a_schema(with_chat):
    def answer(question) -> str | Wire:
        return Wire(500, error("openai", 500, "boom")) if "response_format" in question.body else GOOD

    async def work(chat):
        return await asyncio.gather(*map(partial(chat.ask, stage="a", direction="t2i", schema=Verdict), texts(0, 16)))

    quick = Retries(attempts=5, first_wait=0.01)
    assert all(verdict.valid for verdict in with_chat(answer, work, concurrency=16, retries=quick))


def test_wrong_types_are_repaired_once(ask):
    faulty = '{"valid": "yes", "reason": "it fits"}'
    script = Script(faulty, GOOD)
    answer, usage = ask(script)
    assert answer.valid and usage.calls == 2
    asked, said, complaint = script.bodies[1]["messages"]
    assert asked == QUESTION[0] and said == {"role": "assistant", "content": faulty}
    assert "valid" in complaint["content"] and "boolean" in complaint["content"]


def test_empty_answer_is_asked_again_with_another_seed_and_replays_as_a_failure(ask):
    script = Script("", "", GOOD)
    for _ in range(2):
        with pytest.raises(UnparsedAnswer, match="empty"):
            ask(script)
    assert len(script.bodies) == 2
    assert script.bodies[0]["messages"] == script.bodies[1]["messages"]
    assert script.bodies[0]["seed"] != script.bodies[1]["seed"]


def test_cut_off_answer_gets_more_room(ask):
    script = Script(Wire(body=said("openai", GOOD, "length")), GOOD)
    assert ask(script, max_tokens=50)[0].valid
    assert [body["max_tokens"] for body in script.bodies] == [50, 200]


def test_a_model_that_thinks_gets_room_for_it_and_is_asked_anew_with_another_effort(ask):
    script = Script(GOOD)
    for effort in (None, "minimal", "low", "low"):
        ask(script, model="openai/gpt-5-mini", max_tokens=50, client={"reasoning_effort": effort})
    assert [body.get("reasoning_effort") for body in script.bodies] == [None, "minimal", "low"]
    assert script.bodies[0]["max_completion_tokens"] == 50 + THINKING_TOKENS and "max_tokens" not in script.bodies[0]


def test_broken_unicode_is_survived(ask):
    assert ask(Script('{"valid": true, "reason": "\ud83d"}'))[0].valid  # half an emoji


@pytest.mark.parametrize("said", [KEY, f"\\u0070{KEY[1:]}"])  # as it is, and with a letter that JSON escapes
def test_an_answer_that_holds_a_key_is_dropped_and_not_kept(said, ask, tmp_path):
    with pytest.raises(RefusedAnswer, match="held an API key"):
        ask(Script(f'{{"valid": true, "reason": "by {said}"}}'))
    assert KEY.encode() not in (tmp_path / "ledger.sqlite").read_bytes()


def test_short_keys_and_other_values_of_the_environment_change_no_answer(ask, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "something")
    monkeypatch.setenv("MAP_TOKEN", "a man who holds an umbrella")
    assert ask(Script("a man who holds an umbrella and something"), schema=None)[0].endswith("and something")


# What the provider does


def test_a_first_request_that_is_rejected_stops_the_run(ask):
    ask(Script(GOOD), model="openai/another-model")  # says nothing of this model
    with pytest.raises(ProviderError, match="Unsupported image"):
        ask(Script(Wire(400, error("openai", 400, "Unsupported image"))))


def test_a_rejection_is_final_once_another_question_is_accepted_after_it(with_chat):
    """Question 2 is; after question 3 comes none."""

    def answer(question) -> str | Wire:
        asked.append(question.body["messages"][0]["content"])
        return "yes" if asked[-1] in accepted else Wire(400, error("openai", 400, "Unsupported image"))

    async def work(chat):
        said = []
        for questions in (texts(0, 1), texts(1, 3), texts(1, 2), texts(3, 4), texts(3, 4)):
            outcomes = [chat.ask(question, stage="a", direction="i2t") for question in questions]
            said += await asyncio.gather(*outcomes, return_exceptions=True)
        return [getattr(each, "drop_reason", each) for each in said]

    asked: list[str] = []
    accepted = {"question 0", "question 2"}
    failed = ["llm_failed"] * 2
    assert with_chat(answer, work, concurrency=1) == ["yes", "llm_failed", "yes", "llm_refused", *failed]
    assert asked == [f"question {number}" for number in (0, 1, 2, 3, 3)]


def test_a_provider_that_rejects_everything_for_a_while_loses_nothing(with_chat):
    def answer(question) -> str | Wire:
        came.append(question)
        return Wire(400, error("openai", 400, "API key expired")) if 10 < len(came) <= limit else "yes"

    async def work(chat):
        asked = (chat.ask(m, stage="a", direction="i2t") for m in texts(0, 50))
        return await asyncio.gather(*asked, return_exceptions=True)

    came: list[object] = []
    limit = 10_000
    said = with_chat(answer, work, concurrency=4)
    stop = next(each for each in said if type(each) is ProviderError)
    assert "requests in a row, at last with" in str(stop) and "API key expired" in str(stop)
    limit = 0
    assert with_chat(answer, work, concurrency=4) == ["yes"] * 50


# What is paid


def test_price_is_that_of_the_model_asked(ask):
    script = Script(Wire(body=said("openai", GOOD) | {"model": "gpt-4o-2024-08-06"}))  # a local server's idle claim
    assert ask(script, model="openai/my-local-model")[1].unpriced == 1
    _, usage = ask(script, model="openai/gpt-4o-mini")
    assert usage.dollars == pytest.approx(1000 * 0.15e-6 + 100 * 0.6e-6) and usage.unpriced == 0


def test_rerun_pays_nothing(ask):
    script = Script("no JSON", GOOD, "not reached")
    first, paid = ask(script, model="openai/gpt-4o-mini")
    again, usage = ask(script, model="openai/gpt-4o-mini")
    assert again == first and len(script.bodies) == 2
    assert (usage.calls, usage.replayed, usage.dollars) == (0, 2, 0.0)
    assert usage.dollars_saved == pytest.approx(paid.dollars) and paid.dollars > 0


def test_several_answers_to_one_question_are_requests_of_their_own(with_chat):
    async def work(chat):
        how = {"stage": "edit", "direction": "i2t", "temperature": 0.7, "max_tokens": 9}
        return await chat.ask_many(QUESTION, samples=3, **how)

    script = Script("a", "b", "c", "not reached")
    texts = with_chat(script, work)
    assert sorted(texts) == ["a", "b", "c"] and len({body["seed"] for body in script.bodies}) == 3
    assert with_chat(script, work) == texts and len(script.bodies) == 3
    assert {type(text) for text in with_chat(Script(""), work, "openai/another")} == {UnparsedAnswer}


def test_equal_questions_are_asked_once(with_chat):
    async def work(chat):
        asked = (chat.ask(QUESTION, stage="audit", direction="t2i", schema=Verdict) for _ in range(5))
        return await asyncio.gather(*asked), chat.usage["audit", "t2i"], chat.ledger.total[1]

    script = Script(lambda: time.sleep(0.1) or GOOD)
    answers, usage, kept = with_chat(script, work)
    assert len(script.bodies) == 1 and len(answers) == 5 and kept == 1
    assert (usage.calls, usage.replayed) == (1, 4)


# What happens when a run stops early


@pytest.mark.parametrize("cancel", [False, True])  # an answer is kept though nobody waits for it
@pytest.mark.parametrize("text", [GOOD, "no JSON"])  # the latter would be followed by a second attempt
@pytest.mark.parametrize("questions", [1, 6])
def test_drain_keeps_what_is_being_paid_and_gives_up_the_rest(with_chat, text, questions, cancel):
    at_once = 2
    end_of_thinking = threading.Event()
    script = Script(lambda: end_of_thinking.wait(60) and text)

    async def work(chat) -> int:
        asked = (chat.ask(m, stage="a", direction="t2i", schema=Verdict) for m in texts(0, questions))
        tasks = [asyncio.create_task(question) for question in asked]
        while len(script.bodies) < min(questions, at_once):
            await asyncio.sleep(0.01)
        for task in tasks if cancel else ():
            task.cancel()
        draining = asyncio.create_task(chat.drain())
        await asyncio.sleep(0.05)
        end_of_thinking.set()
        await draining
        kept = chat.ledger.total[1]
        await asyncio.wait(tasks)  # nothing may be sent any more
        return kept

    assert with_chat(script, work, PRICED, concurrency=2) == len(script.bodies) == min(questions, at_once)
