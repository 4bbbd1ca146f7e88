"""Synthesis asks an LLM server that strangers wrote: `transformers serve`, with a tiny LLaVA, on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import sys
import time
from pathlib import Path

import httpx
import pytest
from children import Child
from ledgers import ledger_in, rows
from provider_server import png

from repair_hf.llm.answers import FailedAnswer, UnparsedAnswer
from repair_hf.llm.asker import Asker
from repair_hf.llm.options import RequestOptions
from repair_hf.synthesis.schemas import Verdict

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(vlm_folder, tmp_path_factory):
    """The model's folder and its server's address. The model samples, as most chat models on the Hub do."""
    pytest.importorskip("fastapi", reason="`transformers serve` needs FastAPI: pip install 'repair-hf[dev]'")
    folder = tmp_path_factory.mktemp("served") / "llava"
    shutil.copytree(vlm_folder, folder)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"do_sample": True}))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = Child(serve, str(folder), port)
    try:
        while not _is_up(port):
            assert process.poll() is None, process.said()[-3000:]
            time.sleep(0.2)
        yield str(folder), f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()


def serve(folder: str, port: int) -> None:
    """`transformers serve`."""
    from transformers.cli.transformers import main

    sys.argv = ["transformers", "serve", folder, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    main()


def _is_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def ask(server, folder: Path, seeds=(0,), model: str | None = None, text: str = "What is this?") -> list:
    """Ask about a picture with each seed; return the answers in JSON, or why they are unusable."""
    name, address = server
    picture = "data:image/png;base64," + base64.b64encode(png((40, 30), "red")).decode()
    parts = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": text}]
    how = {"stage": "audit", "direction": "i2t", "schema": Verdict, "temperature": 1.0, "max_tokens": 12}

    async def work(asker):
        asked = (asker.ask([{"role": "user", "content": parts}], seed=seed, **how) for seed in seeds)
        return await asyncio.gather(*asked, return_exceptions=True)

    one_by_one = RequestOptions(
        concurrency=1, answer_attempts=1
    )  # requests at the same time share the server's random generator
    with ledger_in(folder) as ledger:
        return asyncio.run(work(Asker(f"openai/{model or name}", ledger, base_url=address, options=one_by_one)))


def texts(folder: Path) -> list[str]:
    return sorted(row["text"] for row in rows(folder))


def test_answers_that_are_no_json_are_unusable_recorded_and_asked_once(server, tmp_path):
    seeds = range(6)
    assert {type(answer) for answer in ask(server, tmp_path, seeds)} == {UnparsedAnswer}
    paid = rows(tmp_path)
    assert len(paid) == len({row["text"] for row in paid}) == 6
    assert all(row["prompt_tokens"] > 20 and 0 < row["completion_tokens"] <= 12 for row in paid)
    assert {type(answer) for answer in ask(server, tmp_path, seeds)} == {UnparsedAnswer}
    assert rows(tmp_path) == paid


def test_a_seed_is_a_draw_and_the_picture_and_the_text_arrive(server, tmp_path):
    for name, question in (("a", "What is this?"), ("b", "What is this?"), ("c", "What is that?")):
        ask(server, tmp_path / name, (1, 2), text=question)
    assert texts(tmp_path / "a") == texts(tmp_path / "b") != texts(tmp_path / "c")


def test_an_error_of_the_server_names_what_it_said(server, tmp_path):
    (error,) = ask(server, tmp_path, model="elsewhere")
    assert isinstance(error, FailedAnswer) and "elsewhere" in str(error) and not rows(tmp_path)
