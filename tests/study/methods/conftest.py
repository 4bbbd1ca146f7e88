"""A tiny toy world, and what each maker makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.client import ChatModel
from repair_hf.llm.journal import Journal
from repair_hf.llm.provider import ProviderError, Reply
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.registry import load_makers
from repair_hf.study.products import make_samples
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.editor import WorldEditor

MAKERS = load_makers()


class CountedOracle:
    """The oracle in this process, counted. It fails after some answers, or says `instead` if that returns a text."""

    def __init__(self, *, fail_after: int | None = None, instead=lambda request: None) -> None:
        self.calls, self.fail_after, self.instead, self._answer = 0, fail_after, instead, oracle.provider()

    async def __call__(self, request) -> Reply:
        await asyncio.sleep(0)
        if self.calls == self.fail_after:
            raise ProviderError("out of credit")
        self.calls += 1
        said = self.instead(request)
        return await self._answer(request) if said is None else Reply(said, "stop", 1, 1, 0.0, oracle.MODEL)


class CountedEditor(WorldEditor):
    """The world's editor in this process, counted. With `gives`, it makes that of each source instead."""

    own_process = False

    def __init__(self, gives=None) -> None:
        super().__init__()
        self.made, self.gives = 0, gives

    def edit(self, sources, instructions, seeds):
        self.made += sum(map(len, seeds))
        if self.gives is None:
            return super().edit(sources, instructions, seeds)
        return [[self.gives(source) for _ in row] for source, row in zip(sources, seeds, strict=True)]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Pairs:
    return load_pairs(build_world(tmp_path_factory.mktemp("world"), splits={"train": 4}))  # 20 captions


@pytest.fixture(scope="session")
def encoder() -> DualEncoder:
    return DualEncoder.from_pretrained("world/base", device="cpu")


@pytest.fixture(scope="session")
def run(pairs, encoder):
    """Runs a maker; its `provider` and `editor` may be replaced."""

    def make(name: str, folder: Path, provider=None, editor=None) -> SimpleNamespace:
        if name == "negclip":
            pytest.importorskip("spacy", reason="words are tagged by spaCy: pip install 'repair-hf[study]'")
        provider, editor = provider or CountedOracle(), editor or CountedEditor()
        with Journal(folder / "journal.jsonl") as journal:
            chat = ChatModel(oracle.MODEL, journal=journal, provider=provider)
            context = MakerContext(pairs, encoder, chat, editor, folder, spacy_model="world")
            rows = asyncio.run(make_samples(MAKERS[name], context))
        return SimpleNamespace(rows=rows, context=context, provider=provider, editor=editor, folder=folder)

    return make


@pytest.fixture(scope="session")
def made(run, tmp_path_factory):
    """What a maker made; each runs once."""
    found: dict[str, SimpleNamespace] = {}

    def of(name: str) -> SimpleNamespace:
        if name not in found:
            found[name] = run(name, tmp_path_factory.mktemp(name))
        return found[name]

    return of
