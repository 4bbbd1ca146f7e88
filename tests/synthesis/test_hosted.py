"""Image editing at a provider: over LiteLLM to a server on loopback that speaks OpenAI's and Gemini's protocols."""

from __future__ import annotations

import base64
import io
import json
import re
from functools import partial
from pathlib import Path

import pytest
from hosted_editors import MODELS, SOON, editor_at
from ledgers import ledger_in, rows
from PIL import Image
from provider_server import KEY, edited, error, png
from small_world import sources_of

from repair_hf.llm.cost import paid_in
from repair_hf.llm.ledger import BudgetSpent
from repair_hf.llm.ledger_file import FILE
from repair_hf.llm.prompts import Drawing
from repair_hf.llm.provider import ProviderError
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.hosted import HostedEditor, worst_price
from repair_hf.synthesis.outcome import UNREACHED
from repair_hf.synthesis.sources import open_picture
from tests.synthesis.painter import make

PRICES = {"openai": 0.01383, "gemini": 0.038781}  # of what `provider_server.edited` says it used
both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])
RED = [(0, "make it red")]
REFUSAL = "Your request was rejected as a result of our safety system.\x1b[2J \u202e"


def buy(server, shape, sources, folder: Path, jobs=RED, *, count=2, max_usd=None, max_calls=None, **options):
    """Make candidates with the server as editor, as `painter.make` returns them."""
    editor_of = partial(editor_at, server, shape, **options)
    return make(editor_of, sources, folder, jobs, count=count, max_usd=max_usd, max_calls=max_calls)


def sent(data: bytes) -> tuple[bytes, str]:
    """Image and prompt in the body of a request, of either shape."""
    if data.startswith(b"{"):
        image, text = json.loads(data)["contents"][0]["parts"]
        return base64.b64decode(image["inlineData"]["data"]), text["text"]
    fields = dict(re.findall(rb'name="([^"]+)"[^\n]*\r\n(?:Content-Type[^\n]*\r\n)?\r\n(.*?)\r\n--', data, re.DOTALL))
    assert set(fields) == {b"model", b"prompt", b"image[]"}  # OpenAI refuses what it does not know
    return fields[b"image[]"], fields[b"prompt"].decode()


@both_shapes
def test_each_candidate_is_one_paid_request(shape, serve, sources, tmp_path):
    server = serve(lambda n: png(colour=(n, 0, 0)))
    (paths, others), images = buy(server, shape, sources, tmp_path, [*RED, (1, "make it blue")])
    pictures = [open_picture(path.read_bytes()) for path in (*paths, *others)]
    assert len({picture.getpixel((0, 0)) for picture in pictures}) == 4 == len(server.asked)
    assert all(picture.size == (64, 48) for picture in pictures)
    bills = rows(tmp_path)
    assert {bill["key"] for bill in bills} == {f"{path.stem}-0" for path in (*paths, *others)}
    assert [bill["dollars"] for bill in bills] == [pytest.approx(PRICES[shape])] * 4
    usage = images.editor.usage
    assert usage.calls == 4 and usage.dollars == pytest.approx(4 * PRICES[shape])
    assert usage.prompt_tokens > 0 < usage.completion_tokens
    assert {(bill["stage"], bill["direction"], bill["model"]) for bill in bills} == {("edit", "t2i", MODELS[shape])}


@both_shapes
def test_sends_the_picture_and_the_instruction_and_nothing_else(shape, serve, tmp_path):
    photograph = Image.new("RGB", (900, 600), "green")
    exif = photograph.getexif()
    exif[0x010E] = "a house at a secret place"
    photograph.save(tmp_path / "p.jpg", exif=exif, comment="secret")
    server = serve(lambda n: png((1024, 1024)))
    ((path,),), _ = buy(server, shape, sources_of(tmp_path / "p.jpg"), tmp_path, count=1, size=256)
    (_, headers, body) = server.asked[0]
    image, prompt = sent(body)
    assert "make it red" in prompt and b"secret" not in body
    with Image.open(io.BytesIO(image)) as picture:
        assert picture.width * picture.height <= 257**2 and picture.width / picture.height == pytest.approx(1.5, 0.02)
        assert not picture.getexif() and not picture.info
    assert KEY in str(headers) and open_picture(path.read_bytes()).size == (256, 256)
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@both_shapes
def test_draws_from_the_caption_alone(shape, serve, sources, tmp_path):
    server = serve(lambda n: png())
    ((path,),), images = buy(server, shape, sources, tmp_path, [(0, Drawing("two red cats"))], count=1)
    (where, _, body) = server.asked[0]
    said = json.loads(body)
    prompt = said["prompt"] if shape == "openai" else said["contents"][0]["parts"][0]["text"]
    assert prompt == "two red cats" and "edits" not in where and b"image/" not in body and b"inlineData" not in body
    assert open_picture(path.read_bytes()).size == (64, 48)
    assert images.editor.usage.dollars == pytest.approx(PRICES[shape])


