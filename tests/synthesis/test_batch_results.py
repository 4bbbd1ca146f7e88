"""What a provider's batch brings back: odd lines, missing answers, a batch that is too large or created twice."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from batch_server import BatchServer
from hypothesis import given, settings
from ledgers import ledger_in, rows
from provider_server import said

from repair_hf.llm.batch_api import LATE, TOO_LARGE, BatchAPI
from repair_hf.llm.batches import Batches
from repair_hf.llm.errors import ProviderError
from repair_hf.toyworld.server import Response
from tests.llm.test_mutations import mutated
from tests.synthesis.test_batch_requests import MODEL, QUICK, deferred, one_by_one, submitted


def results(content: str | bytes) -> dict[str, str]:
    """What each line of a file of results is read as."""
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    return {key: type(outcome).__name__ for key, outcome in BatchAPI(MODEL, base_url=None, retries=QUICK)._read(text)}


def line_of(**changes) -> str:
    body = said("openai", "fine")
    return json.dumps({"custom_id": "k", "response": {"status_code": 200, "body": body}, "error": None} | changes)


ODD_LINES = {
    "null": "null",
    "a number": "7",
    "cut": line_of()[:-9],
    "no id": line_of(custom_id=None),
    "a list as id": line_of(custom_id=["k"]),
    "NaN": "NaN",
    "a page": "<html>",
    "Latin-1": b"\xe9t\xe9",
    "nested": "[" * 5000,
}


@pytest.mark.parametrize("kind", ODD_LINES)
def test_one_odd_line_is_one_row(kind):
    odd = ODD_LINES[kind]
    odd = odd if isinstance(odd, bytes) else odd.encode()
    assert results(odd + b"\n" + line_of(custom_id="good").encode() + b"\n") == {"good": "Reply"}


def test_a_row_whose_body_is_empty_or_whose_status_is_no_number_is_a_fault_of_its_own():
    for response in ({"status_code": 200, "body": {}}, {"status_code": "x", "body": 7}, {"status_code": 500}, [], 3):
        found = results(line_of(response=response) + "\n" + line_of(custom_id="good"))
        assert found["good"] == "Reply" and found["k"] != "Reply"


@settings(max_examples=150, deadline=None)
@given(mutated(json.loads(line_of())))
def test_a_mutated_line_of_results_loses_only_itself(line):
    found = results(line + b"\n" + line_of(custom_id="good").encode())
    assert found["good"] == "Reply" and len(found) <= 2


@pytest.mark.parametrize(("content", "lost"), [(b"", 4), (None, 4), ("half", 2)])
def test_requests_of_a_finished_batch_without_an_answer_are_lost_and_count(content, lost, tmp_path):
    """The provider has billed them; a run after the other may not buy them for ever."""
    with BatchServer(lambda body: "fine") as server, ledger_in(tmp_path) as ledger:
        keep = server.batches._keep

        def keep_less(data: bytes, purpose: str) -> dict:
            if purpose != "batch":
                data = b"\n".join(data.splitlines()[:2]) if content == "half" else content or b"null"
            return keep(data, purpose)

        server.batches._keep = keep_less
        asyncio.run(submitted(ledger, server.base_url, requests=4))
        asyncio.run(Batches(MODEL, ledger, base_url=server.base_url, retries=QUICK).collect())
        assert ledger.total[1] == 4 and len(rows(tmp_path, "lost")) == lost


@pytest.mark.parametrize(("age", "lost"), [(0, 0), (LATE + 60, 4)])
def test_a_completed_batch_that_names_no_file_is_waited_for_a_little_and_then_lost(age, lost, tmp_path):
    """Its files may be named a moment later; for ever it would block every later run."""
    with BatchServer(lambda body: "fine") as server, ledger_in(tmp_path) as ledger:
        look = server.batches._look
        bare = {"output_file_id": None, "error_file_id": None}
        asyncio.run(submitted(ledger, server.base_url, requests=4))
        server.batches._look = lambda batch: look(batch) | bare | {"completed_at": int(time.time()) - age}
        batches = Batches(MODEL, ledger, base_url=server.base_url, retries=QUICK)
        assert not asyncio.run(batches.collect())
        assert (batches.waiting, len(rows(tmp_path, "lost"))) == (4 - lost, lost) and ledger.total == (1.0, 4)


def test_a_mass_of_rejections_is_not_final_in_a_batch_either(tmp_path):
    """One good answer does not make sixty rejections the fault of their rows."""

    def reply(body: dict) -> str | Response:
        return "fine" if body["seed"] == 0 else Response(400, {"error": {"message": "not now"}})

    with pytest.raises(ProviderError, match="not now.*60 such faults"):
        one_by_one(tmp_path, reply, requests=61)
    assert len(rows(tmp_path)) == 1 and not rows(tmp_path, "rejected")


def test_a_batch_that_is_created_in_spite_of_an_error_is_not_submitted_twice(tmp_path):
    """The provider fails as it creates the batch, and lists it some seconds later."""
    with BatchServer(lambda body: "fine") as server, ledger_in(tmp_path) as ledger:
        create, created, get, listed = server.batches._create, [], server.batches.get, []

        def fail(wish: dict) -> Response:
            created.append(create(wish))
            return Response(500, {"error": {"message": "boom"}})

        def list_late(path: str) -> Response:
            if path.startswith("/v1/batches?"):
                listed.append(path)
                if len(listed) < 3:
                    return Response(body={"object": "list", "data": [], "has_more": False})
            return get(path)

        server.batches._create, server.batches.get = fail, list_late
        with pytest.raises(ProviderError, match="does not list it"):
            asyncio.run(submitted(ledger, server.base_url, requests=2))
    with ledger_in(tmp_path) as ledger:
        assert len(created) == 1 and len(rows(tmp_path, "submitted")) == 2


def test_a_batch_that_expires_is_announced_and_what_it_was_billed_counts(tmp_path, caplog):
    """Two of its four requests were answered, by the provider's count; no file came."""
    with BatchServer(lambda body: "fine") as server, ledger_in(tmp_path) as ledger:
        look = server.batches._look
        gone = {"status": "expired", "output_file_id": None, "error_file_id": None}
        counts = {"request_counts": {"total": 4, "completed": 2, "failed": 0}}
        asyncio.run(submitted(ledger, server.base_url, requests=4))
        server.batches._look = lambda batch: look(batch) | gone | counts
        with caplog.at_level("INFO", "repair_hf"):
            asyncio.run(Batches(MODEL, ledger, base_url=server.base_url, retries=QUICK).collect())
        assert "is expired; what it left is submitted again" in caplog.text
        assert len(rows(tmp_path, "lost")) == 2 == ledger.total[1] and not rows(tmp_path, "submitted")


