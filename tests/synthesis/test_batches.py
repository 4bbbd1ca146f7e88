"""Answers by the provider's batch API, over HTTP: handed in by one run, collected by a later one, never paid for twice."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

from repair_hf.encoder import DualEncoder
from repair_hf.llm import batches as batches_module
from repair_hf.llm.batches import Batches, Question, refuse_if_waiting
from repair_hf.llm.client import ChatModel, ProviderError
from repair_hf.llm.cost import token_price
from repair_hf.llm.failures import PassingFailure
from repair_hf.llm.journal import Journal
from repair_hf.llm.provider import Reply
from repair_hf.llm.retries import Retries
from repair_hf.mining import mine_false_positives
from repair_hf.options import UserError
from repair_hf.pairs import load_pairs
from repair_hf.records import save_records
from repair_hf.runs import RunStopped
from repair_hf.synthesis.pipeline import Synthesizer
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.editor import WorldEditor
from repair_hf.toyworld.server import ChatServer, Response

QUICK = Retries(attempts=3, first_wait=0.01)


class Editor(WorldEditor):
    own_process = False


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return build_world(tmp_path_factory.mktemp("batches"), splits={"train": 8, "validation": 1, "test": 1})


@pytest.fixture(scope="module")
def world(source, clip_folder):
    pairs, encoder = load_pairs(source), DualEncoder.from_pretrained(str(clip_folder))
    failures = mine_false_positives(*encoder.embed_pairs(pairs), pairs.caption_image, d_i2t=2)
    return (
        pairs,
        encoder,
        failures.filter(lambda row: row["q"] < 4 if row["direction"] == "i2t" else row["q"] % 10 == 0),
    )


def synthesize(world, folder: Path, base_url: str, *, batch: bool = True, **options):
    """One run of the command, as far as it comes."""
    pairs, encoder, failures = world
    with Journal(folder / "journal.jsonl") as journal:
        batches = Batches("openai/world", folder / "batches", base_url=base_url, retries=QUICK) if batch else None
        chat = ChatModel("openai/world", journal=journal, base_url=base_url, batches=batches)
        records, dropped = Synthesizer(pairs, encoder, chat, Editor(), **options).run(failures, folder)
    save_records(folder, records, dropped)
    return read_table(folder / "records").to_pylist(), read_table(folder / "dropped").to_pylist()


def answer(body: dict) -> list[str]:
    return oracle.choices(oracle.answer, body)


def clumsy(body: dict) -> list[str]:
    """Often broken, but never on the second attempt."""
    is_first = len(body["messages"]) == 2
    return oracle.choices(partial(oracle.answer, malformed_rate=0.3 if is_first else 0.0), body)


def asked(log: Path) -> list[str]:
    return [json.loads(line)["digest"] for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    """What comes of it without batches."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch, ChatServer(answer) as server:
        patch.setenv("OPENAI_API_KEY", "none")
        return synthesize(world, folder, server.base_url, batch=False)


def until_done(world, folder: Path, base_url: str, **options):
    """Run after run, as a user would come back day after day."""
    told = []
    while True:
        try:
            return *synthesize(world, folder, base_url, **options), told
        except RunStopped as stop:
            told.append(str(stop))
            assert len(told) < 12, told


@pytest.mark.parametrize("options", [{}, {"grouped_audit": True, "candidates_in_one_request": True}])
def test_submit_leave_collect(world, whole, options, tmp_path):
    log = tmp_path / "log.jsonl"
    with ChatServer(clumsy, log=log) as server:
        server.batches.delay = 3600
        for _ in range(2):  # the second run finds nothing new to hand in
            with pytest.raises(RunStopped, match=r"^[\d,]+ requests are with openai/world in 1 batches"):
                synthesize(world, tmp_path / "out", server.base_url, **options)
            first = len(asked(log))
        server.batches.delay = 0
        records, dropped, told = until_done(world, tmp_path / "out", server.base_url, **options)
    assert first >= 8 and len(asked(log)) == len(set(asked(log)))
    assert 2 <= len(told) <= 6  # instruct, edit, and second attempts of each
    if not options:
        assert (records, dropped) == whole
    else:
        assert len(records) + len(dropped) == len(whole[0]) + len(whole[1])
    assert list((tmp_path / "out" / "batches").iterdir()) == []


