"""Image editing at a provider: over LiteLLM to a server on loopback that speaks OpenAI's and Gemini's protocols."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from PIL import Image
from provider_server import KEY, ImageServer, edited, png
from small_world import sources_of

from repair_hf.llm.budget import Budget, BudgetSpent
from repair_hf.llm.client import ChatModel
from repair_hf.llm.failures import ProviderError, Retries
from repair_hf.llm.journal import LOST, Journal
from repair_hf.llm.limits import Circuit, Limits
from repair_hf.llm.prompts import Drawing
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.sources import open_picture
from repair_hf.synthesis.workers import work_through
from repair_hf.toyworld.server import ChatServer, Response

MODELS = {"openai": "openai/gpt-image-1", "gemini": "gemini/gemini-2.5-flash-image"}
PRICES = {"openai": 0.01383, "gemini": 0.038781}  # of what `provider_server.edited` says it used
SOON = Retries(attempts=4, first_wait=0.01, longest_wait=0.02)
both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])


def sent(data: bytes) -> tuple[bytes, str]:
    """Image and prompt in the body of a request, of either shape."""
    if data.startswith(b"{"):
        image, text = json.loads(data)["contents"][0]["parts"]
        return base64.b64decode(image["inlineData"]["data"]), text["text"]
    fields = dict(re.findall(rb'name="([^"]+)"[^\n]*\r\n(?:Content-Type[^\n]*\r\n)?\r\n(.*?)\r\n--', data, re.DOTALL))
    assert set(fields) == {b"model", b"prompt", b"image[]"}  # OpenAI refuses what it does not know
    return fields[b"image[]"], fields[b"prompt"].decode()


@pytest.fixture
def serve():
    with ExitStack() as servers:
        yield lambda script: servers.enter_context(ImageServer(script))


def make(server, shape, sources, folder: Path, jobs, *, count=2, budget=None, **options):
    editor = HostedEditor(MODELS[shape], base_url=server.base_url(shape), retries=SOON, timeout=60.0, **options)
    paid = {"count": count, "seed": 0, "budget": budget}

    async def work():
        with Journal(folder / "images.jsonl") as journal:
            images = Candidates(editor, sources, folder / "candidates", journal=journal, **paid)
            async with images.open():
                return await asyncio.gather(*(images.make(fp, word) for fp, word in jobs)), images

    return asyncio.run(work())


def bills(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "images.jsonl").read_text().splitlines()]


@both_shapes
def test_each_candidate_is_one_paid_request(shape, serve, sources, tmp_path):
    server = serve(lambda n: png(colour=(n, 0, 0)))
    (paths, others), images = make(server, shape, sources, tmp_path, [(0, "make it red"), (1, "make it blue")])
    pictures = [open_picture(path.read_bytes()) for path in (*paths, *others)]
    assert len({picture.getpixel((0, 0)) for picture in pictures}) == 4 == len(server.asked)
    assert all(picture.size == (64, 48) for picture in pictures)
    written = bills(tmp_path)
    assert {bill["text"] for bill in written} == {path.name for path in (*paths, *others)}
    assert [bill["dollars"] for bill in written] == [pytest.approx(PRICES[shape])] * 4
    assert images.usage.calls == 4 and images.usage.dollars == pytest.approx(4 * PRICES[shape])
    assert (images.usage.prompt_tokens > 0, images.usage.completion_tokens > 0) == (True, True)
    assert {(bill["stage"], bill["direction"], bill["model"]) for bill in written} == {("edit", "t2i", MODELS[shape])}


@both_shapes
def test_sends_the_picture_and_the_instruction_and_nothing_else(shape, serve, tmp_path):
    photograph = Image.new("RGB", (900, 600), "green")
    exif = photograph.getexif()
    exif[0x010E] = "a house at a secret place"
    photograph.save(tmp_path / "p.jpg", exif=exif, comment="secret")
    server = serve(lambda n: png((1024, 1024)))
    ((path,),), _ = make(
        server, shape, sources_of(tmp_path / "p.jpg"), tmp_path, [(0, "paint it blue")], count=1, size=256
    )
    (where, headers, body) = server.asked[0]
    image, prompt = sent(body)
    assert "paint it blue" in prompt and b"secret" not in body
    with Image.open(io.BytesIO(image)) as picture:
        assert picture.width * picture.height <= 257**2 and picture.width / picture.height == pytest.approx(1.5, 0.02)
        assert not picture.getexif() and not picture.info
    assert KEY in str(headers) and open_picture(path.read_bytes()).size == (256, 256)
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@both_shapes
def test_draws_from_the_caption_alone(shape, serve, sources, tmp_path):
    server = serve(lambda n: png())
    ((path,),), images = make(server, shape, sources, tmp_path, [(0, Drawing("two red cats"))], count=1)
    (where, _, body) = server.asked[0]
    said = json.loads(body)
    prompt = said["prompt"] if shape == "openai" else said["contents"][0]["parts"][0]["text"]
    assert prompt == "two red cats" and "edits" not in where and b"image/" not in body and b"inlineData" not in body
    assert open_picture(path.read_bytes()).size == (64, 48) and images.usage.dollars == pytest.approx(PRICES[shape])


@both_shapes
@pytest.mark.parametrize("status", [429, 503])
def test_a_failure_that_passes_is_tried_again(shape, status, serve, sources, tmp_path):
    server = serve(lambda n: (status, {"error": {"message": "busy"}}, {}) if n <= 2 else png())
    ((path,),), images = make(server, shape, sources, tmp_path, [(0, "red")], count=1)
    assert path.is_file() and len(server.asked) == 3 and images.usage.calls == 1


@both_shapes
@pytest.mark.parametrize(
    ("status", "message"), [(401, "no such key"), (404, "no such model"), (400, "images of this kind are not taken")]
)
def test_a_failure_for_good_ends_the_run_at_once(shape, status, message, serve, sources, tmp_path):
    server = serve(lambda n: (status, {"error": {"message": message}}, {}))
    with pytest.raises(ProviderError, match=message):
        make(server, shape, sources, tmp_path, [(0, "red")], count=1)
    assert len(server.asked) == 1


def test_a_missing_key_ends_the_run_at_once(serve, sources, tmp_path, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY")
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    server = serve(lambda n: png())
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        make(server, "gemini", sources, tmp_path, [(0, "red")], count=1)
    assert server.asked == []


@pytest.mark.parametrize(("status", "attempts", "made_later"), [(400, 1, 0), (500, SOON.attempts, 1)])
def test_one_request_that_fails_costs_only_its_own_candidate(status, attempts, made_later, serve, sources, tmp_path):
    """What the provider rejects is not asked for again; what always failed is, in the next run."""
    server = serve(lambda n: png() if n == 1 else (status, {"error": {"message": "not this one"}}, {}))
    (paths,), images = make(server, "openai", sources, tmp_path, [(0, "red")], limits=Limits(1))
    assert [path.is_file() for path in paths if path] == [True] and images.made == 1  # whichever came first
    assert len(server.asked) == 1 + attempts and len(list(tmp_path.rglob("*.none"))) == 1 - made_later
    if status == 400:  # also in a resumed run, where no image is served before it
        assert make(server, "openai", sources, tmp_path, [(1, "red")], count=1, budget=Budget(1.0))[0] == [[None]]
    server.script = lambda n: png()
    _, images = make(server, "openai", sources, tmp_path, [(0, "red")])
    assert (images.made, images.found) == (made_later, 1)


@pytest.mark.parametrize(
    ("shape", "answer", "finish"),
    [("openai", None, "content_filter"), ("gemini", None, "content_filter"), ("openai", b"no picture", "stop")],
)
def test_an_answer_without_an_image_is_paid_and_not_asked_for_again(shape, answer, finish, serve, sources, tmp_path):
    server = serve(lambda n: answer)
    for _ in range(2):
        ((none,),), images = make(server, shape, sources, tmp_path, [(0, "red")], count=1)
        assert none is None and [bill["finish"].partition(":")[0] for bill in bills(tmp_path)] == [finish]
        assert len(server.asked) == 1 and (images.made, images.found) == (0, 0)


def test_an_address_in_place_of_an_image_ends_the_run_at_once(serve, sources, tmp_path):
    server = serve(lambda n: (200, edited("openai", None) | {"data": [{"url": "http://127.0.0.1:9/a.png"}]}, {}))
    with pytest.raises(ProviderError, match="sends the address of an image, which is not followed"):
        make(server, "openai", sources, tmp_path, [(0, "red")], count=1)
    assert len(server.asked) == 1 and not list(tmp_path.rglob("*.none"))
    (bill,) = bills(tmp_path)
    assert bill["finish"] == LOST and bill["dollars"] == pytest.approx(PRICES["openai"])


def test_images_that_are_lost_on_their_way_count(serve, sources, tmp_path):
    server = serve(lambda n: (200, b"{", {}) if n % 2 else png())
    bound, bill = HostedEditor(MODELS["openai"]).price_bound, PRICES["openai"]
    budget = Budget(max_usd=3 * (bound + bill) + 0.5 * bound)
    with pytest.raises(BudgetSpent):
        make(server, "openai", sources, tmp_path, [(0, "red")], count=8, budget=budget, limits=Limits(1))
    assert len(server.asked) == 5 and len(list(tmp_path.rglob("*.png"))) == 2
    lost = [bill["dollars"] for bill in bills(tmp_path) if bill["finish"] == LOST]
    assert lost == [pytest.approx(bound)] * 3
    with Journal(tmp_path / "images.jsonl") as journal:  # as a rerun counts
        assert (journal.calls, journal.dollars) == (0, pytest.approx(3 * bound + 2 * bill))


def test_an_image_whose_price_the_provider_does_not_tell_counts_as_the_most_it_may_cost(serve, sources, tmp_path):
    untold = {name: value for name, value in edited("openai", png()).items() if name != "usage"}
    server, bound = serve(lambda n: (200, untold, {})), HostedEditor(MODELS["openai"]).price_bound
    with pytest.raises(BudgetSpent):
        make(server, "openai", sources, tmp_path, [(0, "red")], count=8, budget=Budget(max_usd=3.5 * bound))
    assert [bill["dollars"] for bill in bills(tmp_path)] == [None] * 3 and len(server.asked) == 3
    with Journal(tmp_path / "images.jsonl") as journal:
        assert journal.dollars == pytest.approx(3 * bound)


def test_where_none_is_served_a_failure_stops_the_run_unless_it_is_put_up_with(serve, sources, tmp_path):
    server = serve(lambda n: (500, {"error": {"message": "boom"}}, {}))
    with pytest.raises(ProviderError, match="boom.*To leave out what fails, give --max-error-rate 1"):
        make(server, "openai", sources, tmp_path, [(0, "red")], count=1)
    ((none,),), _ = make(server, "openai", sources, tmp_path, [(0, "red")], count=1, circuit=Circuit(1.0))
    assert none is None


def test_an_image_that_is_there_is_not_paid_again(serve, sources, tmp_path):
    server = serve(lambda n: png())
    (paths,), _ = make(server, "gemini", sources, tmp_path, [(0, "red")])
    paths[0].unlink()
    (again,), images = make(server, "gemini", sources, tmp_path, [(0, "red")])
    assert again == paths and len(server.asked) == len(bills(tmp_path)) == 3 and images.usage.calls == 1


def test_one_picture_under_two_names_is_edited_once(serve, sources, tmp_path):
    path = tmp_path / "picture.png"
    Image.new("RGB", (64, 48), "green").save(path)
    server = serve(lambda n: png(colour=(n, 0, 0)))
    (one, other), _ = make(server, "openai", sources_of(path, path), tmp_path, [(0, "red"), (1, "red")])
    assert one == other and len(server.asked) == len(bills(tmp_path)) == 2


def test_the_budget_holds(serve, sources, tmp_path):
    server = serve(lambda n: png())
    budget = Budget(max_usd=0.15)
    with pytest.raises(BudgetSpent, match="--max-usd 0.15"):
        make(server, "gemini", sources, tmp_path, [(at, "red") for at in range(8)], budget=budget)
    spent = sum(bill["dollars"] for bill in bills(tmp_path))
    assert 0.07 < spent <= 0.15 and len(bills(tmp_path)) == len(server.asked) == len(list(tmp_path.rglob("*.png")))


def test_too_many_failures_end_the_run(serve, sources, tmp_path, monkeypatch):
    monkeypatch.setattr("repair_hf.llm.limits.ENOUGH", 10)
    server = serve(lambda n: None)
    with pytest.raises(RunStopped, match="max-error-rate"):
        make(server, "openai", sources, tmp_path, [(at, "red") for at in range(8)], circuit=Circuit())


def test_when_a_run_stops_what_is_paid_for_arrives(serve, sources, tmp_path):
    started, stopped = threading.Event(), threading.Event()

    def slowly(n: int) -> bytes:
        started.set()
        stopped.wait(30)
        return png()

    server = serve(slowly)
    editor = HostedEditor(MODELS["gemini"], base_url=server.base_url("gemini"), limits=Limits(1))

    async def work() -> None:
        with Journal(tmp_path / "images.jsonl") as journal:
            images = Candidates(editor, sources, tmp_path / "candidates", count=3, seed=0, journal=journal)
            async with images.open():
                waiting = asyncio.create_task(images.make(0, "red"))
                await asyncio.to_thread(started.wait, 30)
                waiting.cancel()
                asyncio.get_running_loop().call_later(0.1, stopped.set)  # a turn of the loop later the run stops

    asyncio.run(work())
    assert len(server.asked) == len(bills(tmp_path)) == len(list(tmp_path.rglob("*.png"))) == 1


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
    editor = HostedEditor(MODELS["gemini"], base_url=server.base_url("gemini"), limits=Limits(1))

    async def work() -> None:
        with Journal(tmp_path / "journal.jsonl") as answers, Journal(tmp_path / "images.jsonl") as journal:
            chat = ChatModel("openai/gpt-4o-mini", journal=answers, base_url=llm.base_url)
            images = Candidates(editor, sources, tmp_path / "candidates", count=4, seed=0, journal=journal)
            messages = [[{"role": "user", "content": word}] for word in ("late", "no")]
            said = [chat.ask(each, stage="x", direction="t2i") for each in messages]
            async with images.open():
                await work_through(chat, [images.make(0, "red"), images.make(1, "red"), *said], images)

    with ChatServer(say) as llm, pytest.raises(ProviderError, match="no such key"):
        asyncio.run(work())
    assert len(server.asked) == len(bills(tmp_path)) == len(list(tmp_path.rglob("*.png"))) == 1
