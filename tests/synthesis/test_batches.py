"""Runs over the provider's batch API: handed in by one run, collected by a later one, and never paid for twice."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from batch_server import BatchServer
from children import Child
from ledgers import answers, rows
from small_world import World, saved

from repair_hf.cli.main import main
from repair_hf.llm.asker import Asker
from repair_hf.llm.batch_asker import BatchAsker
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.paid_model import Retries
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.toyworld import oracle
from repair_hf.toyworld.errors import LLMErrors

QUICK = Retries(attempts=3, first_wait=0.01)


@pytest.fixture(scope="module")
def world(world, tmp_path_factory) -> World:
    """The world of all tests of the synthesis, with fewer failures."""
    few = {"i2t": 4, "t2i": 32}
    folder = tmp_path_factory.mktemp("batches") / "world"
    return world.with_failures(folder, lambda row: row["q"] < few[row["direction"]])


def synthesize(world: World, folder: Path, base_url: str, *, batch: bool = True, **options):
    """One run of the command, as far as it comes."""
    with Ledger(folder / "ledger.sqlite") as ledger:
        kind = BatchAsker if batch else Asker
        return world.synthesize(kind("openai/world", ledger, base_url=base_url, retries=QUICK), folder, **options)


def clumsy(body: dict) -> str:
    """Often broken, but never on the second attempt."""
    is_first = len(body["messages"]) == 2
    return oracle.answer_to(body, LLMErrors(malformed_rate=0.3 if is_first else 0.0))


def asked(log: Path) -> list[str]:
    return [json.loads(line)["digest"] for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    """What comes of it without batches."""
    folder = tmp_path_factory.mktemp("whole")
    with BatchServer(oracle.answer_to) as server:
        return synthesize(world, folder, server.base_url, batch=False)


def until_done(world, folder: Path, base_url: str, **options):
    """Run after run, as a user would come back day after day."""
    told = []
    while True:
        try:
            return *synthesize(world, folder, base_url, **options), told
        except RunStopped as stop:
            told.append(str(stop))
            assert len(told) < 12, told


def test_submit_leave_collect(world, whole, tmp_path):
    log = tmp_path / "log.jsonl"
    with BatchServer(clumsy, log=log) as server:
        server.batches.delay = 3600
        for _ in range(2):  # the second run finds nothing new to hand in
            with pytest.raises(RunStopped, match=r"^[\d,]+ requests are with openai/world in batches"):
                synthesize(world, tmp_path / "out", server.base_url)
            first = len(asked(log))
        server.batches.delay = 0
        records, dropped, told = until_done(world, tmp_path / "out", server.base_url)
    assert first >= 8 and len(asked(log)) == len(set(asked(log)))
    assert 2 <= len(told) <= 6  # instruct, edit, and second attempts of each
    assert (records, dropped) == whole
    assert not rows(tmp_path / "out", "submitted")


def test_the_check_is_another_batch(world, tmp_path):
    """The answers to all other questions are there already."""
    with BatchServer(oracle.answer_to) as server, Ledger(tmp_path / "ledger.sqlite") as ledger:
        world.repair(Asker("openai/world", ledger, provider=oracle.provider()), tmp_path)
        asker = partial(BatchAsker, "openai/world", ledger, base_url=server.base_url, retries=QUICK)
        with pytest.raises(RunStopped, match="^3 requests are with openai/world in batches"):
            world.repair(asker(), tmp_path, check_edits=3)
        summary = world.repair(asker(), tmp_path, check_edits=3)
    assert sum(row["checked"] for row in summary["checked"] if row["error_type"] == "all") == 3
    assert summary["open"] == 0 and [row["stage"] for row in rows(tmp_path)].count("check") == 3


@pytest.mark.slow
def test_the_command_hands_in_and_collects(world, whole, clip_folder, tmp_path, capsys):
    with BatchServer(oracle.answer_to) as server:
        options = f"--llm openai/world --editor world --batch --output {tmp_path} --llm-base-url {server.base_url}"
        stops = 0
        while code := main([*world.command(clip_folder), *options.split()]):
            stops += 1
            assert code == 1 and "requests are with openai/world in batches" in capsys.readouterr().err
    assert saved(tmp_path) == whole and stops == 3


def run_and_die(words: list[str], moment: str) -> None:
    """Run the command until it ends; be killed when the provider has got a request, or between two answers."""
    unharmed, keep, collected = BatchAsker._call_once, Ledger.answer, []

    async def call(self, name, *args, **kwargs):
        result = await unharmed(self, name, *args, **kwargs)
        if name == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    async def keep_some(self, key, *args):
        collected.append(key)
        if moment == "fourth answer" and len(collected) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        await keep(self, key, *args)

    BatchAsker._call_once, Ledger.answer = call, keep_some
    while main(words):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["create_file", "create_batch", "retrieve_batch", "file_content", "fourth answer"])
def test_killed_between_any_two_steps(world, whole, moment, clip_folder, tmp_path):
    log, folder = tmp_path / "log.jsonl", tmp_path / "out"
    with BatchServer(oracle.answer_to, log=log) as server:
        options = f"--llm openai/world --editor world --batch --output {folder} --llm-base-url {server.base_url}"
        words = [*world.command(clip_folder), *options.split()]
        child = Child(run_and_die, words, moment)
        assert child.wait() == -signal.SIGKILL, child.said()
        if moment == "fourth answer":
            assert answers(folder) == 3
        while main(words):
            pass
    assert saved(folder) == whole
    assert len(asked(log)) == len(set(asked(log)))  # every request reached the provider once
