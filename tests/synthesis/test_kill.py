"""Killed at any moment and started again: the same records, and only requests in flight are asked twice.

The real command over real HTTP: the toy world's oracle behind an OpenAI-compatible server with some latency.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from chat_server import ChatServer
from small_world import saved

from repair_hf.cli.main import main
from repair_hf.toyworld import oracle
from repair_hf.toyworld.errors import LLMErrors
from tests.synthesis.killing import answered, kill_family, start

CONCURRENCY = 8  # of the first run
MODELS = ("--llm", "openai/world", "--editor", "world")


def served(log: Path, before: Callable[[], None] = lambda: None) -> ChatServer:
    """The oracle; `before` each answer it may be made to wait."""

    def answer(body: dict) -> str:
        before()
        return oracle.answer(body["messages"], body["seed"], LLMErrors(0.2, 0.2, malformed_rate=0.1))

    return ChatServer(answer, latency=0.03, log=log)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def requests(log: Path) -> list[str]:
    return [json.loads(line)["digest"] for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    "kills",
    [
        [(1, CONCURRENCY)],
        pytest.param([(1, CONCURRENCY), (2, 6), (1, 3), (1, 16), (2, 4)] * 4, marks=pytest.mark.slow),
    ],
)
def test_kill_and_go_on(kills, words, tmp_path, capsys):
    """Compare an uninterrupted run with one that is killed, each time with so many processes and requests at once."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with served(tmp_path / "whole.jsonl") as server:
        first = ["--concurrency", str(CONCURRENCY), "--output", str(whole)]
        assert main([*words, *MODELS, "--llm-base-url", server.base_url, *first]) == 0, capsys.readouterr().err
    asked = requests(tmp_path / "whole.jsonl")
    assert len(asked) == len(set(asked)) > 100

    log, in_flight = tmp_path / "killed.jsonl", 0
    with served(log) as server:
        same = [*words, *MODELS, "--llm-base-url", server.base_url, "--output", str(killed)]
        for kill, (processes, concurrency) in enumerate(kills):
            moment = random.uniform(kill + 0.1, kill + 0.9) / len(kills)  # a random moment of each part
            before = lines(log) - answered(killed)
            command = [*same, "--concurrency", str(concurrency)]
            others = set(threading.enumerate())
            kill_at(command, processes, killed, round(moment * len(asked)))
            settle(server, others)
            lost = lines(log) - answered(killed) - before
            assert lost <= concurrency
            in_flight += lost
        assert main([*same, "--concurrency", "5"]) == 0, capsys.readouterr().err

    records, dropped = saved(whole)
    assert saved(killed) == (records, dropped) and len(records) > 20 and len(dropped) > 0
    again = requests(log)
    assert set(again) == set(asked)
    assert len(again) - len(asked) <= in_flight


def kill_at(words: list[str], processes: int, folder: Path, count: int) -> None:
    """Start the command in processes of its own and kill them once so many answers are in the ledger."""
    process = start(words, processes, folder.parent)
    deadline = time.monotonic() + 600
    while answered(folder) < count:
        assert process.poll() is None, f"ended before it could be killed:\n{process.communicate()[1]}"
        assert time.monotonic() < deadline, "made no progress"
        time.sleep(0.01)
    kill_family(process.pid)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow  # a start of Python for each signal
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_the_command_alone_ends_its_processes_quietly(number, words, tmp_path):
    """The editor has a process of its own; nothing may be left of it, or of what they shared."""
    with served(tmp_path / "log.jsonl") as server:
        same = [*words, *MODELS, "--llm-base-url", server.base_url, "--output", str(tmp_path / "out")]
        command = [sys.executable, "-m", "repair_hf", *same, "--concurrency", "2"]
        hears_all = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also under `nohup`
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hears_all)
        while answered(tmp_path / "out") < 40:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate(timeout=600)[1]  # until the last process has closed it
    assert process.returncode == (-number if number is signal.SIGKILL else 128 + number)
    assert "leaked semaphore" not in said and "Traceback" not in said, said
    assert number is signal.SIGKILL or said.endswith("the same command resumes from what is on disk.\n")


def settle(server: ChatServer, others: set[threading.Thread]) -> None:
    """Wait until what had reached the server is in its log: connections are taken in turn, and each has a thread.

    `others` are threads that were there before, such as those of connections that this process keeps open.
    """
    httpx.get(f"{server.base_url}/batches", timeout=60)
    for thread in set(threading.enumerate()) - others:
        if "process_request_thread" in thread.name:
            thread.join(60)
            assert not thread.is_alive()


def test_ctrl_c_keeps_what_was_paid_for(words, tmp_path, request):
    # a job that a shell started in the background ignores it, and so would this test
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, heard))
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    came, is_interrupted = itertools.count(1), threading.Event()

    def hold() -> None:
        if next(came) > 30:
            is_interrupted.wait(60)

    def interrupt_at(count: int) -> None:
        while answered(out) < count:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)
        is_interrupted.set()

    finger = threading.Thread(target=interrupt_at, args=(30,), daemon=True)
    with served(log, hold) as server:
        finger.start()
        limit = ["--concurrency", str(CONCURRENCY)]
        code = main([*words, *MODELS, *limit, "--llm-base-url", server.base_url, "--output", str(out)])
    assert code == 130
    assert 30 <= answered(out) == lines(log) < 60
