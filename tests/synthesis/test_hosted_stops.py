"""A run with a hosted editor is killed, or stops: what is paid for is kept, and nothing more is bought."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from chat_server import ChatServer, Response
from children import Child
from hosted_editors import editor_at
from ledgers import ledger_in, rows
from PIL import Image
from provider_server import png
from small_world import sources_of

from repair_hf.llm.asker import Asker
from repair_hf.llm.provider import ProviderError
from repair_hf.synthesis import hosted
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.loop import work_through
from tests.synthesis.test_hosted import PRICES, buy


class Port:
    """The part of a server that its address needs; a server itself cannot go to another process."""

    def __init__(self, address: str) -> None:
        self.url = lambda shape: address


def buy_and_die(address: str, picture: Path, folder: Path, after: int) -> None:
    """Make candidates, and be killed right after so many files were saved."""
    save, saved, lock = hosted.save_picture, [], threading.Lock()

    def save_and_die(path, image):
        with lock:
            saved.append(save(path, image))
            if len(saved) == after:
                os.kill(os.getpid(), signal.SIGKILL)
        return saved[-1]

    hosted.save_picture = save_and_die
    buy(Port(address), "openai", sources_of(picture), folder, count=12, concurrency=12)


@pytest.mark.slow
def test_an_image_is_saved_before_the_ledger_says_that_it_came(serve, tmp_path):
    """Files that a killed process has saved are used; their bills count at the highest price."""
    picture, folder = tmp_path / "p.png", tmp_path / "run"
    Image.new("RGB", (64, 48), "green").save(picture)
    server, together = serve(lambda n: png(colour=(n, 0, 0))), threading.Barrier(12)
    answer = server.answer

    def meet(question):
        together.wait(120)
        return answer(question)

    server.answer = meet
    child = Child(buy_and_die, server.url(), picture, folder, 6)
    assert child.wait() == -signal.SIGKILL, child.said()
    assert len(list(folder.rglob("*.png"))) == 6
    server.answer = answer
    _, images = buy(server, "openai", sources_of(picture), folder, count=12)
    assert (images.reused, images.made) == (6, 6) and len(server.asked) == 18
    with ledger_in(folder) as ledger:
        assert ledger.total[1] == 18 and ledger.total[0] >= 18 * PRICES["openai"] - 1e-9


def test_when_a_run_stops_no_more_images_are_bought_and_those_on_their_way_arrive(serve, sources, tmp_path):
    """One image is on its way and seven wait when the LLM's provider fails for good; an answer of its own is late."""
    is_drawn, is_stopping = threading.Event(), threading.Event()

    def draw(n: int) -> bytes:
        is_drawn.set()
        assert is_stopping.wait(60)
        return png()

    def say(body: dict) -> str | Response:
        if body["messages"][0]["content"] == "late":
            assert is_stopping.wait(60)
            time.sleep(0.3)  # in which further images could be bought
            return "late"
        assert is_drawn.wait(60)
        return Response(401, {"error": {"message": "no such key"}})

    class Images(Candidates):
        async def close(self) -> None:
            asyncio.get_running_loop().call_soon(is_stopping.set)
            await super().close()

    server = serve(draw)

    async def finish(work) -> None:
        await work

    async def work(url: str) -> None:
        with ledger_in(tmp_path) as ledger:
            asker = Asker("openai/gpt-4o-mini", ledger, base_url=url)
            editor = editor_at(server, "gemini", ledger, concurrency=1)
            images = Images(editor, sources, ledger.folder, count=4, seed=0)
            questions = [[{"role": "user", "content": word}] for word in ("late", "no")]
            answers = [asker.ask(question, stage="x", direction="t2i") for question in questions]
            await work_through(asker, [[images.make(0, "red"), images.make(1, "red"), *answers]], finish, images)

    with ChatServer(say) as llm, pytest.raises(ProviderError, match="no such key"):
        asyncio.run(work(llm.base_url))
    bought = [row for row in rows(tmp_path) if row["stage"] == "edit"]
    assert len(server.asked) == len(bought) == len(list(tmp_path.rglob("*.png"))) == 1
    assert len(rows(tmp_path)) == 2  # the late answer, too
