"""What several commands are given."""

import pytest

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.mining.false_positives import mine_false_positives
from repair_hf.pairs.dataset import load_pairs
from repair_hf.toyworld.corpus import build_world


@pytest.fixture(scope="session")
def inputs(clip_folder, tmp_path_factory) -> list[str]:
    """A small world, 20 failures in it, and the retriever that failed, as words of `repair-hf synthesize`."""
    folder = tmp_path_factory.mktemp("inputs")
    world = build_world(folder / "world", splits={"train": 8, "validation": 1, "test": 1})
    pairs, encoder = load_pairs(world), DualEncoder.from_pretrained(clip_folder)
    failures = mine_false_positives(*encoder.embed_pairs(pairs), pairs.caption_image, d_i2t=2)
    (folder / "failures").mkdir()
    failures.select([0, 9, 20, 30, *range(40, 56)]).to_parquet(folder / "failures" / "failures.parquet")
    return ["--pairs", str(world), "--failures", str(folder / "failures"), "--model", str(clip_folder)]
