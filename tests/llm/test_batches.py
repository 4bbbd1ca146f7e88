"""Questions that go in batches, against a provider over HTTP on loopback that counts what it bills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from math import ceil

import pytest
from chat_server import Response
from children import Child
from ledgers import ledger_in, rows
from provider_server import KEY, ProviderServer, Question, Wire, error, said

from repair_hf.llm import batch_asker
from repair_hf.llm.answers import FailedAnswer
from repair_hf.llm.asker import Asker, Deferred
from repair_hf.llm.batch_asker import BatchAsker, batch_route
from repair_hf.llm.cost import paid_in
from repair_hf.llm.ledger import BudgetSpent, Topic
from repair_hf.llm.ledger_file import FILE
from repair_hf.llm.provider import ProviderError
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped
from tests.llm.asking import BILLS, IN, OUT, PRICED, QUICK, TOKENS, billed, texts

WORST = (ceil(1.1 * TOKENS) * IN + 200 * OUT) / 2  # of one request, at half the price


def run(folder, url: str, questions: list[list[dict]], **ceilings) -> tuple[int, list]:
    """Collect what has come, ask, and submit; return how many requests are in batches, and what came of each."""

    async def main() -> tuple[int, list]:
        with ledger_in(folder, **ceilings) as ledger:
            asker = BatchAsker(PRICED, ledger, base_url=url, retries=QUICK)
            await asker.collect()
            asked = (asker.ask(messages, stage="audit", direction="t2i", max_tokens=200) for messages in questions)
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            try:
                await asker.submit()
            except ProviderError:
                raise
            except RunStopped as stop:
                assert "to be answered within a day. Rerun the same command" in str(stop)
            return ledger.in_batches(PRICED), outcomes

    return asyncio.run(main())


def run_in_child(folder, url: str, questions: int) -> int:
    run(folder, url, texts(0, questions))
    return 0


class Server(ProviderServer):
    """Counts the requests in batches, each of which it bills; `edit` may change the lines of a finished batch."""

    def __init__(self, answer=lambda question: "yes", edit=lambda line: line) -> None:
        super().__init__(answer)
        self.edit, self.billed = edit, []

    def note(self, body: dict) -> None:
        self.billed.append(body["messages"][0]["content"])

    def get(self, path: str) -> Response:
        response = super().get(path)
        if path.endswith("/content"):
            lines = (self.edit(json.loads(line)) for line in response.body.splitlines())
            content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines if line)
            return Response(200, content.encode(), response.headers)
        return response


def kinds(outcomes: list) -> set[type]:
    return {type(outcome) for outcome in outcomes}


def total(folder) -> tuple[float, int]:
    with ledger_in(folder) as ledger:
        return ledger.total


def test_a_batch_is_submitted_waited_for_and_collected_at_half_the_price(tmp_path):
    with Server() as server:
        server.batches.delay = 3600
        for _ in range(2):  # the second run only looks
            waiting, outcomes = run(tmp_path, server.url(), texts(0, 4) * 2)  # each twice
            assert waiting == 4 == len(server.billed) and kinds(outcomes) == {Deferred}
            with ledger_in(tmp_path) as ledger, pytest.raises(UserError, match="4 questions .* give --batch"):
                Asker(PRICED, ledger)
        assert total(tmp_path) == (pytest.approx(4 * WORST), 4)
        server.batches.delay = 0
        assert run(tmp_path, server.url(), texts(0, 4) * 2) == (0, ["yes"] * 8)
        assert run(tmp_path, server.url(), texts(0, 4)) == (0, ["yes"] * 4)
    assert len(server.billed) == 4 and total(tmp_path) == (pytest.approx(4 * BILLS["openai"] / 2), 4)


@pytest.mark.parametrize(("room", "taken", "outcome"), [(5.5, 5, Deferred), (0.5, 0, BudgetSpent)])
def test_batches_take_what_the_ceiling_has_room_for(tmp_path, room, taken, outcome):
    with Server() as server:
        waiting, outcomes = run(tmp_path, server.url(), texts(0, 8), max_usd=room * WORST)
    assert waiting == taken == len(server.billed) and kinds(outcomes) == {outcome}


@pytest.mark.slow  # a start of Python; the next test looks for a batch without a kill
@pytest.mark.parametrize("is_created", [True, False])
def test_a_kill_between_the_file_and_the_batch(tmp_path, is_created):
    """A batch that was created is found by its file; nothing is submitted twice."""
    children, is_started = [], threading.Event()

    class Killing(Server):
        def create(self, data: bytes) -> None:
            if is_created:
                self.batches.post("/v1/batches", "application/json", data)
            assert is_started.wait(60)
            os.kill(children[0].pid, signal.SIGKILL)  # its end is awaited below

    with Killing() as server:
        post = server.batches.post

        def kill_once(path: str, content_type: str, data: bytes) -> Response | None:
            if path != "/v1/batches":
                return post(path, content_type, data)
            server.batches.post = post
            server.create(data)
            return Response(500)

        server.batches.post = kill_once
        children.append(Child(run_in_child, tmp_path, server.url(), 5))
        is_started.set()
        assert children[0].wait() == -9
        assert {row["batch"][:5] for row in rows(tmp_path, "submitted")} == {"file:"}
        first = run(tmp_path, server.url(), texts(0, 5))
        assert first == (0, ["yes"] * 5) if is_created else (first[0] == 5 and kinds(first[1]) == {Deferred})
        assert run(tmp_path, server.url(), texts(0, 5)) == (0, ["yes"] * 5)
    assert len(server.billed) == 5 == len(rows(tmp_path)) and not rows(tmp_path, "lost")


def test_a_batch_that_was_created_though_the_server_says_500_is_looked_for_and_not_created_again(tmp_path):
    with Server() as server:
        post = server.batches.post

        def fail(path: str, content_type: str, data: bytes) -> Response | None:
            response = post(path, content_type, data)
            return Response(500, error("openai", 500, "boom")) if path == "/v1/batches" else response

        server.batches.post = fail
        run(tmp_path, server.url(), texts(0, 3))
        assert run(tmp_path, server.url(), texts(0, 3)) == (0, ["yes"] * 3) and len(server.billed) == 3


EMPTY = {"response": None, "error": None}
UNREADABLE = {"response": {"status_code": 200, "body": {"choices": [3]}}}
ODD = {
    "left out": lambda line: None,
    "neither response nor error": lambda line: line | EMPTY,
    "no JSON": lambda line: "{",
    "a list": lambda line: [line],
    "a body that LiteLLM cannot read": lambda line: (
        line | {"response": {"status_code": 200, "body": {"choices": [3]}}}
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_row_without_answer_counts_as_billed_and_the_ceiling_ends_it(tmp_path, kind):
    with Server(edit=ODD[kind]) as server:
        for _ in range(4):
            waiting, outcomes = run(tmp_path, server.url(), texts(0, 4), max_calls=4)
        assert len(server.billed) == 4 and waiting == 0 and kinds(outcomes) == {BudgetSpent}
        assert len(rows(tmp_path, "lost")) == 4 and total(tmp_path) == (pytest.approx(4 * WORST), 4)


def test_an_odd_row_leaves_the_others(tmp_path):
    def break_one(line: dict) -> dict | str:
        return "{" if "question 1" in texts_of[line["custom_id"]] else line

    texts_of: dict[str, str] = {}
    with Server(edit=break_one) as server:
        run(tmp_path, server.url(), texts(0, 4))
        (batch,) = server.batches._batches.values()
        texts_of.update({row["custom_id"]: row["body"]["messages"][0]["content"] for row in batch["rows"]})
        waiting, outcomes = run(tmp_path, server.url(), texts(0, 4))
    assert waiting == 0 and outcomes[::2] == ["yes"] * 2 and outcomes[3] == "yes"
    assert isinstance(outcomes[1], FailedAnswer) and "it may be billed" in str(outcomes[1])


def test_a_row_with_a_reason_is_not_counted_is_dropped_and_asked_again_by_the_next_run(tmp_path):
    def answer(question: Question) -> str | Wire:
        is_bad = question.messages[0]["content"] in bad
        return Wire(400, error("openai", 400, f"too large for {KEY}")) if is_bad else "yes"

    bad = {"question 1", "question 2"}
    with Server(answer) as server:
        run(tmp_path, server.url(), texts(0, 4))
        waiting, outcomes = run(tmp_path, server.url(), texts(0, 4))
        assert waiting == 0 and [outcomes[0], outcomes[3]] == ["yes"] * 2
        assert kinds(outcomes[1:3]) == {FailedAnswer} and "too large for <hidden>" in str(outcomes[1])
        assert total(tmp_path)[1] == 2
        bad.clear()
        assert run(tmp_path, server.url(), texts(0, 4))[0] == 2
        assert run(tmp_path, server.url(), texts(0, 4)) == (0, ["yes"] * 4)


def test_many_questions_make_several_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_asker, "MOST_REQUESTS", 3)
    with Server() as server:
        assert run(tmp_path, server.url(), texts(0, 8))[0] == 8
        assert len({row["batch"] for row in rows(tmp_path, "submitted")}) == 3
        assert run(tmp_path, server.url(), texts(0, 8)) == (0, ["yes"] * 8)


def test_a_batch_that_is_not_accepted_stops_the_run_and_is_submitted_again_by_the_next(tmp_path, monkeypatch):
    with Server() as server:
        with monkeypatch.context() as patch:
            patch.setattr(batch_asker, "ENDPOINT", "/v1/completions")  # the server does not know it
            run(tmp_path, server.url(), texts(0, 3))
        with pytest.raises(ProviderError, match="did not accept a batch: Not a request: 0. Every answer so far"):
            run(tmp_path, server.url(), texts(0, 3))
        assert total(tmp_path) == (0.0, 0)
        run(tmp_path, server.url(), texts(0, 3))
        assert run(tmp_path, server.url(), texts(0, 3)) == (0, ["yes"] * 3)


def test_a_run_whose_batches_bring_nothing_of_use_is_stopped(tmp_path):
    with Server(lambda question: "") as server:
        assert run(tmp_path, server.url(), texts(0, 80))[0] == 80
        waiting, outcomes = run(tmp_path, server.url(), texts(0, 80))
    stops = [outcome for outcome in outcomes if isinstance(outcome, RunStopped)]
    assert waiting == 63 and len(stops) == 17 and "--max-error-rate" in str(stops[0])


def test_an_answer_without_its_tokens_counts_as_the_most_it_may_cost(tmp_path):
    with Server(lambda question: billed()) as server:
        for _ in range(2):
            run(tmp_path, server.url(), texts(0, 8), max_usd=5.5 * WORST)
            assert total(tmp_path) == (pytest.approx(5 * WORST), 5)
    assert paid_in(tmp_path / FILE)["audit", "t2i"].unpriced == 5


def test_a_refusal_is_read_as_outside_of_batches(tmp_path):
    with Server(lambda question: Wire(body=said("openai", None, refusal="I cannot."))) as server:
        run(tmp_path, server.url(), texts(0, 1))
        _, (refused,) = run(tmp_path, server.url(), texts(0, 1))
    assert refused.drop_reason == "llm_refused" and "I cannot." in str(refused)


def test_a_request_is_worded_as_the_model_takes_it(tmp_path):
    with ledger_in(tmp_path) as ledger:
        body = BatchAsker("openai/gpt-5-mini", ledger)._body(
            {"model": "openai/gpt-5-mini", "messages": [], "temperature": 0.0, "max_tokens": 50, "seed": 1}
        )
    assert body["model"] == "gpt-5-mini" and body["max_completion_tokens"] == 50
    assert not {"max_tokens", "temperature", "extra_body"} & set(body)


def test_a_provider_without_a_batch_api_is_an_error():
    assert batch_route("vertex_ai/gemini-2.5-flash") == ("gemini-2.5-flash", "vertex_ai")
    with pytest.raises(UserError, match="supports no batch API for gemini/.*vertex_ai"):
        batch_route("gemini/gemini-2.5-flash")


def test_pages_of_vertex_are_dicts(tmp_path):
    """LiteLLM turns a list of Vertex AI's into a dict, and its rows without an answer into reasons."""
    from litellm.llms.vertex_ai.batches.transformation import VertexAIBatchTransformation as Vertex
    from litellm.llms.vertex_ai.files.transformation import VertexAIFilesConfig

    def job(number: int) -> dict:
        given = {"gcsSource": {"uris": [f"gs://bucket/{number}.jsonl"]}}
        times = {"createTime": "2026-01-01T00:00:00.0Z"}
        return {"name": f"jobs/{number}", "state": "JOB_STATE_RUNNING", "inputConfig": given} | times

    async def pages(name: str, after: str | None, limit: int) -> dict:
        asked.append(after)
        page = {"batchPredictionJobs": [job(len(asked))], "nextPageToken": "more" if after is None else None}
        return Vertex.transform_vertex_ai_batch_list_response_to_openai_list_response(page)

    asked: list[str | None] = []
    with ledger_in(tmp_path) as ledger:
        asker = BatchAsker("vertex_ai/gemini-2.5-flash", ledger)
        asker._call = pages
        assert asyncio.run(asker._listed("gs://bucket/2.jsonl")) == "2" and asked == [None, "more"]
        assert asyncio.run(asker._listed("gs://bucket/none.jsonl")) is None
        asyncio.run(ledger.reserve("k", Topic("audit", "i2t", asker.model), 1.0, "batch"))
        request = {"contents": [{"role": "user"}], "labels": {"litellm_custom_id": "k"}}
        row = {"status": "Bad Request: too large", "processed_time": "now", "request": request, "response": {}}
        line = VertexAIFilesConfig()._try_transform_vertex_batch_output_to_openai(json.dumps(row).encode()).decode()
        asyncio.run(asker._settle(line))
        assert ledger.total == (0.0, 0) and "too large" in asker._failed["k"]