def test_a_batch_that_is_too_large_is_halved(tmp_path):
    """Until it fits; nothing of it was billed."""
    with BatchServer(lambda body: "fine") as server, ledger_in(tmp_path) as ledger:
        look, sizes = server.batches._look, []

        def refuse_large(batch: dict) -> dict:
            if len(batch["rows"]) > 2:
                problem = {"code": TOO_LARGE, "message": "Enqueued token limit reached", "line": None, "param": None}
                batch |= {"status": "failed", "errors": {"object": "list", "data": [problem]}, "rows": batch["rows"]}
            return look(batch)

        server.batches._look = refuse_large

        async def main() -> None:
            most = None
            for _ in range(3):
                batches = await deferred(ledger, server.base_url, requests=0) if most is None else most
                await batches.collect()
                for number in range(8):
                    if ledger.find(f"key-{number}") is None:
                        await defer(batches, number)
                await batches.submit()
                sizes.append(batches._most)
                most = batches

        asyncio.run(main())
        assert sizes[1:] == [4, 2] and ledger.total[1] == 8


async def defer(batches: Batches, number: int) -> None:
    from tests.synthesis.test_batch_requests import Topic, request

    await batches.defer(f"key-{number}", request(number), Topic("audit", "i2t", MODEL), 0.25)
