"""What the tests of the synthesis share: keys, an encoder, pictures, a world and its command line."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from provider_server import KEY, KEYS, ImageServer
from small_world import World, sources_of

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.synthesis.sources import SourceImages


@pytest.fixture(scope="module", autouse=True)
def _keys():
    """A key for each provider: LiteLLM requires one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in KEYS.values():
            patch.setenv(name, KEY)
        yield


@pytest.fixture(scope="session")
def encoder(clip_folder) -> DualEncoder:
    return DualEncoder.from_pretrained(str(clip_folder))


@pytest.fixture(scope="session")
def sources(pairs_folder) -> SourceImages:
    return sources_of(*sorted(pairs_folder.glob("*.png")))


@pytest.fixture(scope="session")
def world(encoder, tmp_path_factory) -> World:
    """Twelve images; failures of all of them, and of every eighth caption."""
    folder = tmp_path_factory.mktemp("world") / "world"
    return World.build(folder, encoder, 12, keep=lambda row: row["direction"] == "i2t" or row["q"] % 8 == 0)


@pytest.fixture(scope="session")
def words(world, clip_folder) -> list[str]:
    """The words of `repair-hf synthesize` for this world, without LLM, editor and output."""
    return world.command(clip_folder)


@pytest.fixture
def serve():
    """Starts a server that edits images by a script."""
    with ExitStack() as servers:
        yield lambda script: servers.enter_context(ImageServer(script))
