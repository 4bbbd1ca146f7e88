"""A run with an image editor at a provider stops: what is paid for arrives, and nothing more is bought."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine

import pytest
from hosted_editors import editor_at
from ledgers import ledger_in, rows
from provider_server import png

from repair_hf.llm.client import ChatModel
from repair_hf.llm.errors import ProviderError
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.workers import work_through
from repair_hf.toyworld.server import ChatServer, Response


def bills(folder) -> list[dict]:
    return [row for row in rows(folder) if row["stage"] == "edit"]


def test_when_a_run_stops_what_is_paid_for_arrives(serve, sources, tmp_path):
    started, stopped = threading.Event(), threading.Event()

    def slowly(n: int) -> bytes:
        started.set()
        stopped.wait(30)
        return png()

    server = serve(slowly)
    editor = editor_at(server, "gemini", concurrency=1)

    async def work() -> None:
        with ledger_in(tmp_path) as ledger:
            images = Candidates(editor, sources, ledger, count=3, seed=0)
            async with images.open():
                waiting = asyncio.create_task(images.make(0, "red"))
                await asyncio.to_thread(started.wait, 30)
                waiting.cancel()
                asyncio.get_running_loop().call_later(0.1, stopped.set)  # a turn of the loop later the run stops

    asyncio.run(work())
    assert (
        len(server.asked)
        == sum(row["stage"] == "edit" for row in rows(tmp_path))
        == len(list(tmp_path.rglob("*.png")))
        == 1
    )


def test_when_the_llm_stops_a_run_no_image_is_bought_any_more(serve, sources, tmp_path, monkeypatch):
    """One image is on its way and seven wait when the LLM's provider fails for good; an answer of its own is late."""
    is_drawn, has_stopped, stop = threading.Event(), threading.Event(), Candidates.stop
    monkeypatch.setattr(Candidates, "stop", lambda images: (stop(images), has_stopped.set()))

    def draw(n: int) -> bytes:
        is_drawn.set()
        has_stopped.wait(10)  # or the images would come all the same
        return png()

    def say(body: dict) -> str | Response:
        if body["messages"][0]["content"] == "late":
            has_stopped.wait(10)
            time.sleep(1)  # in which further images could be bought
            return "late"
        is_drawn.wait(30)
        return Response(401, {"error": {"message": "no such key"}})

    server = serve(draw)
    editor = editor_at(server, "gemini", concurrency=1)

    async def finish(work: Coroutine) -> None:
        await work

    async def work() -> None:
        with ledger_in(tmp_path) as ledger:
            chat = ChatModel("openai/gpt-4o-mini", ledger=ledger, base_url=llm.base_url)
            images = Candidates(editor, sources, ledger, count=4, seed=0)
            messages = [[{"role": "user", "content": word}] for word in ("late", "no")]
            said = [chat.ask(each, stage="x", direction="t2i") for each in messages]
            async with images.open():
                work: list[Coroutine] = [images.make(0, "red"), images.make(1, "red"), *said]
                await work_through(chat, [work], finish, images)

    with ChatServer(say) as llm, pytest.raises(ProviderError, match="no such key"):
        asyncio.run(work())
    assert (
        len(server.asked)
        == sum(row["stage"] == "edit" for row in rows(tmp_path))
        == len(list(tmp_path.rglob("*.png")))
        == 1
    )
