"""A tiny toy world, and what each maker makes of it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted import Scripted
from study_runs import load_makers

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.asker import Asker
from repair_hf.llm.ledger import Ledger
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.study.making import MakerContext
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
from tests.study.counting import CountedEditor

MAKERS = load_makers()


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Pairs:
    return load_pairs(build_world(tmp_path_factory.mktemp("world"), splits={"train": 4}))  # 20 captions


@pytest.fixture
def two_steps(tmp_path) -> dict:
    """Options of a training of two steps."""
    few = {"per_device_train_batch_size": 4, "max_steps": 2, "logging_steps": 1, "use_cpu": True}
    return few | {"output_dir": str(tmp_path / "out")}


@pytest.fixture(scope="session")
def encoder() -> DualEncoder:
    return DualEncoder.from_pretrained("world/base", device="cpu")


@pytest.fixture(scope="session")
def run(pairs, encoder):
    """Runs a maker; its `provider` and `editor` may be replaced."""

    def make(name: str, folder: Path, provider=None, editor=None) -> SimpleNamespace:
        if name == "negclip":
            pytest.importorskip("spacy", reason="words are tagged by spaCy: pip install 'repair-hf[study]'")
        provider, editor = provider or Scripted(), editor or CountedEditor()
        with Ledger(folder / "ledger.sqlite") as ledger:
            asker = Asker(oracle.MODEL, ledger, provider=provider)
            context = MakerContext(MAKERS[name], pairs, encoder, asker, editor, spacy_model="world")
            rows = asyncio.run(context.run())
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
