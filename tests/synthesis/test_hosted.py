"""Image editing at a provider: over LiteLLM to a server on loopback that speaks OpenAI's and Gemini's protocols."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import pytest
from PIL import Image

from repair_hf.llm.budget import Budget, BudgetSpent
from repair_hf.llm.client import ChatModel
from repair_hf.llm.failures import ProviderError
from repair_hf.llm.journal import LOST, Journal
from repair_hf.llm.limits import Circuit, Limits
from repair_hf.llm.retries import Retries
from repair_hf.options import UserError
from repair_hf.runs import RunStopped
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.sources import SourceImages, open_picture
from repair_hf.synthesis.stream import work_through
from repair_hf.toyworld.server import ChatServer, Response

KEY = "planted-key-0123456789"
MODELS = {"openai": "openai/gpt-image-1", "gemini": "gemini/gemini-2.5-flash-image"}
PRICES = {"openai": 0.01383, "gemini": 0.038781}  # of what the server below says it used
SOON = Retries(attempts=4, first_wait=0.01, longest_wait=0.02)
both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])


def png(size=(64, 48), colour="red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


class ImageServer:
    """`script` is asked for the answer to each request: a PNG, None (refused without an error) or (status, body, headers)."""

    def __init__(self, script) -> None:
        self.script, self.asked, self.lock = script, [], threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"house": self}))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def base_url(self, shape: str) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/{'v1' if shape == 'openai' else 'v1beta'}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    house: ImageServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with self.house.lock:
            self.house.asked.append((self.path, dict(self.headers), data))
            answer = self.house.script(len(self.house.asked))
        if isinstance(answer, tuple):
            return self._send(*answer)
        body = _gemini(answer) if "generateContent" in self.path else _openai(answer)
        self._send(200, body, {})

    def _send(self, status, body, headers) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args) -> None: ...


def _openai(image: bytes | None) -> dict:
    details = {"image_tokens": 290, "text_tokens": 10}
    usage = {"input_tokens": 300, "output_tokens": 272, "total_tokens": 572, "input_tokens_details": details}
    return {"created": 1, "data": [{"b64_json": base64.b64encode(image).decode()}] if image else [], "usage": usage}


def _gemini(image: bytes | None) -> dict:
    usage = {"promptTokenCount": 270, "candidatesTokenCount": 1290, "totalTokenCount": 1560,
             "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}]}  # fmt: skip
    if image is None:
        return {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 270}}
    parts = [{"text": "here"}, {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(image).decode()}}]
    return {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}], "usageMetadata": usage}


def sent(data: bytes) -> tuple[bytes, str]:
    """Image and prompt in the body of a request, of either shape."""
    if data.startswith(b"{"):
        image, text = json.loads(data)["contents"][0]["parts"]
        return base64.b64decode(image["inlineData"]["data"]), text["text"]
    fields = dict(re.findall(rb'name="([^"]+)"[^\n]*\r\n(?:Content-Type[^\n]*\r\n)?\r\n(.*?)\r\n--', data, re.DOTALL))
    assert set(fields) == {b"model", b"prompt", b"image[]"}  # OpenAI refuses what it does not know
    return fields[b"image[]"], fields[b"prompt"].decode()


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)


@pytest.fixture
def serve():
    servers = []

    def start(script) -> ImageServer:
        servers.append(ImageServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def sources(pairs_folder) -> SourceImages:
    paths = sorted(map(str, pairs_folder.glob("*.png")))
    return SourceImages(datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image()))


def make(server, shape, sources, folder: Path, jobs, *, count=2, budget=None, model=None, **options):
    editor = HostedEditor(
        model or MODELS[shape], base_url=server.base_url(shape), retries=SOON, timeout=60.0, **options
    )

    async def work():
        with Journal(folder / "images.jsonl") as journal:
            images = Candidates(
                editor, sources, folder / "candidates", count=count, seed=0, budget=budget, journal=journal
            )
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
    rows = datasets.Dataset.from_dict({"image": [str(tmp_path / "p.jpg")]}).cast_column("image", datasets.Image())
    server = serve(lambda n: png((1024, 1024)))
    ((path,),), _ = make(server, shape, SourceImages(rows), tmp_path, [(0, "paint it blue")], count=1, size=256)
    (where, headers, body) = server.asked[0]
    image, prompt = sent(body)
    assert "paint it blue" in prompt and b"secret" not in body
    with Image.open(io.BytesIO(image)) as picture:
        assert picture.width * picture.height <= 257**2 and picture.width / picture.height == pytest.approx(1.5, 0.02)
        assert not picture.getexif() and not picture.info
    assert KEY in str(headers) and open_picture(path.read_bytes()).size == (256, 256)
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@both_shapes
@pytest.mark.parametrize("fault", [(429, {"error": {"message": "slow down"}}, {}), (503, {"error": {"message": "busy"}}, {})])  # fmt: skip
def test_a_failure_that_passes_is_tried_again(shape, fault, serve, sources, tmp_path):
    server = serve(lambda n: fault if n <= 2 else png())
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


def test_one_request_that_is_not_accepted_costs_only_its_own_candidate(serve, sources, tmp_path):
    server = serve(lambda n: (400, {"error": {"message": "not this one"}}, {}) if n == 2 else png())
    (paths,), _ = make(server, "openai", sources, tmp_path, [(0, "red")], limits=Limits(1))
    assert [path.is_file() for path in paths if path] == [True]  # which of the two comes first is left to chance
    assert len(list(tmp_path.rglob("*.none"))) == 1 and len(server.asked) == 2


@both_shapes
def test_a_refusal_is_paid_noted_and_not_asked_again(shape, serve, sources, tmp_path):
    server = serve(lambda n: None)
    ((none,),), images = make(server, shape, sources, tmp_path, [(0, "red")], count=1)
    assert none is None and [bill["finish"][:14] for bill in bills(tmp_path)] == ["content_filter"]
    ((none,),), images = make(server, shape, sources, tmp_path, [(0, "red")], count=1)
    assert none is None and len(server.asked) == 1 and (images.made, images.found) == (0, 0)


def test_what_is_no_picture_is_no_candidate(serve, sources, tmp_path):
    server = serve(lambda n: b"not a picture")
    ((none,),), _ = make(server, "openai", sources, tmp_path, [(0, "red")], count=1)
    assert none is None


def test_an_address_in_place_of_an_image_ends_the_run_at_once(serve, sources, tmp_path):
    server = serve(lambda n: (200, _openai(None) | {"data": [{"url": "http://127.0.0.1:9/a.png"}]}, {}))
    with pytest.raises(ProviderError, match="sends the address of an image, which is not followed"):
        make(server, "openai", sources, tmp_path, [(0, "red")], count=1)
    assert len(server.asked) == 1 and not list(tmp_path.rglob("*.none"))
    (bill,) = bills(tmp_path)
    assert bill["finish"] == LOST and bill["dollars"] == pytest.approx(PRICES["openai"])


@pytest.mark.parametrize(
    "model", ["black_forest_labs/flux-kontext-pro", "recraft/recraftv3", "fal_ai/flux-lora-depth"]
)
def test_a_provider_that_sends_addresses_is_refused_before_anything_is_paid(model):
    with pytest.raises(
        UserError, match=f"--editor {model}: {model.split('/')[0]} sends the address of an image.* Give"
    ):
        HostedEditor(model)


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
    untold = {name: value for name, value in _openai(png()).items() if name != "usage"}
    server, bound = serve(lambda n: (200, untold, {})), HostedEditor(MODELS["openai"]).price_bound
    with pytest.raises(BudgetSpent):
        make(server, "openai", sources, tmp_path, [(0, "red")], count=8, budget=Budget(max_usd=3.5 * bound))
    assert [bill["dollars"] for bill in bills(tmp_path)] == [None] * 3 and len(server.asked) == 3
    with Journal(tmp_path / "images.jsonl") as journal:
        assert journal.dollars == pytest.approx(3 * bound)


def test_one_request_that_always_fails_costs_only_its_own_candidate(serve, sources, tmp_path):
    server = serve(lambda n: png() if n == 1 else (500, {"error": {"message": "boom"}}, {}))
    (paths,), images = make(server, "openai", sources, tmp_path, [(0, "red")], limits=Limits(1))
    assert [path.is_file() for path in paths if path] == [True] and images.made == 1  # whichever came first
    assert len(server.asked) == 1 + SOON.attempts and not list(tmp_path.rglob("*.none"))
    server.script = lambda n: png()
    (paths,), images = make(server, "openai", sources, tmp_path, [(0, "red")])
    assert all(path.is_file() for path in paths) and (images.made, images.found) == (1, 1)  # it was not for ever


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
    path = str(tmp_path / "picture.png")
    Image.new("RGB", (64, 48), "green").save(path)
    twins = SourceImages(datasets.Dataset.from_dict({"image": [path, path]}).cast_column("image", datasets.Image()))
    server = serve(lambda n: png(colour=(n, 0, 0)))
    (one, other), _ = make(server, "openai", twins, tmp_path, [(0, "red"), (1, "red")])
    assert one == other and len(server.asked) == len(bills(tmp_path)) == 2


def test_the_budget_holds(serve, sources, tmp_path):
    server = serve(lambda n: png())
    budget = Budget(max_usd=0.15)
    with pytest.raises(BudgetSpent, match="--max-usd 0.15"):
        make(server, "gemini", sources, tmp_path, [(at, "red") for at in range(8)], budget=budget)
    spent = sum(bill["dollars"] for bill in bills(tmp_path))
    assert 0.07 < spent <= 0.15 and len(bills(tmp_path)) == len(server.asked) == len(list(tmp_path.rglob("*.png")))


def test_a_budget_without_a_price_is_refused(serve, sources, tmp_path):
    server = serve(lambda n: png())
    with pytest.raises(UserError, match="no list price is known for the editor 'openai/mine'"):
        make(server, "openai", sources, tmp_path, [(0, "red")], budget=Budget(max_usd=1), model="openai/mine")


def test_too_many_failures_end_the_run(serve, sources, tmp_path):
    server = serve(lambda n: None)
    with pytest.raises(RunStopped, match="max-error-rate"):
        make(server, "openai", sources, tmp_path, [(at, "red") for at in range(8)], circuit=Circuit(at_least=10))


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
    """One image is on its way and seven wait for their turn when the LLM's provider fails for good; an answer of its own is late."""
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
            said = [
                chat.ask([{"role": "user", "content": word}], stage="x", direction="t2i") for word in ("late", "no")
            ]
            async with images.open():
                await work_through(chat, [images.make(0, "red"), images.make(1, "red"), *said], images)

    with ChatServer(say) as llm, pytest.raises(ProviderError, match="no such key"):
        asyncio.run(work())
    assert len(server.asked) == len(bills(tmp_path)) == len(list(tmp_path.rglob("*.png"))) == 1


def test_an_unknown_provider_is_the_users_mistake():
    with pytest.raises(UserError, match="--editor nobody/knows-it names no provider"):
        HostedEditor("nobody/knows-it")
