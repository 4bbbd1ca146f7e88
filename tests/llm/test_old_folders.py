"""A folder of the time before ledgers is imported once: nothing that it paid for is asked again.

`old_run` was made by that code: answers, a rejection and a lost answer of an LLM, three images, an open batch.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
from pathlib import Path

import pytest
from ledgers import ledger_in, rows
from provider_server import ProviderServer, Script, png
from small_world import sources_of

from repair_hf.llm.batches import open_batches
from repair_hf.llm.client import ChatModel, Deferred, RefusedAnswer
from repair_hf.llm.cost import paid_in
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.ledger_file import take_over
from repair_hf.llm.sending import Retries
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from tests.llm.asking import PRICED, Verdict

OLD = Path(__file__).parent / "old_run"
URL = f"data:image/png;base64,{base64.b64encode(png((8, 8))).decode()}"
BILLS = 5 * 0.00021 + 0.00189105 + 3 * 0.01383  # answers, the lost one at its worst case, images
BATCH = 2 * 0.0009456


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(OLD, tmp_path / "run")


def question(text: str) -> list[dict]:
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": URL}}]
    return [{"role": "system", "content": "Judge."}, {"role": "user", "content": parts}]


def ask(ledger: Ledger, script: Script) -> list:
    """Ask what the old run asked."""

    async def work(chat: ChatModel) -> list:
        said = [chat.ask(question(text), stage="audit", direction="i2t", schema=Verdict) for text in TEXTS]
        said.append(chat.ask(question("batch one"), stage="instruct", direction="i2t", schema=Verdict))
        return await asyncio.gather(*said, return_exceptions=True)

    with ProviderServer(script) as server:
        return asyncio.run(work(ChatModel(PRICED, ledger=ledger, base_url=server.url())))


TEXTS = ("good", "malformed", "rejected", "lost")


def test_answers_are_found_and_counted_and_a_new_question_is_asked(folder):
    script = Script('{"valid": true, "reason": "new"}')
    for _ in range(2):  # the second time under their new keys
        with ledger_in(folder) as ledger:
            assert ledger.total == (pytest.approx(BILLS + BATCH), 6 + 3 + 2)
            good, malformed, rejected, lost, batch = ask(ledger, script)
        assert {good.reason, malformed.reason, lost.reason} == {"it fits"}
        assert isinstance(rejected, RefusedAnswer) and isinstance(batch, Deferred) and not script.questions
    assert open_batches([folder])[folder].requests == 2
    assert paid_in(folder)["edit", "t2i"].calls == 3 and len(rows(folder)) == 8


def test_images_are_found(folder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    how = {"base_url": "http://127.0.0.1:9", "retries": Retries(attempts=1)}
    editor = HostedEditor("openai/gpt-image-1", size=64, **how)

    async def work(ledger: Ledger) -> list[Path | None]:
        images = Candidates(editor, sources_of(folder / "source.png"), ledger, count=3, seed=0)
        async with images.open():
            return await images.make(0, "make it red")

    with ledger_in(folder) as ledger:
        made = asyncio.run(work(ledger))
        assert sum(path is None for path in made) == 1 and all(path is None or path.is_file() for path in made)


def test_a_folder_that_is_only_read_stays_as_it_is_and_one_that_is_taken_over_too(folder, tmp_path):
    before = sorted(folder.rglob("*"))
    assert paid_in(folder)["audit", "i2t"].dollars == pytest.approx(4 * 0.00021 + 0.00189105)
    with ledger_in(tmp_path / "other") as ledger:
        assert take_over(ledger.database, ledger.run, folder) == folder
        assert ledger.total == (0.0, 0)
    with ledger_in(tmp_path / "other") as ledger:
        good, *_ = ask(ledger, Script("not reached"))
        assert good.reason == "it fits"
    assert sorted(folder.rglob("*")) == before