NOT_THIS = {"error": {"message": "not this one"}}
ADDRESS = edited("openai", None) | {"data": [{"url": "http://127.0.0.1:9/a.png"}]}
BLOCKED = error("openai", 400, REFUSAL, "content_policy_violation")
FAULTS = {  # sent: the answer, what becomes of the edit, how many requests it takes, and the state of their calls
    "a wrong key": ((401, NOT_THIS, {}), "stops: .*not this one", 1, None),
    "500": ((500, NOT_THIS, {}), f"{UNREACHED}: .*not this one", SOON.attempts, None),
    "400": ((400, NOT_THIS, {}), f"{UNREACHED}: .*not this one", 1, None),
    "a web page": ((200, b"<html>", {}), UNREACHED, 2, "lost"),
    "no image": (None, "no candidate: no image", 2, "answered"),
    "no picture file": (b"no picture", "no candidate: no image that can be read", 1, "answered"),
    "a black image": (png((64, 48), "black"), "no candidate: a black image", 1, "answered"),
    "a refusal": ((400, BLOCKED, {}), "no candidate: content_filter: ", 1, "answered"),
    "other JSON": ((200, {"result": "done"}, {}), "no candidate: no image", 2, "answered"),
    "an address": ((200, ADDRESS, {}), "stops: .*sends the address of an image, which is not followed", 1, "answered"),
}
OF_OPENAI = ("a refusal", "other JSON", "an address")
CASES = [(name, "openai") for name in FAULTS] + [(name, "gemini") for name in FAULTS if name not in OF_OPENAI]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_what_becomes_of_an_edit_and_what_is_counted(name, shape, serve, sources, tmp_path):
    """What is paid is not asked again by the next run; what brought no answer is."""
    answer, outcome, requests, state = FAULTS[name]
    server = serve(lambda n: answer)
    for run in (1, 2):
        try:
            (why,), images = buy(server, shape, sources, tmp_path, count=1)
            assert (images.made, images.reused) == (0, 0)
        except ProviderError as stop:
            why = f"stops: {stop}"
        assert re.match(outcome, why) and why.isprintable()
        assert len(server.asked) == (requests if state == "answered" else run * requests)
    for each in ("answered", "lost"):
        assert len(rows(tmp_path, each)) == (len(server.asked) if each == state else 0)
    worst = pytest.approx(worst_price(MODELS[shape]))
    assert all(row["worst"] == worst for row in rows(tmp_path, "lost"))


def test_a_request_that_fails_costs_only_its_own_candidate(serve, sources, tmp_path):
    server = serve(lambda n: png() if n == 1 else (400, NOT_THIS, {}))
    (paths,), images = buy(server, "openai", sources, tmp_path, concurrency=1)
    assert sum(path is not None for path in paths) == 1 == images.made and len(server.asked) == 2
    server.script = lambda n: png()
    (again,), images = buy(server, "openai", sources, tmp_path)
    assert None not in again and (images.made, images.reused) == (1, 1)


@pytest.mark.parametrize("body", [{"output_tokens": -10_000}, {"input_tokens": -5}, None])
def test_an_impossible_usage_of_an_image_counts_as_its_worst_case(body, serve, sources, tmp_path):
    whole = edited("openai", png())
    whole["usage"] = body and whole["usage"] | body
    server = serve(lambda n: (200, whole, {}))
    buy(server, "openai", sources, tmp_path, count=1)
    worst = pytest.approx(worst_price(MODELS["openai"]))
    assert [(row["dollars"], row["worst"]) for row in rows(tmp_path)] == [(None, worst)]


