"""The provider's batch API, request by request, over HTTP: what is handed in, what is collected, what is paid."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from batch_server import BatchServer
from ledgers import ledger_in
from provider_server import KEY

from repair_hf.llm import batches as batches_module
from repair_hf.llm.batch_api import BatchAPI, batch_route
from repair_hf.llm.batches import Batches, refuse_if_waiting
from repair_hf.llm.cost import price_per_token
from repair_hf.llm.errors import PassingError, ProviderError, RejectedRequest
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.sending import Retries
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.server import Response

MODEL = "openai/gpt-4o"
QUICK = Retries(attempts=3, first_wait=0.01)


def request(number: int = 0) -> dict:
    messages = [{"role": "user", "content": f"hello {number}"}]
    return {"model": "openai/gpt-4o", "messages": messages, "temperature": 0.0, "max_tokens": 50, "seed": number}


async def deferred(ledger: Ledger, base_url: str | None = None, *, model: str = MODEL, requests: int = 1) -> Batches:
    """Batches with questions that are not handed in yet."""
    batches = Batches(model, ledger, base_url=base_url, retries=QUICK)
    for number in range(requests):
        await batches.defer(f"key-{number}", request(number), Topic("audit", "i2t", model), 0.25)
    return batches


async def submitted(*args, **kwargs) -> None:
    await (await deferred(*args, **kwargs)).submit()


def one_by_one(folder, reply, *, requests: int = 1) -> tuple[dict[str, Reply], Ledger]:
    """Hand in questions and collect: the replies, and the ledger, which is closed."""

    async def main(base_url: str) -> None:
        with ledger_in(folder) as ledger:
            await submitted(ledger, base_url, requests=requests)
        with ledger_in(folder) as ledger:
            later = Batches(MODEL, ledger, base_url=base_url, retries=QUICK)
            assert (later.waiting, ledger.total) == (requests, (0.25 * requests, requests))
            keys = await later.collect()
            replies.update({key: ledger.find(key).reply for key in keys})
            assert later.waiting == 0
            sums.append(ledger.total)

    replies: dict[str, Reply] = {}
    sums: list[tuple[float, int]] = []
    with BatchServer(reply) as server:
        asyncio.run(main(server.base_url))
    return replies, sums[0]


def test_an_answer_costs_half_and_keeps_its_accounts(tmp_path):
    seen = []

    def reply(body: dict) -> str:
        seen.append(body)
        return "one"

    replies, paid = one_by_one(tmp_path, reply)
    answered = replies["key-0"]
    price_in, price_out = price_per_token("openai/gpt-4o")
    full_price = answered.prompt_tokens * price_in + answered.completion_tokens * price_out
    assert answered.text == "one"
    assert answered.dollars == pytest.approx(full_price / 2) and full_price > 0
    assert paid == (pytest.approx(answered.dollars), 1)
    assert seen == [request() | {"model": "gpt-4o"}]


def test_what_a_model_calls_otherwise_is_sent_as_it_likes(tmp_path):
    line = BatchAPI("openai/gpt-5-mini", base_url=None, retries=QUICK).line(
        "k", request() | {"model": "openai/gpt-5-mini", "n": 2}
    )
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

    replies, (_, calls) = one_by_one(tmp_path, reply, requests=6)
    said = {key: (answered.finish, answered.text) for key, answered in replies.items()}
    assert set(said) == {"key-0", "key-3", "key-5"} and calls == 3
    assert said["key-0"] == ("stop", "fine") and said["key-3"] == ("content_filter", "blocked")
    with ledger_in(tmp_path) as ledger:
        assert "the image is too large" in ledger.find("key-2").reply.text
        assert ledger.find("key-1") is None is ledger.find("key-4")  # they are asked again


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
def test_a_row_that_vertex_does_not_accept_is_not_handed_in_for_ever(status, outcome):
    """LiteLLM makes of it a row without a status."""
    from litellm.llms.vertex_ai.files.transformation import VertexAIFilesConfig

    request = {"contents": [{"role": "user"}], "labels": {"litellm_custom_id": "k"}}
    row = {"status": f"Bad Request: {status}", "processed_time": "now", "request": request, "response": {}}
    content = VertexAIFilesConfig()._try_transform_vertex_batch_output_to_openai(json.dumps(row).encode()).decode()
    ((_, answered),) = BatchAPI("vertex_ai/gemini-2.5-flash", base_url=None, retries=QUICK)._read(content)
    if outcome == "again":
        assert isinstance(answered, PassingError)
    else:
        assert isinstance(answered, RejectedRequest) and "The picture's too large" in str(answered)


def test_what_stops_a_run_of_batches(tmp_path, monkeypatch):
    denied = Response(401, {"error": {"message": "Incorrect API key provided."}})
    with pytest.raises(ProviderError, match="Incorrect API key"):
        one_by_one(tmp_path / "denied", lambda body: denied, requests=3)
    with BatchServer(lambda body: "fine") as server, ledger_in(tmp_path / "others") as ledger:
        asyncio.run(submitted(ledger, server.base_url))
        with pytest.raises(UserError, match="submitted batches of openai/gpt-4o.*Give --llm openai/gpt-4o"):
            Batches("openai/gpt-4o-mini", ledger, base_url=server.base_url)
    with ledger_in(tmp_path / "alone") as ledger:
        with pytest.raises(ProviderError, match="failed 3 times in a row"):  # nobody is there any more
            asyncio.run(submitted(ledger, server.base_url))
        assert ledger.total == (0.25, 1)
    with ledger_in(tmp_path / "alone") as ledger:  # the provider never had it
        assert ledger.total == (0.0, 0) and ledger.find("key-0") is None
    monkeypatch.setattr("repair_hf.llm.batch_api.ENDPOINT", "/v1/embeddings")
    with pytest.raises(ProviderError, match="did not accept a batch: Not a request"):
        one_by_one(tmp_path / "refused", lambda body: "fine")
    with ledger_in(tmp_path / "refused") as ledger:
        assert Batches(MODEL, ledger).waiting == 0


@pytest.mark.parametrize(("answered", "rejected"), [(2, 38), (0, 1)])
def test_rejections_are_not_final_if_there_are_many_or_nothing_was_answered_before(answered, rejected, tmp_path):
    """As when a key expires, or a provider calls a parameter otherwise."""
    if answered:
        assert len(one_by_one(tmp_path, lambda body: "fine", requests=answered)[0]) == answered
    expired = Response(400, {"error": {"message": "API key expired"}})

    async def main(base_url: str) -> None:
        with ledger_in(tmp_path) as ledger:
            batches = Batches(MODEL, ledger, base_url=base_url, retries=QUICK)
            for number in range(answered, answered + rejected):
                await batches.defer(f"key-{number}", request(number), Topic("audit", "i2t", MODEL), 0.25)
            await batches.submit()
            with pytest.raises(
                ProviderError, match=f"API key expired.*{rejected} such faults.*submits the rest again"
            ):
                await batches.collect()
            assert ledger.find(f"key-{answered}") is None and ledger.total[1] == answered

    with BatchServer(lambda body: expired) as server:
        asyncio.run(main(server.base_url))


def test_signs_that_break_lines_elsewhere_may_stand_in_an_answer():
    said = "a dog\u2028by the\x85sea"
    message = {"role": "assistant", "content": said}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    line = json.dumps({"custom_id": "k", "response": {"status_code": 200, "body": body}}, ensure_ascii=False)
    api = BatchAPI(MODEL, base_url=None, retries=QUICK)
    ((key, reply),) = api._read(f"{line}\n\n")
    assert (key, reply.text) == ("k", said)


def test_a_batch_at_vertex_is_found_by_its_file(monkeypatch):
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

    monkeypatch.setattr(BatchAPI, "_send", send)
    api = BatchAPI("vertex_ai/gemini-2.5-flash", base_url=None, retries=QUICK)
    assert [asyncio.run(api.find(f"gs://bucket/file-{number}")) for number in (1, 3, 4)] == ["1", "3", None]


@pytest.mark.parametrize(("limit", "most", "batches"), [("MOST_REQUESTS", 4, 3), ("MOST_BYTES", 500, 5)])
def test_large_batches_are_cut(limit, most, batches, tmp_path, monkeypatch):
    monkeypatch.setattr(batches_module, limit, most)
    replies, _ = one_by_one(tmp_path / "all", lambda body: "fine", requests=10)
    assert sorted(replies) == [f"key-{number}" for number in range(10)]
    with BatchServer(lambda body: "fine") as server, ledger_in(tmp_path) as ledger:
        asyncio.run(submitted(ledger, server.base_url, requests=10))
        assert len(set(ledger.database.execute("SELECT batch_id FROM call"))) == batches


@pytest.mark.parametrize("model", ["gemini/gemini-2.5-flash", "anthropic/claude-sonnet-4-5"])
def test_a_provider_without_batches_is_named(model):
    with pytest.raises(UserError, match=re.escape(f"--batch: LiteLLM supports no batch API for {model}")) as raised:
        BatchAPI(model, base_url=None, retries=QUICK)
    advised = re.search(r"vertex_ai/gemini[\w.-]+", str(raised.value))[0]
    assert batch_route(advised)[1] == "vertex_ai" and price_per_token(advised, batch=True)


def test_batches_that_are_out_are_not_asked_again_in_another_way_and_hold_no_key(tmp_path):
    with BatchServer(lambda body: "fine") as server, ledger_in(tmp_path) as ledger:
        refuse_if_waiting(ledger)
        server.batches.delay = 3600
        asyncio.run(submitted(ledger, server.base_url))
        with pytest.raises(UserError, match="in 1 batches, .* Give --batch"):
            refuse_if_waiting(ledger)
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.iterdir())
