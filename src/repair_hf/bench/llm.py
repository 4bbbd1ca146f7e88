"""The LLM client beside a bare loop of LiteLLM calls: what do the journal, the limits and the validation cost?

In:  how many requests, how many at once, how slow the server is, how large the pictures are.
Out: requests per second of both, round by round, against the same server, and how long each kept the processor busy.

The server is a process of its own on loopback. Both send the same messages, both through LiteLLM; they take turns, each
going first in every other round, so that whatever else the machine does meets both. No question comes twice, so the journal answers none.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repair_hf.llm import prompts
from repair_hf.llm.client import ChatModel
from repair_hf.llm.journal import Journal
from repair_hf.llm.limits import Limits
from repair_hf.llm.loading import load_litellm
from repair_hf.llm.sending import RequestOptions
from repair_hf.synthesis.audit import Verdict
from repair_hf.toyworld.server import ChatServer

MODEL = "openai/bench"
TIMEOUT = 120.0  # seconds
SAID = (
    '{"gt_reason": "Everything that the caption states can be seen.", "gt_valid": true, '
    '"fp_reason": "The caption says two dogs, the image shows one.", "fp_too_similar": false}'
)

Ask = Callable[[list[dict]], Awaitable[object]]


@dataclass(frozen=True)
class Rate:
    """Requests per second, and milliseconds of this process's own work on each."""

    per_second: float
    busy_ms: float


@dataclass(frozen=True)
class Round:
    """Both in one round."""

    bare: Rate
    whole: Rate

    @property
    def ratio(self) -> float:
        """Of the whole client's requests per second to the bare loop's."""
        return self.whole.per_second / self.bare.per_second


def measure(*, requests: int, concurrency: int, latency: float, image_bytes: int, rounds: int) -> Iterator[Round]:
    """Measure round by round; one that is not counted goes before.

    Args:
        requests: Of each of the two in each round.
        concurrency: Requests at once.
        latency: Seconds that the server takes for each.
        image_bytes: Size of the picture in each request.
        rounds: How many are counted.
    """
    os.environ.setdefault("OPENAI_API_KEY", "none")  # the server on loopback asks for none, but LiteLLM does
    numbers = itertools.count()
    image = f"data:image/jpeg;base64,{base64.b64encode(random.Random(0).randbytes(image_bytes)).decode()}"

    def questions() -> list[list[dict]]:
        return [_question(next(numbers), image) for _ in range(requests)]

    async def one_round(whole_first: bool) -> Round:
        with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "journal.jsonl") as journal:
            chat = ChatModel(
                MODEL,
                journal=journal,
                base_url=base_url,
                options=RequestOptions(timeout=TIMEOUT, limits=Limits(concurrency)),
            )
            ways, rates = {"bare": _bare(base_url), "whole": _whole(chat)}, {}
            for way in reversed(ways) if whole_first else ways:
                gc.collect()  # what the one has left behind is not the other's to clear away
                rates[way] = await _rate(ways[way], questions(), concurrency)
        return Round(**rates)

    with _server(latency) as base_url, asyncio.Runner() as runner:  # one event loop, so that connections stay open
        runner.run(one_round(False))
        for number in range(rounds):
            yield runner.run(one_round(whole_first=number % 2 == 1))


def _question(number: int, image: str) -> list[dict]:
    """An audit's messages; the number makes them unlike any others."""
    return prompts.chat(
        "audit_i2t",
        query_image=image,
        ground_truth_caption=f"Dog number {number} runs over wet sand.",
        false_positive_caption="Two dogs run over wet sand.",
    )


def _bare(base_url: str) -> Ask:
    litellm = load_litellm()

    async def ask(messages: list[dict]) -> str:
        response = await litellm.acompletion(
            model=MODEL,
            messages=messages,
            temperature=0.0,
            max_tokens=1024,
            seed=0,
            api_base=base_url,
            timeout=TIMEOUT,
            max_retries=0,
            num_retries=0,
        )
        return response.choices[0].message.content

    return ask


def _whole(chat: ChatModel) -> Ask:
    async def ask(messages: list[dict]) -> Verdict:
        return await chat.ask(messages, stage="audit", direction="i2t", schema=Verdict)

    return ask


async def _rate(ask: Ask, questions: list[list[dict]], concurrency: int) -> Rate:
    """That of so many workers."""
    queue = iter(questions)

    async def work() -> None:
        for messages in queue:
            await ask(messages)

    start, busy = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    return Rate(len(questions) / seconds, 1000 * busy / len(questions))


@contextmanager
def _server(latency: float) -> Iterator[str]:
    """Its base URL. It ends with its standard input, so it does not outlive this process."""
    code = f"from repair_hf.bench.llm import serve; serve({latency!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


def serve(latency: float) -> None:
    """Give every request the same verdict, until the standard input ends; print the base URL first."""
    with ChatServer(lambda body: SAID, latency=latency) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        sys.stdin.read()
