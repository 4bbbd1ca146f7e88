"""Time asking an LLM beside a bare loop of LiteLLM calls: what do the ledger, the limits and the validation cost?

    python benchmarks/llm.py
    python benchmarks/llm.py --requests 1000 --image-bytes 200000

The server is a process of its own on loopback. Both ways send the same messages through LiteLLM and take turns.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from argparse import SUPPRESS
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from common import parser, print_table, ratio

from repair_hf.llm.asker import Asker
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.prompts import SHIPPED
from repair_hf.llm.provider import load_litellm
from repair_hf.synthesis.schemas import Verdict

MODEL = "openai/bench"
TIMEOUT = 120.0  # seconds
ANSWER = (
    '{"gt_reason": "Everything that the caption states can be seen.", "gt_valid": true, '
    '"fp_reason": "The caption says two dogs, the image shows one.", "fp_too_similar": false}'
)

BODY = json.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 60, "total_tokens": 1060},
    }
).encode()

Ask = Callable[[list[dict]], Awaitable[object]]


@dataclass(frozen=True)
class Rate:
    """Requests per second, and milliseconds of this process's own work on each."""

    per_second: float
    busy_ms: float

    def __str__(self) -> str:
        return f"{self.per_second:,.0f}/s {self.busy_ms:.2f} ms"


def main() -> None:
    """Print the rates of each round, and the median of their ratios."""
    options = parser("Time asking an LLM.")
    options.add_argument("--requests", type=int, default=500, help="requests of each way in each round")
    options.add_argument("--concurrency", type=int, default=64, help="requests at once")
    options.add_argument("--latency", type=float, default=0.02, help="seconds that the server takes for a request")
    options.add_argument("--image-bytes", type=int, default=20_000, help="size of each request's image")
    options.add_argument("--serve", type=float, help=SUPPRESS)
    args = options.parse_args()
    if args.serve is not None:
        return serve(args.serve)
    found = asyncio.run(_rounds(args))
    ratios = [one["asker"].per_second / one["bare"].per_second for one in found]
    busy = [ratio(one["asker"].busy_ms, one["bare"].busy_ms) for one in found]
    rows = [
        (n, one["bare"], one["asker"], f"{each:.2f}")
        for n, (one, each) in enumerate(zip(found, ratios, strict=True), 1)
    ]
    print_table(("round", "bare loop", "asker", "ratio"), rows)
    print(f"median ratio of requests/s: {median(ratios):.2f}")
    print(f"median ratio of processor time: {median(busy):.2f}")
    print(f"{args.requests:,} requests a round, {args.concurrency} at once, {args.image_bytes:,} bytes an image,")
    print(f"{args.latency * 1000:g} ms of the server; ms: processor time of this process for a request")


async def _rounds(args) -> list[dict[str, Rate]]:
    """Measure round by round; a first round warms up and is not counted."""
    os.environ.setdefault("OPENAI_API_KEY", "none")  # LiteLLM wants one, the server does not
    numbers = itertools.count()
    image = f"data:image/jpeg;base64,{base64.b64encode(random.Random(0).randbytes(args.image_bytes)).decode()}"
    found = []
    with _server(args.latency) as base_url:
        for number in range(args.repeat + 1):
            with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.sqlite") as ledger:
                options = RequestOptions(timeout=TIMEOUT, concurrency=args.concurrency)
                asker = Asker(MODEL, ledger, base_url=base_url, options=options)
                ways, rates = {"bare": _bare(base_url), "asker": _asker(asker)}, {}
                for way in reversed(ways) if number % 2 else ways:
                    questions = [_question(next(numbers), image) for _ in range(args.requests)]
                    gc.collect()
                    rates[way] = await _rate(ways[way], questions, args.concurrency)
                found.append(rates)
    return found[1:]


def _question(number: int, image: str) -> list[dict]:
    """Return the messages of an audit; the number makes them unique, so the ledger answers none of them."""
    return SHIPPED.chat(
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


def _asker(asker: Asker) -> Ask:
    async def ask(messages: list[dict]) -> Verdict:
        return await asker.ask(messages, stage="audit", direction="i2t", schema=Verdict)

    return ask


async def _rate(ask: Ask, questions: list[list[dict]], concurrency: int) -> Rate:
    """Return the rate of `concurrency` workers that share the questions."""
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
    """Run the server in a process of its own and yield its base URL; it ends when its standard input closes."""
    words = [sys.executable, __file__, "--serve", str(latency)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


def serve(latency: float) -> None:
    """Answer every request with the same verdict until standard input ends; print the base URL first."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections open
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(latency)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}/v1\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
