"""The client against a real HTTP server on loopback, whose answers are scripted."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from email.utils import formatdate

import pytest
from pydantic import BaseModel, ConfigDict

from repair_hf.llm.client import ChatModel, ProviderError, RefusedAnswer, UnparsedAnswer
from repair_hf.llm.journal import Journal
from repair_hf.llm.limits import Limits
from repair_hf.llm.provider import THINKING_TOKENS
from repair_hf.llm.retries import Retries
from repair_hf.options import UserError
from repair_hf.toyworld.server import ChatServer, Response

KEY = "not-a-key-but-planted"
QUESTION = [{"role": "user", "content": "Does the caption fit?"}]
GOOD = '{"valid": true, "reason": "it fits"}'
QUICK = Retries(attempts=3, first_wait=0.01)


class Verdict(BaseModel):
    model_config = ConfigDict(strict=True)

    valid: bool
    reason: str


class Script:
    """Gives its answers in turn, the last one for ever; keeps what it was asked."""

    def __init__(self, *answers: str | Response | Callable[[], str]) -> None:
        self.answers, self.bodies = list(answers), []

    def __call__(self, body: dict) -> str | Response:
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer() if callable(answer) else answer


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def ask(tmp_path):
    """Asks a scripted server once, by a model and a journal of its own; gives back the answer and the client."""

    def run(
        script: Script,
        *,
        schema=Verdict,
        retries=QUICK,
        timeout=20.0,
        model="openai/some-model",
        client=None,
        **options,
    ):
        async def main(base_url: str):
            with Journal(tmp_path / "journal.jsonl") as journal:
                how = {"base_url": base_url, "timeout": timeout, "retries": retries} | (client or {})
                chat = ChatModel(model, journal=journal, **how)
                answer = await chat.ask(QUESTION, stage="audit", direction="i2t", schema=schema, **options)
                return answer, chat.usage["audit", "i2t"]

        with ChatServer(script) as server:
            return asyncio.run(main(server.base_url))

    return run


def reply(content: str | None, *, finish: str = "stop", **message) -> Response:
    """A whole response of the OpenAI protocol."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    return Response(
        body={"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )


def error(status: int, message: str, code: str | None = None, **headers: str) -> Response:
    return Response(status, {"error": {"message": message, "type": "invalid_request_error", "code": code}}, headers)


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


def test_form_is_asked_for_where_the_model_knows_it(ask):
    script = Script(GOOD)
    ask(script, model="openai/gpt-4o-mini")
    asked = script.bodies[0]["response_format"]
    assert asked["type"] == "json_schema" and asked["json_schema"]["strict"] is True
    assert list(asked["json_schema"]["schema"]["properties"]) == ["valid", "reason"]
    ask(script, model="openai/gpt-4o-mini", schema=None)
    assert "response_format" not in script.bodies[1]


def test_form_is_no_proof(ask):
    script = Script('{"valid": 1}', GOOD)
    assert ask(script, model="openai/gpt-4o-mini")[0].valid and len(script.bodies) == 2
    assert script.bodies[0]["response_format"] == script.bodies[1]["response_format"]


def test_plain_text(ask):
    assert ask(Script("  Two dogs run. \n"), schema=None)[0] == "Two dogs run."


@pytest.mark.parametrize("text", [f"```json\n{GOOD}\n```", f"I looked at it {{closely}}.\n{GOOD}\nThat is all."])
def test_json_in_a_fence_or_in_prose(ask, text):
    answer, usage = ask(Script(text))
    assert answer.valid and usage.calls == 1


def test_wrong_types_are_repaired_once(ask):
    faulty = '{"valid": "yes", "reason": "it fits"}'
    script = Script(faulty, GOOD)
    answer, usage = ask(script)
    assert answer.valid and usage.calls == 2
    asked, said, complaint = script.bodies[1]["messages"]
    assert asked == QUESTION[0] and said == {"role": "assistant", "content": faulty}
    assert "valid" in complaint["content"] and "boolean" in complaint["content"]


def test_malformed_twice_is_no_verdict(ask):
    script = Script('{"valid": true', "true")
    with pytest.raises(UnparsedAnswer, match="no JSON object"):
        ask(script)
    assert len(script.bodies) == 2


@pytest.mark.parametrize("empty", [reply(""), reply(None), Response(body={**reply("").body, "choices": []})])
def test_empty_answer_is_asked_again_and_never_a_verdict(ask, empty):
    assert ask(Script(empty, GOOD))[0].valid


@pytest.mark.parametrize("schema", [Verdict, None])
def test_empty_twice(ask, schema):
    script = Script(reply(None))
    with pytest.raises(UnparsedAnswer, match="empty"):
        ask(script, schema=schema)
    assert script.bodies[0]["messages"] == script.bodies[1]["messages"]
    assert script.bodies[0]["seed"] != script.bodies[1]["seed"]


def test_cut_off_answer_gets_more_room(ask):
    script = Script(reply(GOOD, finish="length"), GOOD)
    assert ask(script, max_tokens=50)[0].valid
    assert [body["max_tokens"] for body in script.bodies] == [50, 200]


def test_a_model_that_thinks_gets_room_for_it(ask):
    script = Script(GOOD)
    ask(script, model="openai/gpt-5-mini", max_tokens=50)
    ask(script, model="openai/gpt-4o-mini", max_tokens=50)
    assert [body.get("max_completion_tokens") for body in script.bodies] == [50 + THINKING_TOKENS, None]
    assert "max_tokens" not in script.bodies[0] and script.bodies[1]["max_tokens"] == 50


def test_how_much_a_model_thinks_is_told_to_it_and_asked_anew(ask):
    script = Script(GOOD)
    for effort in (None, "minimal", "low", "low"):
        ask(script, model="openai/gpt-5-mini", client={"reasoning_effort": effort})
    assert [body.get("reasoning_effort") for body in script.bodies] == [None, "minimal", "low"]


def test_cut_off_twice_is_no_verdict_even_if_it_reads_like_one(ask):
    with pytest.raises(UnparsedAnswer, match="cut off"):
        ask(Script(reply(GOOD, finish="length")))


@pytest.mark.parametrize(
    "refusal",
    [
        reply(None, refusal="I cannot help with that."),
        reply(None, finish="content_filter"),
        error(400, "Your request was rejected by our safety system.", code="content_policy_violation"),
    ],
)
def test_refusal_is_not_asked_again(ask, refusal):
    script = Script(refusal)
    with pytest.raises(RefusedAnswer):
        ask(script)
    assert len(script.bodies) == 1


def test_broken_unicode_is_survived(ask):
    body = json.dumps(reply('{"valid": true, "reason": "\ud83d"}').body).encode()  # half an emoji
    assert ask(Script(Response(body=body)))[0].valid


# What the provider does


@pytest.mark.parametrize("wait", ["seconds", "date"])
def test_rate_limit_with_too_long_a_wait_stops_the_run(ask, wait):
    wait = "86400" if wait == "seconds" else formatdate(time.time() + 86400, usegmt=True)
    with pytest.raises(ProviderError, match=r"asks to wait 8\d{4} s"):
        ask(Script(error(429, "daily limit", **{"Retry-After": wait})))


def test_model_without_provider(tmp_path):
    with (
        Journal(tmp_path / "journal.jsonl") as journal,
        pytest.raises(UserError, match="'some-model-of-mine' names no provider"),
    ):
        ChatModel("some-model-of-mine", journal=journal)


def test_custom_provider_of_litellm(tmp_path):
    import litellm

    class Parrot(litellm.CustomLLM):
        async def acompletion(self, *, messages, optional_params, model_response, **_):
            model_response.choices[0].message.content = f"{messages[0]['content']} {optional_params['temperature']}"
            model_response.usage = litellm.Usage(prompt_tokens=7, completion_tokens=2, total_tokens=9)
            return model_response

    litellm.custom_provider_map.append({"provider": "zoo", "custom_handler": Parrot()})

    async def main():
        with Journal(tmp_path / "journal.jsonl") as journal:
            chat = ChatModel("zoo/parrot", journal=journal)
            text = await chat.ask(QUESTION, stage="edit", direction="i2t", temperature=0.7)
            return text, chat.usage["edit", "i2t"]

    text, usage = asyncio.run(main())
    assert text == "Does the caption fit? 0.7" and usage.prompt_tokens == 7


def test_a_rejected_request_is_its_own_fault_only_where_others_were_answered(ask):
    script = Script(error(400, "Unsupported image"))
    with pytest.raises(ProviderError, match="Unsupported image"):
        ask(script)
    ask(Script(GOOD), seed=1)
    with pytest.raises(RefusedAnswer, match="Unsupported image"):
        ask(script)
    assert ask(Script(GOOD))[0].valid  # it is not remembered: a newer version may send it in another way


def test_the_answers_of_another_model_say_nothing_of_this_one(ask):
    ask(Script(GOOD), model="openai/another-model")
    with pytest.raises(ProviderError, match="no such parameter"):
        ask(Script(error(400, "no such parameter")))


# What is paid


def test_price_is_that_of_the_model_asked(ask):
    response = reply(GOOD)
    response.body["model"] = "gpt-4o-2024-08-06"  # a local server's idle claim
    assert ask(Script(response), model="openai/my-local-model")[1].unpriced == 1
    _, usage = ask(Script(response), model="openai/gpt-4o-mini")
    assert usage.dollars == pytest.approx(1000 * 0.15e-6 + 100 * 0.6e-6) and usage.unpriced == 0


def test_rerun_pays_nothing(ask):
    script = Script("no JSON", GOOD, "not reached")
    first, paid = ask(script, model="openai/gpt-4o-mini")
    again, usage = ask(script, model="openai/gpt-4o-mini")
    assert again == first and len(script.bodies) == 2
    assert (usage.calls, usage.replayed, usage.dollars) == (0, 2, 0.0)
    assert usage.dollars_saved == pytest.approx(paid.dollars) and paid.dollars > 0


def test_failed_answers_replay_as_failures(ask):
    script = Script("no JSON", "no JSON", GOOD)
    for _ in range(2):
        with pytest.raises(UnparsedAnswer):
            ask(script)
    assert len(script.bodies) == 2


def test_samples_differ(ask):
    script = Script("a", "b", "c")
    assert [ask(script, schema=None, sample=m)[0] for m in (0, 1, 2, 1)] == ["a", "b", "c", "b"]
    assert len({body["seed"] for body in script.bodies}) == 3


def crowd(tmp_path, answer, messages: list[list[dict]], concurrency: int):
    async def main(base_url: str):
        with Journal(tmp_path / "journal.jsonl") as journal:
            chat = ChatModel("openai/m", journal=journal, base_url=base_url, limits=Limits(concurrency), retries=QUICK)
            asked = (chat.ask(m, stage="audit", direction="t2i", schema=Verdict) for m in messages)
            return await asyncio.gather(*asked), chat.usage["audit", "t2i"], len(journal)

    with ChatServer(answer) as server:
        return asyncio.run(main(server.base_url))


def test_equal_questions_are_asked_once(tmp_path):
    script = Script(lambda: time.sleep(0.1) or GOOD)
    answers, usage, kept = crowd(tmp_path, script, [QUESTION] * 5, concurrency=5)
    assert len(script.bodies) == 1 and len(answers) == 5 and kept == 1
    assert (usage.calls, usage.replayed) == (1, 4)


def test_concurrency_is_bounded(tmp_path):
    busy, most, lock = 0, 0, threading.Lock()
    three = threading.Barrier(3, timeout=60)  # on a busy machine they may be long in coming

    def answer(body: dict) -> str:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        three.wait()
        time.sleep(0.05)
        with lock:
            busy -= 1
        return GOOD

    questions = [[{"role": "user", "content": f"question {k}"}] for k in range(12)]
    crowd(tmp_path, answer, questions, concurrency=3)
    assert most == 3


def stop_early(tmp_path, text: str, questions: int, *, cancel: bool) -> tuple[int, int]:
    """Asks two at a time, and drains while the first are under way: how many answers were kept, how many were asked for."""
    end_of_thinking = threading.Event()
    script = Script(lambda: end_of_thinking.wait(60) and text)

    async def main(base_url: str) -> int:
        with Journal(tmp_path / "journal.jsonl") as journal:
            chat = ChatModel("openai/m", journal=journal, base_url=base_url, limits=Limits(2))
            messages = [[{"role": "user", "content": f"question {k}"}] for k in range(questions)]
            tasks = [asyncio.create_task(chat.ask(m, stage="a", direction="t2i", schema=Verdict)) for m in messages]
            while len(script.bodies) < min(questions, 2):
                await asyncio.sleep(0.01)
            for task in tasks if cancel else ():
                task.cancel()
            draining = asyncio.create_task(chat.drain())
            await asyncio.sleep(0.05)
            end_of_thinking.set()
            await draining
            kept = len(journal)
            await asyncio.wait(tasks)  # nothing may be sent any more
            return kept

    with ChatServer(script) as server:
        return asyncio.run(main(server.base_url)), len(script.bodies)


@pytest.mark.parametrize("text", [GOOD, "no JSON"])  # the latter would be followed by a second attempt
@pytest.mark.parametrize("questions", [1, 2, 6])
def test_drain_keeps_what_is_being_paid_and_gives_up_the_rest(tmp_path, text, questions):
    assert stop_early(tmp_path, text, questions, cancel=False) == (min(questions, 2), min(questions, 2))


def test_an_answer_is_kept_though_nobody_waits_for_it(tmp_path):
    assert stop_early(tmp_path, GOOD, 2, cancel=True) == (2, 2)


def test_key_is_nowhere(ask, tmp_path, caplog):
    caplog.set_level("DEBUG", logger="repair_hf")
    script = Script(error(500, "boom"), error(401, "no"))
    with pytest.raises(ProviderError) as caught:
        ask(script)
    ask(Script(GOOD))
    seen = [(tmp_path / "journal.jsonl").read_text(), caplog.text, str(caught.value)]
    assert all(text and KEY not in text for text in seen)