def test_of_several_pictures_the_last_is_kept_and_thinking_is_billed(serve, sources, tmp_path):
    body = edited("gemini", png())
    parts = body["candidates"][0]["content"]["parts"]
    draft = edited("gemini", png(colour="blue"))["candidates"][0]["content"]["parts"][1] | {"thought": True}
    body["candidates"][0]["content"]["parts"] = [draft, *parts]
    total = body["usageMetadata"]["totalTokenCount"] + 400
    body["usageMetadata"] |= {"thoughtsTokenCount": 400, "totalTokenCount": total}
    server = serve(lambda n: (200, body, {}))
    ((path,),), _ = buy(server, "gemini", sources, tmp_path, count=1)
    assert open_picture(path.read_bytes()).getpixel((0, 0))[0] > 200
    assert rows(tmp_path)[0]["dollars"] == pytest.approx(PRICES["gemini"] + 400 * 2.5e-6)


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
    assert dollars < worst_price(model) < 3 * dollars


def test_a_budget_needs_a_price_and_a_stated_one_is_that_of_the_call(serve, sources, tmp_path):
    server = serve(lambda n: png())
    mine = {"model": "openai/mine", "count": 1}
    with pytest.raises(UserError, match="no list price is known for 'openai/mine'"):
        buy(server, "openai", sources, tmp_path, max_usd=1, **mine)
    buy(server, "openai", sources, tmp_path, max_usd=1, price=(1e-6, 2e-6), **mine)
    usage = edited("openai", png())["usage"]
    assert rows(tmp_path)[0]["dollars"] == pytest.approx(1e-6 * usage["input_tokens"] + 2e-6 * usage["output_tokens"])
    with pytest.raises(UserError, match="no list price"):  # the price belonged to that call
        buy(server, "openai", sources, tmp_path, [(0, "blue")], max_usd=1, **mine)


def test_a_bill_above_the_reserved_price_is_what_the_next_image_may_cost(serve, sources, tmp_path):
    body = edited("openai", png())
    body["usage"] |= {"output_tokens": 12_000, "total_tokens": 12_300}
    server = serve(lambda n: (200, body, {}))
    with pytest.raises(BudgetSpent, match="0.8 is reached: .0.48 are paid or reserved, and the next .* cost .0.48"):
        buy(server, "openai", sources, tmp_path, max_usd=0.8, concurrency=1)
    assert len(server.asked) == 1 and 2 * worst_price(MODELS["openai"]) < 0.8


def test_a_ceiling_on_calls_limits_images_that_have_no_price(serve, sources, tmp_path):
    server = serve(lambda n: png())
    with pytest.raises(BudgetSpent, match="--max-calls 3 is reached: 3 answers and images are paid"):
        buy(server, "openai", sources, tmp_path, model="openai/mine", concurrency=2, count=8, max_calls=3)
    paid = paid_in(tmp_path / FILE)["edit", "t2i"].calls
    assert len(server.asked) == len(list(tmp_path.rglob("*.png"))) == paid == 3


def test_what_is_there_is_not_paid_again_and_what_is_gone_is(serve, sources, tmp_path):
    server = serve(lambda n: png(colour=(n, 0, 0)))
    (paths,), _ = buy(server, "openai", sources, tmp_path, count=5)
    whole = paths[4].read_bytes()
    for path in paths[:4]:
        path.unlink()
    (again,), images = buy(server, "openai", sources, tmp_path, count=5)
    assert again == paths and (images.made, images.reused) == (4, 1) and paths[4].read_bytes() == whole
    assert len(server.asked) == 9 == len(rows(tmp_path)) + len(rows(tmp_path, "lost"))


def test_one_picture_under_two_names_is_edited_once(serve, sources, tmp_path):
    path = tmp_path / "picture.png"
    Image.new("RGB", (64, 48), "green").save(path)
    server = serve(lambda n: png(colour=(n, 0, 0)))
    (one, other), _ = buy(server, "openai", sources_of(path, path), tmp_path, [(0, "red"), (1, "red")])
    assert one == other and len(server.asked) == len(rows(tmp_path)) == 2


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("black_forest_labs/flux-kontext-pro", "black_forest_labs sends the address of an image.* Give"),
        ("nobody/knows-it", "'nobody/knows-it' names no provider"),
    ],
)
def test_a_provider_without_images_in_its_answers_is_an_error(model, complaint, tmp_path):
    with ledger_in(tmp_path) as ledger, pytest.raises(UserError, match=complaint):
        HostedEditor(model, ledger)
