"""Runs over the provider's batch API: handed in by one run, collected by a later one, and never paid for twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from batch_server import BatchServer
from ledgers import answers, rows
from small_world import World, saved

from repair_hf.cli.main import main
from repair_hf.llm import batches as batches_module
from repair_hf.llm.batches import Batches
from repair_hf.llm.client import ChatModel
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.sending import Retries
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.toyworld import oracle
from repair_hf.toyworld.errors import LLMErrors

QUICK = Retries(attempts=3, first_wait=0.01)


@pytest.fixture(scope="module")
def world(encoder, tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("batches") / "world"
    keep = {"i2t": lambda q: q < 4, "t2i": lambda q: q % 10 == 0}
    return World.build(folder, encoder, 8, keep=lambda row: keep[row["direction"]](row["q"]))


def synthesize(world: World, folder: Path, base_url: str, *, batch: bool = True, **options):
    """One run of the command, as far as it comes."""
    with Ledger(folder / "ledger.sqlite") as ledger:
        batches = Batches("openai/world", ledger, base_url=base_url, retries=QUICK) if batch else None
        chat = ChatModel("openai/world", ledger=ledger, base_url=base_url, batches=batches)
        return world.synthesize(chat, folder, **options)


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
            with pytest.raises(RunStopped, match=r"^[\d,]+ requests are with openai/world in 1 batches"):
                synthesize(world, tmp_path / "out", server.base_url)
            first = len(asked(log))
        server.batches.delay = 0
        records, dropped, told = until_done(world, tmp_path / "out", server.base_url)
    assert first >= 8 and len(asked(log)) == len(set(asked(log)))
    assert 2 <= len(told) <= 6  # instruct, edit, and second attempts of each
    assert (records, dropped) == whole
    assert not rows(tmp_path / "out", "submitted")


def test_the_command_hands_in_and_collects(world, whole, clip_folder, tmp_path, capsys):
    with BatchServer(oracle.answer_to) as server:
        options = f"--llm openai/world --editor world --batch --output {tmp_path} --llm-base-url {server.base_url}"
        stops = 0
        while code := main([*world.command(clip_folder), *options.split()]):
            stops += 1
            assert code == 1 and "requests are with openai/world in 1 batches" in capsys.readouterr().err
    assert saved(tmp_path) == whole and stops == 3


class Killed(BaseException):
    """Like a signal, nothing of ours catches it."""


def die_after(moment: str, patch: pytest.MonkeyPatch) -> None:
    """Die when the provider has got a request, before its answer is written down; or between two collected answers."""
    unharmed, keep, collected = batches_module.BatchAPI._send, Ledger.answer, []

    async def send(self, name, *args, **kwargs):
        result = await unharmed(self, name, *args, **kwargs)
        if name == moment:
            raise Killed
        return result

    def keep_some(self, key, reply):
        collected.append(key)
        if moment == "fourth answer" and len(collected) == 4:
            raise Killed
        keep(self, key, reply)

    patch.setattr(batches_module.BatchAPI, "_send", send)
    patch.setattr(Ledger, "answer", keep_some)
    patch.setattr(Ledger, "_settle", lambda ledger, owner: None)  # a killed process closes nothing


@pytest.mark.parametrize("moment", ["create_file", "create_batch", "retrieve_batch", "file_content", "fourth answer"])
def test_killed_between_any_two_steps(world, whole, moment, tmp_path):
    log, folder = tmp_path / "log.jsonl", tmp_path / "out"
    with BatchServer(oracle.answer_to, log=log) as server:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            die_after(moment, patch)
            until_done(world, folder, server.base_url)
        if moment == "fourth answer":
            assert answers(folder) == 3
        assert until_done(world, folder, server.base_url)[:2] == whole
    assert len(asked(log)) == len(set(asked(log)))  # every request reached the provider once