@pytest.mark.slow
def test_the_command_is_killed_between_handing_in_and_collecting(source, world, whole, clip_folder, tmp_path):
    """By SIGKILL, when the provider has the batch and the command does not know it yet."""
    log, out, failures = tmp_path / "log.jsonl", tmp_path / "out", tmp_path / "failures.parquet"
    world[2].to_parquet(failures)
    quiet = {"env": os.environ | {"OMP_NUM_THREADS": "1"}, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with ChatServer(answer, log=log) as server:
        words = ["synthesize", "--pairs", source, "--failures", failures, "--model", clip_folder, "--llm", "openai/world",
                 "--editor", "world", "--batch", "--output", out, "--llm-base-url", server.base_url]  # fmt: skip
        command = [sys.executable, "-m", "repair_hf", *map(str, words)]
        take, has_it, is_killed = server.batches.post, threading.Event(), threading.Event()

        def take_slowly(path: str, *rest):
            response = take(path, *rest)
            if path == "/v1/batches":
                has_it.set()
                is_killed.wait(60)
            return response

        server.batches.post = take_slowly
        process = subprocess.Popen(command, **quiet)
        assert has_it.wait(600), process.communicate()[1]
        process.kill()
        process.communicate()
        is_killed.set()
        server.batches.post = take
        told = []
        while (run := subprocess.run(command, text=True, **quiet)).returncode:
            told.append(run.stderr.strip().splitlines()[-1])
            assert (
                run.returncode == 1 and "requests are with openai/world in 1 batches" in told[-1] and len(told) < 4
            ), run.stderr
    assert (read_table(out / "records").to_pylist(), read_table(out / "dropped").to_pylist()) == whole
    assert len(told) == 2 and len(asked(log)) == len(set(asked(log)))


class Killed(BaseException):
    """Like a signal, nothing of ours catches it."""


def kill(after: str, patch: pytest.MonkeyPatch):
    """Die when the provider has just got a `POST` of this path, before its answer is written down."""

    async def send(self, name, *args, **kwargs):
        result = await unharmed(self, name, *args, **kwargs)
        if name == after:
            raise Killed
        return result

    unharmed = batches_module.BatchAPI._send
    patch.setattr(batches_module.BatchAPI, "_send", send)


@pytest.mark.parametrize(
    "moment",
    [
        "create_batch",
        "file_content",
        pytest.param("create_file", marks=pytest.mark.slow),
        pytest.param("retrieve_batch", marks=pytest.mark.slow),
    ],
)
def test_killed_between_any_two_steps(world, whole, moment, tmp_path):
    log, folder = tmp_path / "log.jsonl", tmp_path / "out"
    with ChatServer(answer, log=log) as server:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            kill(moment, patch)
            until_done(world, folder, server.base_url)
        records, dropped, _ = until_done(world, folder, server.base_url)
    assert (records, dropped) == whole
    assert len(asked(log)) == len(set(asked(log)))  # every request reached the provider once


def test_killed_while_it_takes_answers_in(world, whole, tmp_path, monkeypatch):
    log, folder = tmp_path / "log.jsonl", tmp_path / "out"
    unharmed, taken = ChatModel._keep_collected, []

    def keep(self, question, reply):
        taken.append(question)
        if len(taken) == 4:
            raise Killed
        unharmed(self, question, reply)

    with ChatServer(answer, log=log) as server:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(ChatModel, "_keep_collected", keep)
            until_done(world, folder, server.base_url)
        assert (folder / "journal.jsonl").read_text().count("\n") == 3
        records, dropped, _ = until_done(world, folder, server.base_url)
    assert (records, dropped) == whole and len(asked(log)) == len(set(asked(log)))


def one_by_one(tmp_path, reply, *, model: str = "openai/gpt-4o", requests: int = 1, **server_options):
    """Hand in questions and collect: what was kept, and the batches."""
    kept: list[tuple[Question, Reply]] = []

    async def main(base_url: str) -> Batches:
        batches = Batches(model, tmp_path, base_url=base_url, retries=QUICK)
        for number in range(requests):
            batches.defer(Question(f"key-{number}", request(number), "audit", "i2t", 0.25))
        await batches.submit()
        later = Batches(model, tmp_path, base_url=base_url, retries=QUICK)
        assert (later.waiting, later.promised) == (requests, 0.25 * requests) and later.holds("key-0")
        await later.collect(lambda *answer: kept.append(answer))
        return later

    with ChatServer(reply, **server_options) as server:
        return kept, asyncio.run(main(server.base_url))


def request(number: int = 0) -> dict:
    messages = [{"role": "user", "content": f"hello {number}"}]
    return {"model": "openai/gpt-4o", "messages": messages, "temperature": 0.0, "max_tokens": 50, "seed": number}


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
        number = body["seed"]
        said = {
            1: Response(500, {"error": {"message": "our fault"}}),
            2: Response(400, {"error": {"message": "the image is too large", "type": "invalid_request_error"}}),
            3: Response(400, {"error": {"message": "blocked", "code": "content_policy_violation"}}),
            4: Response(429, {"error": {"message": "slow down"}}),
        }
        return said.get(number, "fine")

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
    (answered,) = Batches("vertex_ai/gemini-2.5-flash", tmp_path)._api._read(content)
    if outcome == "again":
        assert answered.reply is None and isinstance(answered.fault, PassingFailure)
    else:
        assert answered.reply.finish == "rejected" and "The picture's too large" in answered.reply.text


def test_a_batch_that_an_earlier_version_handed_in_is_collected(tmp_path):
    with ChatServer(lambda body: "fine") as server:
        batches = Batches("openai/gpt-4o", tmp_path / "batches", base_url=server.base_url, retries=QUICK)
        batches.defer(Question("k", request(), "audit", "i2t", 0.25))
        asyncio.run(batches.submit())
        (state,) = (tmp_path / "batches").iterdir()
        told = json.loads(state.read_text())
        assert told["questions"]["k"].pop() == 0  # the size of its prompt, which was not told then
        del told["model"]  # nor was this
        state.write_text(json.dumps(told))
        with Journal(tmp_path / "journal.jsonl") as journal:
            later = Batches("openai/gpt-4o", tmp_path / "batches", base_url=server.base_url, retries=QUICK)
            assert later.promised == 0.25
            chat = ChatModel("openai/gpt-4o", journal=journal, base_url=server.base_url, batches=later)
            asyncio.run(chat.collect())
            assert journal.get("k").text == "fine"


def test_a_provider_that_accepts_no_request_drops_nothing(world, whole, tmp_path):
    """As one does that calls a parameter otherwise; a single request that it does not accept costs its own row."""
    is_sorry = False

    def reply(body: dict):
        return answer(body) if is_sorry else Response(400, {"error": {"message": "`max_tokens` is unknown here"}})

    with ChatServer(reply) as server:
        with pytest.raises(RunStopped, match="1 batches"):
            synthesize(world, tmp_path, server.base_url)
        with pytest.raises(ProviderError, match=r"`max_tokens` is unknown here.*hands the rest in again"):
            synthesize(world, tmp_path, server.base_url)
        assert (tmp_path / "journal.jsonl").read_text() == ""
        is_sorry = True
        assert until_done(world, tmp_path, server.base_url)[:2] == whole


def test_edits_that_do_not_come_together_are_asked_for_one_by_one(world, whole, tmp_path):
    def reply(body: dict):
        return answer(body) if body.get("n", 1) == 1 else Response(400, {"error": {"message": "`n` is unknown here"}})

    with ChatServer(reply) as server:
        assert until_done(world, tmp_path, server.base_url, candidates_in_one_request=True)[:2] == whole


def test_batches_of_another_model_are_collected_first(tmp_path):
    with ChatServer(lambda body: "fine") as server:
        batches = Batches("openai/gpt-4o", tmp_path, base_url=server.base_url)
        batches.defer(Question("k", request(), "audit", "i2t", 0.25))
        asyncio.run(batches.submit())
        with pytest.raises(UserError, match="batches of openai/gpt-4o that were handed in.*give --llm openai/gpt-4o"):
            Batches("openai/gpt-4o-mini", tmp_path, base_url=server.base_url)


def test_a_batch_that_is_refused_stops_the_run_and_is_handed_in_again(tmp_path, monkeypatch):
    monkeypatch.setattr("repair_hf.llm.batch_api.ENDPOINT", "/v1/embeddings")
    with pytest.raises(ProviderError, match="did not accept a batch: Not a request"):
        one_by_one(tmp_path, lambda body: "fine")
    assert Batches("openai/gpt-4o", tmp_path).waiting == 0


def test_signs_that_break_lines_elsewhere_may_stand_in_an_answer(tmp_path):
    said = "a dog\u2028by the\x85sea"
    message = {"role": "assistant", "content": said}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    line = json.dumps({"custom_id": "k", "response": {"status_code": 200, "body": body}}, ensure_ascii=False)
    api = Batches("openai/gpt-4o", tmp_path)._api
    assert [answered.reply.text for answered in api._read(f"{line}\n\n")] == [said]


def test_a_batch_at_vertex_is_found_by_its_file(tmp_path, monkeypatch):
    """LiteLLM's lists of Vertex AI are dicts, whose pages have tokens, and whose batches have no name of ours."""
    from litellm.llms.vertex_ai.batches.transformation import VertexAIBatchTransformation

    def job(number: int) -> dict:
        source = {"gcsSource": {"uris": [f"gs://bucket/file-{number}"]}}
        return {"name": f"projects/1/batchPredictionJobs/{number}", "inputConfig": source, "state": "JOB_STATE_RUNNING", "createTime": "2026-01-01T00:00:00.0Z"}  # fmt: skip

    pages = {
        None: {"batchPredictionJobs": [job(1), job(2)], "nextPageToken": "more"},
        "more": {"batchPredictionJobs": [job(3)]},
    }

    async def send(self, name, *, after, limit):
        return VertexAIBatchTransformation.transform_vertex_ai_batch_list_response_to_openai_list_response(
            pages[after]
        )

    monkeypatch.setattr(batches_module.BatchAPI, "_send", send)
    api = Batches("vertex_ai/gemini-2.5-flash", tmp_path)._api
    assert [asyncio.run(api.find(f"gs://bucket/file-{number}")) for number in (1, 3, 4)] == ["1", "3", None]


def test_a_wrong_key_stops_the_run(tmp_path):
    def reply(body: dict) -> Response:
        return Response(401, {"error": {"message": "Incorrect API key provided."}})

    with pytest.raises(ProviderError, match="Incorrect API key"):
        one_by_one(tmp_path, reply, requests=3)


def test_nobody_at_home(tmp_path):
    with ChatServer(lambda body: "fine") as server:
        base_url = server.base_url
    batches = Batches("openai/gpt-4o", tmp_path, base_url=base_url, retries=QUICK)
    batches.defer(Question("k", request(), "audit", "i2t"))
    with pytest.raises(ProviderError, match="failed 3 times in a row"):
        asyncio.run(batches.submit())
    again = Batches("openai/gpt-4o", tmp_path, base_url=base_url, retries=QUICK)
    assert again.waiting == 1  # whether the provider has it is not known until it can be asked


def test_large_batches_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(batches_module, "MOST_REQUESTS", 4)
    kept, _ = one_by_one(tmp_path, lambda body: "fine", requests=10)
    assert sorted(question.key for question, _ in kept) == [f"key-{number}" for number in range(10)]
    monkeypatch.setattr(batches_module, "MOST_BYTES", 500)
    batches = Batches("openai/gpt-4o", tmp_path / "other")
    for number in range(10):
        batches.defer(Question(f"key-{number}", request(number), "audit", "i2t"))
        batches.defer(Question(f"key-{number}", request(number), "audit", "i2t"))  # known
    drafts = [len(path.read_bytes()) for path in (tmp_path / "other").glob("*.jsonl")]
    assert len(drafts) == 5 and batches.waiting == 10


@pytest.mark.parametrize("model", ["gemini/gemini-2.5-flash", "anthropic/claude-sonnet-4-5"])
def test_a_provider_without_batches_is_named(model, tmp_path):
    with pytest.raises(UserError, match=re.escape(f"--batch: {model} has no batch API that LiteLLM reaches")):
        Batches(model, tmp_path)


def test_batches_that_are_out_are_not_asked_again_in_another_way(tmp_path):
    refuse_if_waiting(tmp_path)
    with ChatServer(lambda body: "fine") as server:
        batches = Batches("openai/gpt-4o", tmp_path, base_url=server.base_url)
        batches.defer(Question("k", request(), "audit", "i2t"))
        refuse_if_waiting(tmp_path)
        asyncio.run(batches.submit())
    with pytest.raises(UserError, match="1 batches .* give --batch"):
        refuse_if_waiting(tmp_path)


def test_no_key_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789abcdef")
    with ChatServer(lambda body: "fine") as server:
        server.batches.delay = 3600
        batches = Batches("openai/gpt-4o", tmp_path, base_url=server.base_url)
        batches.defer(Question("k", request(), "audit", "i2t"))
        assert not any(b"planted" in path.read_bytes() for path in tmp_path.iterdir())
        asyncio.run(batches.submit())
    files = list(tmp_path.iterdir())
    assert len(files) == 1 and b"planted" not in files[0].read_bytes()
