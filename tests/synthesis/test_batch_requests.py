"""The provider's batch API, request by request, over HTTP: what is handed in, what is collected, what is paid."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from provider_server import KEY

from repair_hf.llm import batches as batches_module
from repair_hf.llm.batch_api import batch_route
from repair_hf.llm.batches import Batches, Question, refuse_if_waiting
from repair_hf.llm.client import ChatModel, ProviderError
from repair_hf.llm.cost import price_per_token, token_price
from repair_hf.llm.failures import PassingFailure, Retries
from repair_hf.llm.journal import Journal
from repair_hf.llm.provider import Reply
from repair_hf.llm.retirement import retirement_date
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.server import ChatServer, Response

QUICK = Retries(attempts=3, first_wait=0.01)


def request(number: int = 0) -> dict:
    messages = [{"role": "user", "content": f"hello {number}"}]
    return {"model": "openai/gpt-4o", "messages": messages, "temperature": 0.0, "max_tokens": 50, "seed": number}


def deferred(folder, base_url: str | None = None, *, model: str = "openai/gpt-4o", requests: int = 1) -> Batches:
    """Batches with questions that are not handed in yet."""
    batches = Batches(model, folder, base_url=base_url, retries=QUICK)
    for number in range(requests):
        batches.defer(Question(f"key-{number}", request(number), "audit", "i2t", 0.25))
    return batches


def one_by_one(folder, reply, *, requests: int = 1):
    """Hand in questions and collect: what was kept, and the batches."""
    kept: list[tuple[Question, Reply]] = []

    async def main(base_url: str) -> Batches:
        await deferred(folder, base_url, requests=requests).submit()
        later = Batches("openai/gpt-4o", folder, base_url=base_url, retries=QUICK)
        assert (later.waiting, later.promised) == (requests, 0.25 * requests) and later.holds("key-0")
        await later.collect(lambda *answer: kept.append(answer))
        return later

    with ChatServer(reply) as server:
        return kept, asyncio.run(main(server.base_url))


def test_an_answer_costs_half_and_keeps_its_accounts(tmp_path):
    seen = []

    def reply(body: dict) -> list[str]:
        seen.append(body)
        return ["one", "two and three"]

    kept, batches = one_by_one(tmp_path, reply)
    ((question, answered),) = kept
    assert question == Question("key-0", {}, "audit", "i2t", 0.25)
    assert (answered.text, answered.others) == ("one", (("two and three", "stop"),))
    full_price = token_price("openai/gpt-4o", answered.prompt_tokens, answered.completion_tokens)
    assert answered.dollars == pytest.approx(full_price / 2) and full_price > 0
    assert batches.waiting == 0
    assert seen == [request() | {"model": "gpt-4o"}]


def test_what_a_model_calls_otherwise_is_sent_as_it_likes(tmp_path):
    line = Batches("openai/gpt-5-mini", tmp_path)._api.line("k", request() | {"model": "openai/gpt-5-mini", "n": 2})
    body = json.loads(line)["body"]
    assert body["model"] == "gpt-5-mini" and body["max_completion_tokens"] == 50 and body["n"] == 2
    assert "max_tokens" not in body and "temperature" not in body and "extra_body" not in body


def test_failures_of_single_requests(tmp_path):
    def reply(body: dict) -> str | Response:
        said = {
            1: Response(500, {"error": {"message": "our fault"}}),
            2: Response(400, {"error": {"message": "the image is too large", "type": "invalid_request_error"}}),
            3: Response(400, {"error": {"message": "blocked", "code": "content_policy_violation"}}),
            4: Response(429, {"error": {"message": "slow down"}}),
        }
        return said.get(body["seed"], "fine")

    kept, batches = one_by_one(tmp_path, reply, requests=6)
    told = {question.key: (answered.finish, answered.text) for question, answered in kept}
    assert set(told) == {"key-0", "key-2", "key-3", "key-5"}  # the others are asked again
    assert told["key-0"] == ("stop", "fine") and told["key-3"] == ("content_filter", "blocked")
    assert told["key-2"][0] == "rejected" and "the image is too large" in told["key-2"][1]
    assert not batches.holds("key-1") and not batches.holds("key-4")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ('{"error": {"code": 400, "message": "The picture\'s too large", "status": "INVALID_ARGUMENT"}}', "rejected"),
        (
            '{"error": {"code": 400, "message": "try again in a few minutes", "status": "FAILED_PRECONDITION"}}',
            "again",
        ),
        ('{"error": {"code": 429, "message": "Resource exhausted", "status": "RESOURCE_EXHAUSTED"}}', "again"),
        ("Internal error after 480 ms", "again"),
    ],
)
def test_a_row_that_vertex_does_not_accept_is_not_handed_in_for_ever(status, outcome, tmp_path):
    """LiteLLM makes of it a row without a status."""
    from litellm.llms.vertex_ai.files.transformation import VertexAIFilesConfig

    request = {"contents": [{"role": "user"}], "labels": {"litellm_custom_id": "k"}}
    row = {"status": f"Bad Request: {status}", "processed_time": "now", "request": request, "response": {}}
    content = VertexAIFilesConfig()._try_transform_vertex_batch_output_to_openai(json.dumps(row).encode()).decode()
    ((_, answered),) = Batches("vertex_ai/gemini-2.5-flash", tmp_path)._api._read(content)
    if outcome == "again":
        assert isinstance(answered, PassingFailure)
    else:
        assert answered.finish == "rejected" and "The picture's too large" in answered.text


def test_a_batch_that_an_earlier_version_handed_in_is_collected(tmp_path):
    with ChatServer(lambda body: "fine") as server:
        asyncio.run(deferred(tmp_path / "batches", server.base_url).submit())
        (state,) = (tmp_path / "batches").iterdir()
        told = json.loads(state.read_text())
        assert told["questions"]["key-0"].pop() == 0  # the size of its prompt, which was not told then
        del told["model"]  # nor was this
        state.write_text(json.dumps(told))
        with Journal(tmp_path / "journal.jsonl") as journal:
            later = Batches("openai/gpt-4o", tmp_path / "batches", base_url=server.base_url, retries=QUICK)
            assert later.promised == 0.25
            chat = ChatModel("openai/gpt-4o", journal=journal, base_url=server.base_url, batches=later)
            asyncio.run(chat.collect())
            assert journal.get("key-0").text == "fine"


def test_what_stops_a_run_of_batches(tmp_path, monkeypatch):
    denied = Response(401, {"error": {"message": "Incorrect API key provided."}})
    with pytest.raises(ProviderError, match="Incorrect API key"):
        one_by_one(tmp_path / "denied", lambda body: denied, requests=3)
    with ChatServer(lambda body: "fine") as server:
        asyncio.run(deferred(tmp_path / "others", server.base_url).submit())
        with pytest.raises(UserError, match="submitted batches of openai/gpt-4o.*Give --llm openai/gpt-4o"):
            Batches("openai/gpt-4o-mini", tmp_path / "others", base_url=server.base_url)
    with pytest.raises(ProviderError, match="failed 3 times in a row"):  # nobody is there any more
        asyncio.run(deferred(tmp_path / "alone", server.base_url).submit())
    again = Batches("openai/gpt-4o", tmp_path / "alone", base_url=server.base_url, retries=QUICK)
    assert again.waiting == 1  # whether the provider has it is not known until it can be asked
    monkeypatch.setattr("repair_hf.llm.batch_api.ENDPOINT", "/v1/embeddings")
    with pytest.raises(ProviderError, match="did not accept a batch: Not a request"):
        one_by_one(tmp_path / "refused", lambda body: "fine")
    assert Batches("openai/gpt-4o", tmp_path / "refused").waiting == 0


def test_signs_that_break_lines_elsewhere_may_stand_in_an_answer(tmp_path):
    said = "a dog\u2028by the\x85sea"
    message = {"role": "assistant", "content": said}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    line = json.dumps({"custom_id": "k", "response": {"status_code": 200, "body": body}}, ensure_ascii=False)
    api = Batches("openai/gpt-4o", tmp_path)._api
    ((key, reply),) = api._read(f"{line}\n\n")
    assert (key, reply.text) == ("k", said)


def test_a_batch_at_vertex_is_found_by_its_file(tmp_path, monkeypatch):
    """LiteLLM's lists of Vertex AI are dicts, whose pages have tokens, and whose batches have no name of ours."""
    from litellm.llms.vertex_ai.batches.transformation import VertexAIBatchTransformation

    def job(number: int) -> dict:
        source = {"gcsSource": {"uris": [f"gs://bucket/file-{number}"]}}
        name, state = f"projects/1/batchPredictionJobs/{number}", "JOB_STATE_RUNNING"
        return {"name": name, "inputConfig": source, "state": state, "createTime": "2026-01-01T00:00:00.0Z"}

    pages = {
        None: {"batchPredictionJobs": [job(1), job(2)], "nextPageToken": "more"},
        "more": {"batchPredictionJobs": [job(3)]},
    }

    to_openai = VertexAIBatchTransformation.transform_vertex_ai_batch_list_response_to_openai_list_response

    async def send(self, name, *, after, limit):
        return to_openai(pages[after])

    monkeypatch.setattr(batches_module.BatchAPI, "_send", send)
    api = Batches("vertex_ai/gemini-2.5-flash", tmp_path)._api
    assert [asyncio.run(api.find(f"gs://bucket/file-{number}")) for number in (1, 3, 4)] == ["1", "3", None]


