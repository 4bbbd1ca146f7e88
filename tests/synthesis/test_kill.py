"""Killed at any moment and started again: the same records, only requests in flight are asked twice, and no ceiling
is exceeded.

The real command over real HTTP: the toy world's oracle, and an image editor, on servers that count what they answer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from math import inf
from pathlib import Path

import httpx
import pytest
from biller import MODELS as HOSTED
from biller import Biller
from chat_server import ChatServer
from killing import Held, answered, start
from ledgers import ledger_in, rows
from provider_server import ProviderServer
from small_world import saved

from repair_hf.cli.main import main
from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.toyworld import oracle
from repair_hf.toyworld.errors import LLMErrors

CONCURRENCY = 8  # of the first run
MODELS = ("--llm", "openai/world", "--editor", "world")


def erring(body: dict) -> str:
    return oracle.answer(body["messages"], body["seed"], LLMErrors(0.2, 0.2, malformed_rate=0.1))


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def requests(log: Path) -> list[str]:
    return [json.loads(line)["digest"] for line in log.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [[(1, CONCURRENCY)], [(1, CONCURRENCY), (2, 6), (1, 3), (1, 16), (2, 4)] * 4])
def test_kill_and_go_on(kills, words, tmp_path, capsys):
    """Compare an uninterrupted run with one that is killed, each time with so many processes and requests at once."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with ChatServer(erring, log=tmp_path / "whole.jsonl") as server:
        first = ["--concurrency", str(CONCURRENCY), "--output", str(whole)]
        assert main([*words, *MODELS, "--llm-base-url", server.base_url, *first]) == 0, capsys.readouterr().err
    asked = requests(tmp_path / "whole.jsonl")
    assert len(asked) == len(set(asked)) > 100

    log, in_flight, held = tmp_path / "killed.jsonl", 0, Held(erring)
    with ChatServer(held, log=log) as server:
        same = [*words, *MODELS, "--llm-base-url", server.base_url, "--output", str(killed)]
        for kill, (processes, concurrency) in enumerate(kills):
            moment = random.uniform(kill + 0.1, kill + 0.9) / len(kills)  # a random moment of each part
            before, others = lines(log) - answered(killed), set(threading.enumerate())
            command = [*same, "--concurrency", str(concurrency)]
            more = max(round(moment * len(asked)) - answered(killed), 1)
            assert held.kill(partial(start, command, processes, tmp_path), more)
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


def settle(server: ChatServer, others: set[threading.Thread]) -> None:
    """Wait until what had reached the server is in its log: connections are taken in turn, and each has a thread.

    `others` are threads that were there before, such as those of connections that this process keeps open.
    """
    httpx.get(f"{server.base_url}/batches", timeout=60)
    for thread in set(threading.enumerate()) - others:
        if "process_request_thread" in thread.name:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.slow
def test_no_kill_makes_a_run_exceed_its_ceiling(words, tmp_path, capsys):
    """Twenty kills of one process and of two, in turn, at a few ceilings, with a hosted LLM and a hosted editor."""
    draw, undisturbed, disturbed = random.Random(0), Biller(), Biller()
    with ProviderServer(undisturbed) as server:
        whole = [*words, *HOSTED, "--llm-base-url", server.url(), "--editor-base-url", server.url()]
        assert main([*whole, "--output", str(tmp_path / "whole")]) == 0, capsys.readouterr().err
    ceiling, killed, held = 0.0, tmp_path / "killed", Held(disturbed)
    with ProviderServer(held) as server:
        same = [*words, *HOSTED, "--llm-base-url", server.url(), "--editor-base-url", server.url()]
        same += ["--output", str(killed)]
        for kill in range(20):
            ceiling += draw.choice([0.2, 1.0, 3.0])
            command = [*same, "--max-usd", str(ceiling)]
            held.kill(partial(start, command, 1 + kill % 2, tmp_path), draw.randint(1, 40))  # unless it stops before
            with ledger_in(killed) as ledger:  # as the next run counts
                assert disturbed.dollars <= ledger.total[0] + 1e-9 and ledger.total[0] <= ceiling + 1e-9
        assert main([*same, "--max-usd", str(ceiling + 100)]) == 0, capsys.readouterr().err
    assert saved(killed) == saved(tmp_path / "whole") and len(saved(killed)[0]) > 20
    assert undisturbed.counts["image"] > 20
    twice = disturbed.counts.total() - undisturbed.counts.total()
    assert twice <= len(rows(killed, "lost"))  # only what was on its way is paid for twice


@pytest.mark.slow  # a start of Python for each signal
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_the_command_alone_ends_its_processes_quietly(number, words, tmp_path):
    """The editor has a process of its own; nothing may be left of it, or of what they shared."""
    held = Held(erring)
    held.hold_after(40)
    with ChatServer(held) as server:
        same = [*words, *MODELS, "--llm-base-url", server.base_url, "--output", str(tmp_path / "out")]
        command = [sys.executable, "-m", "repair_hf", *same, "--concurrency", "2"]
        hears_all = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also under `nohup`
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hears_all)
        assert held.is_holding(process), process.communicate()[1]
        process.send_signal(number)
        held.hold_after(inf)
        said = process.communicate(timeout=600)[1]  # until the last process has closed it
    assert process.returncode == (-number if number is signal.SIGKILL else 128 + number)
    assert "leaked semaphore" not in said and "Traceback" not in said, said
    assert number is signal.SIGKILL or said.endswith("the same command resumes from what is on disk.\n")


def test_ctrl_c_keeps_what_was_paid_for_and_leaves_records(words, world, tmp_path, request):
    # a job that a shell started in the background ignores it, and so would this test
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, heard))
    log, out, held = tmp_path / "log.jsonl", tmp_path / "out", Held(erring)
    held.hold_after(30)

    def interrupt() -> None:
        held.is_holding()
        os.kill(os.getpid(), signal.SIGINT)
        held.hold_after(inf)

    with ChatServer(held, log=log) as server:
        threading.Thread(target=interrupt, daemon=True).start()
        limit = ["--concurrency", str(CONCURRENCY)]
        code = main([*words, *MODELS, *limit, "--llm-base-url", server.base_url, "--output", str(out)])
    assert code == 130
    assert 30 < answered(out) == lines(log) < 60
    left = json.loads((out / "summary.json").read_text())["open"]
    assert left == len(world.failures) - len(load_kept(out)) - len(load_dropped(out)) > 0
