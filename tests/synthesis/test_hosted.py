"""Image editing at a provider: over LiteLLM to a server on loopback that speaks OpenAI's and Gemini's protocols."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import threading
from pathlib import Path

import pytest
from hosted_editors import MODELS, SOON, editor_at
from ledgers import ledger_in, rows
from PIL import Image
from provider_server import KEY, edited, png
from small_world import sources_of

from repair_hf.llm.errors import ProviderError
from repair_hf.llm.prompts import Drawing
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.sources import open_picture

PRICES = {"openai": 0.01383, "gemini": 0.038781}  # of what `provider_server.edited` says it used
both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])


def sent(data: bytes) -> tuple[bytes, str]:
    """Image and prompt in the body of a request, of either shape."""
    if data.startswith(b"{"):
        image, text = json.loads(data)["contents"][0]["parts"]
        return base64.b64decode(image["inlineData"]["data"]), text["text"]
    fields = dict(re.findall(rb'name="([^"]+)"[^\n]*\r\n(?:Content-Type[^\n]*\r\n)?\r\n(.*?)\r\n--', data, re.DOTALL))
    assert set(fields) == {b"model", b"prompt", b"image[]"}  # OpenAI refuses what it does not know
    return fields[b"image[]"], fields[b"prompt"].decode()


def make(server, shape, sources, folder: Path, jobs, *, count=2, max_usd=None, **options):
    async def work():
        with ledger_in(folder, max_usd) as ledger:
            images = Candidates(editor_at(server, shape, **options), sources, ledger, count=count, seed=0)
            async with images.open():
                return await asyncio.gather(*(images.make(fp, word) for fp, word in jobs)), images

    return asyncio.run(work())


@both_shapes
def test_each_candidate_is_one_paid_request(shape, serve, sources, tmp_path):
    server = serve(lambda n: png(colour=(n, 0, 0)))
    (paths, others), images = make(server, shape, sources, tmp_path, [(0, "make it red"), (1, "make it blue")])
    pictures = [open_picture(path.read_bytes()) for path in (*paths, *others)]
    assert len({picture.getpixel((0, 0)) for picture in pictures}) == 4 == len(server.asked)
    assert all(picture.size == (64, 48) for picture in pictures)
    written = rows(tmp_path)
    assert {bill["key"] for bill in written} == {path.stem for path in (*paths, *others)}
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
@pytest.mark.parametrize("status", [401, 400])
def test_a_failure_for_good_ends_the_run_at_once(shape, status, serve, sources, tmp_path):
    server = serve(lambda n: (status, {"error": {"message": "not with this key"}}, {}))
    with pytest.raises(ProviderError, match="not with this key"):
        make(server, shape, sources, tmp_path, [(0, "red")], count=1)
    assert len(server.asked) == 1


def test_a_request_that_always_fails_costs_only_its_own_candidate_and_the_next_run_asks_again(
    serve, sources, tmp_path
):
    server = serve(lambda n: png() if n == 1 else (500, {"error": {"message": "not this one"}}, {}))
    (paths,), images = make(server, "openai", sources, tmp_path, [(0, "red")], concurrency=1)
    assert [path.is_file() for path in paths if path] == [True] and images.made == 1  # whichever came first
    assert len(server.asked) == 1 + SOON.attempts
    server.script = lambda n: png()
    _, images = make(server, "openai", sources, tmp_path, [(0, "red")])
    assert (images.made, images.found) == (1, 1)


def test_a_rejection_is_final_once_another_image_was_accepted_after_it(serve, sources, tmp_path):
    has_company = threading.Event()

    def answer(n: int) -> bytes | tuple:
        if b"red" not in server.asked[-1][2]:
            return png()
        has_company.wait(30)
        return 400, {"error": {"message": "not this one"}}, {}

    async def work():
        with ledger_in(tmp_path) as ledger:
            images = Candidates(editor_at(server, "openai", concurrency=1), sources, ledger, count=1, seed=0)
            async with images.open():
                await images.make(0, "blue")
                red = asyncio.create_task(images.make(0, "red"))
                while len(server.asked) < 2:
                    await asyncio.sleep(0.01)
                green = asyncio.create_task(images.make(0, "green"))
                while len(images._sender._tasks) < 2:
                    await asyncio.sleep(0.01)
                has_company.set()
                assert (await red, (await green)[0].is_file()) == ([None], True)
                why.append(images.why_none(0, "red"))

    server, why = serve(answer), []
    asyncio.run(work())
    assert len(server.asked) == 3 and why[0].startswith("no candidate could be made: ") and "not this one" in why[0]
    make(server, "openai", sources, tmp_path, [(0, "red")], count=1)
    assert len(server.asked) == 3  # not even by the next run


def test_a_rejection_without_company_is_asked_about_by_the_next_run(serve, sources, tmp_path):
    server = serve(lambda n: png() if n in (1, 4) else (400, {"error": {"message": "not now"}}, {}))
    make(server, "openai", sources, tmp_path, [(0, "blue")], count=1)
    for asked, is_made in ((2, False), (3, False), (4, True)):
        ((path,),), _ = make(server, "openai", sources, tmp_path, [(0, "red")], count=1)
        assert len(server.asked) == asked and (path is not None) == is_made


@pytest.mark.parametrize(
    ("shape", "answer", "finish"),
    [
        ("openai", None, "no image: empty"),
        ("gemini", None, "content_filter: SAFETY"),
        ("openai", b"no picture", "no image that can be read"),
    ],
)
def test_an_answer_without_an_image_is_paid_and_asked_again_once_unless_final(
    shape, answer, finish, serve, sources, tmp_path
):
    server, attempts = serve(lambda n: answer), 2 if finish.startswith("no image:") else 1
    for _ in range(2):
        ((none,),), images = make(server, shape, sources, tmp_path, [(0, "red")], count=1)
        assert none is None and {json.loads(bill["reply"])[1] for bill in rows(tmp_path)} == {finish}
        assert len(server.asked) == len(rows(tmp_path)) == attempts and (images.made, images.found) == (0, 0)


def test_an_address_in_place_of_an_image_ends_the_run_at_once(serve, sources, tmp_path):
    server = serve(lambda n: (200, edited("openai", None) | {"data": [{"url": "http://127.0.0.1:9/a.png"}]}, {}))
    with pytest.raises(ProviderError, match="sends the address of an image, which is not followed"):
        make(server, "openai", sources, tmp_path, [(0, "red")], count=1)
    assert len(server.asked) == 1
    (bill,) = rows(tmp_path, "lost")
    assert bill["worst"] >= PRICES["openai"]


@pytest.mark.parametrize(
    ("model", "dollars"),
    [  # the providers' price lists: one image of the best quality, at the largest size that we ask for
        ("openai/gpt-image-1", 0.25),
        ("openai/gpt-image-1-mini", 0.052),
        ("openai/gpt-image-1.5", 0.20),
        ("gemini/gemini-2.5-flash-image", 0.039),
        ("gemini/gemini-3-pro-image-preview", 0.134),
    ],
)
def test_the_reserved_price_of_an_image_covers_the_providers_price_list(model, dollars):
    assert dollars < HostedEditor(model).price_bound < 3 * dollars


def test_an_image_that_is_there_is_not_paid_again(serve, sources, tmp_path):
    server = serve(lambda n: png())
    (paths,), _ = make(server, "gemini", sources, tmp_path, [(0, "red")])
    paths[0].unlink()
    (again,), images = make(server, "gemini", sources, tmp_path, [(0, "red")])
    assert again == paths and len(server.asked) == len(rows(tmp_path)) == 3 and images.usage.calls == 1


def test_one_picture_under_two_names_is_edited_once(serve, sources, tmp_path):
    path = tmp_path / "picture.png"
    Image.new("RGB", (64, 48), "green").save(path)
    server = serve(lambda n: png(colour=(n, 0, 0)))
    (one, other), _ = make(server, "openai", sources_of(path, path), tmp_path, [(0, "red"), (1, "red")])
    assert one == other and len(server.asked) == len(rows(tmp_path)) == 2
