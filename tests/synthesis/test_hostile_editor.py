"""An image editor that fails in unusual ways, or a process that dies: each image is paid for, and counted, once."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import signal
import threading
from pathlib import Path

import pytest
from children import Child
from fake_clock import time_out_when
from hosted_editors import editor_at
from ledgers import ledger_in, rows
from PIL import Image
from provider_server import Wire, edited, error, png
from small_world import sources_of

from repair_hf.llm import provider
from repair_hf.llm.cost import paid_in
from repair_hf.llm.errors import ProviderError
from repair_hf.llm.ledger import BudgetSpent
from repair_hf.llm.sending import Retries
from repair_hf.synthesis import candidates
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from tests.synthesis.painter import Painter
from tests.synthesis.painter import make as make_here

PRICE = 0.01383  # of an image, by what `provider_server.edited` says it used
both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])


def make(editor: HostedEditor, sources, folder: Path, *, count=2, max_usd=None, max_calls=None):
    async def work():
        with ledger_in(folder, max_usd, max_calls) as ledger:
            images = Candidates(editor, sources, ledger, count=count, seed=0)
            async with images.open():
                return await images.make(0, "make it red"), images

    return asyncio.run(work())


class Port:
    """The part of a server that its address needs; a server itself cannot go to another process."""

    def __init__(self, address: str) -> None:
        self.url = lambda shape: address


def make_and_die(address: str, picture: Path, folder: Path, after: int) -> None:
    """Make candidates, and be killed right after so many files were saved."""
    save, saved, lock = candidates.save_candidate, [], threading.Lock()

    def save_and_die(path, image):
        with lock:
            saved.append(save(path, image))
            if len(saved) == after:
                os.kill(os.getpid(), signal.SIGKILL)
        return saved[-1]

    candidates.save_candidate = save_and_die
    make(editor_at(Port(address), "openai", concurrency=12), sources_of(picture), folder, count=12)


def test_images_that_a_killed_process_has_saved_are_counted(serve, tmp_path):
    """The file of an image is there before its bill is known; until then its worst case counts."""
    picture, folder = tmp_path / "p.png", tmp_path / "run"
    Image.new("RGB", (64, 48), "green").save(picture)
    server, together = serve(lambda n: png(colour=(n, 0, 0))), threading.Barrier(12)
    answer = server.answer

    def meet(question):
        together.wait(120)
        return answer(question)

    server.answer = meet
    child = Child(make_and_die, server.url(), picture, folder, 6)
    assert child.wait() == -signal.SIGKILL, child.said()
    assert len(list(folder.rglob("*.png"))) == 6
    server.answer = answer
    paths, images = make(editor_at(server, "openai"), sources_of(picture), folder, count=12)
    assert (images.found, images.made) == (6, 6) and 12 <= len(server.asked) <= 18  # what had arrived is not asked for
    states = ("answered", "received", "lost")
    bills = [row["key"].partition("/")[0] for state in states for row in rows(folder, state)]
    assert {path.stem for path in paths} <= set(bills) and len(bills) == len(server.asked)
    with ledger_in(folder) as ledger:
        assert ledger.total[0] >= len(bills) * PRICE - 1e-9 and ledger.total[1] == len(bills)


def with_image(shape: str, data: str) -> Wire:
    """Return an answer whose image is this text in place of one in base 64."""
    whole = json.dumps(edited(shape, png()), ensure_ascii=False)
    return Wire(body=whole.replace(base64.b64encode(png()).decode(), data).encode())


NOT_AN_IMAGE = {"letters": "äöü", "too short": "A", "other signs": "!!", "text": base64.b64encode(b"text").decode()}


@both_shapes
@pytest.mark.parametrize("kind", NOT_AN_IMAGE)
def test_what_is_no_image_is_paid_for_once(kind, shape, serve, sources, tmp_path):
    server = serve(lambda n: (200, with_image(shape, NOT_AN_IMAGE[kind]).body, {}))
    for _ in range(2):
        paths, _ = make(editor_at(server, shape), sources, tmp_path)
        assert paths == [None, None] and len(server.asked) == len(rows(tmp_path)) == 2


BAD_PICTURES = {"black": ((64, 48), "black"), "a pixel": ((1, 1), "red"), "a line": ((900, 2), "red")}


@pytest.mark.parametrize("kind", BAD_PICTURES)
def test_an_image_that_shows_nothing_is_no_candidate_of_any_editor(kind, serve, sources, tmp_path):
    size, colour = BAD_PICTURES[kind]
    server = serve(lambda n: png(size, colour))
    for _ in range(2):
        paths, _ = make(editor_at(server, "openai"), sources, tmp_path / "hosted")
        assert paths == [None, None] and len(server.asked) == 2

    class Failing(Painter):
        def _paint(self, source, instruction, seed):
            return Image.new("RGB", size, colour)

    editor = Failing()
    for _ in range(2):
        assert make_here(editor, sources, tmp_path / "here", [(0, "red")])[0] == [[None] * 3]
    assert len(editor.calls) == 1


def test_an_impossible_usage_of_an_image_counts_as_its_worst_case(serve, sources, tmp_path):
    body = edited("openai", png())
    body["usage"] |= {"output_tokens": -10_000}
    server = serve(lambda n: (200, body, {}))
    editor = editor_at(server, "openai")
    make(editor, sources, tmp_path)
    assert [(row["dollars"], row["worst"]) for row in rows(tmp_path)] == [
        (None, pytest.approx(editor.price_bound))
    ] * 2


def test_a_bill_above_the_reserved_price_is_what_the_next_image_may_cost(serve, sources, tmp_path):
    body = edited("openai", png())
    body["usage"] |= {"output_tokens": 12_000, "total_tokens": 12_300}
    server = serve(lambda n: (200, body, {}))
    editor = editor_at(server, "openai", concurrency=1)
    with pytest.raises(BudgetSpent, match="0.8 is reached: .0.33 are paid, and the next request may cost .0.48"):
        make(editor, sources, tmp_path, max_usd=0.8)
    assert len(server.asked) == 1 and 2 * editor.price_bound < 0.8  # it counts as what was reserved


@pytest.mark.parametrize("ending", ["huge", "dripping"])
@both_shapes
def test_a_response_without_end_is_cut_off_and_counts_as_its_worst_case(
    shape, ending, serve, sources, tmp_path, monkeypatch
):
    server, asked = serve(lambda n: png()), []

    def answer(question) -> Wire:
        asked.append(question)
        if ending == "huge":
            return Wire(body=bytes(2**20), ending=ending)
        return Wire(body=edited(shape, png()), ending=ending, delay=0.2)  # each byte comes in time

    server.answer = answer
    if ending == "dripping":
        monkeypatch.setattr(provider, "asyncio", time_out_when(lambda: asked))
    editor = editor_at(server, shape, concurrency=1, retries=Retries(attempts=1))
    with pytest.raises(ProviderError, match="larger than 64 MiB" if ending == "huge" else "no whole response"):
        make(editor, sources, tmp_path, count=1)
    assert [row["worst"] for row in rows(tmp_path, "lost")] == [pytest.approx(editor.price_bound)]


def test_a_ceiling_on_calls_limits_images_that_have_no_price(serve, sources, tmp_path):
    server = serve(lambda n: png())
    editor = editor_at(server, "openai", model="openai/mine", concurrency=2)
    with pytest.raises(BudgetSpent, match="--max-calls 3 is reached: 3 answers and images are paid"):
        make(editor, sources, tmp_path, count=8, max_calls=3)
    assert len(server.asked) == len(list(tmp_path.rglob("*.png"))) == paid_in(tmp_path)["edit", "t2i"].calls == 3


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"", lambda data: data[:60] + data[80:]])
def test_a_damaged_file_is_set_aside_and_made_again(damage, serve, sources, tmp_path, caplog):
    server = serve(lambda n: png(colour=(n, 0, 0)))
    paths, _ = make(editor_at(server, "openai"), sources, tmp_path, count=4)
    whole = paths[3].read_bytes()
    for path in paths[:3]:
        path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, "repair_hf"):
        again, images = make(editor_at(server, "openai"), sources, tmp_path, count=4)
    assert again == paths and (images.made, images.found) == (3, 1) and paths[3].read_bytes() == whole
    assert len(server.asked) == len(rows(tmp_path)) == 7 and len(list(tmp_path.rglob("*.broken"))) == 3
    assert [record.getMessage().count("paid for again") for record in caplog.records] == [1]
    for path in paths:
        Image.open(path).load()


def test_a_refusal_of_an_editor_is_kept_without_what_a_terminal_obeys(serve, sources, tmp_path):
    refusal = error("openai", 400, "no\x1b[2J \u202eimage", "moderation_blocked")
    server = serve(lambda n: (400, refusal, {}))
    paths, _ = make(editor_at(server, "openai"), sources, tmp_path, count=1)
    (row,) = rows(tmp_path)
    assert paths == [None] and json.loads(row["reply"])[1].isprintable()