def test_large_batches_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(batches_module, "MOST_REQUESTS", 4)
    kept, _ = one_by_one(tmp_path, lambda body: "fine", requests=10)
    assert sorted(question.key for question, _ in kept) == [f"key-{number}" for number in range(10)]
    monkeypatch.setattr(batches_module, "MOST_BYTES", 500)
    batches = deferred(tmp_path / "other", requests=10)
    drafts = [len(path.read_bytes()) for path in (tmp_path / "other").glob("*.jsonl")]
    assert len(drafts) == 5 and batches.waiting == 10


@pytest.mark.parametrize("model", ["gemini/gemini-2.5-flash", "anthropic/claude-sonnet-4-5"])
def test_a_provider_without_batches_is_named(model, tmp_path):
    with pytest.raises(UserError, match=re.escape(f"--batch: LiteLLM supports no batch API for {model}")) as raised:
        Batches(model, tmp_path)
    advised = re.search(r"vertex_ai/gemini[\w.-]+", str(raised.value))[0]
    assert batch_route(advised)[1] == "vertex_ai" and price_per_token(advised, batch=True)
    assert retirement_date(advised).year > 2026


def test_batches_that_are_out_are_not_asked_again_in_another_way_and_hold_no_key(tmp_path):
    refuse_if_waiting(tmp_path)
    with ChatServer(lambda body: "fine") as server:
        server.batches.delay = 3600
        batches = deferred(tmp_path, server.base_url)
        refuse_if_waiting(tmp_path)
        assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.iterdir())
        asyncio.run(batches.submit())
    with pytest.raises(UserError, match="1 submitted batches .* Give --batch"):
        refuse_if_waiting(tmp_path)
    (file,) = tmp_path.iterdir()
    assert KEY.encode() not in file.read_bytes()
