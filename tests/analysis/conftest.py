"""A toy run with planted faults, for the report and its charts."""

from pathlib import Path

import pytest

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.shipped import BASE
from repair_hf.mining.false_positives import mine_false_positives
from repair_hf.pairs.dataset import load_pairs
from repair_hf.toyworld.corpus import build_world


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory) -> Path:
    """The folder of a run with its world and records: 10% of the verdicts are flipped, 20% of edited images drift."""
    folder = tmp_path_factory.mktemp("run")
    world = build_world(folder / "world", splits={"train": 60, "validation": 1, "test": 1})
    pairs, encoder = load_pairs(world), DualEncoder.from_pretrained(BASE)
    failures = mine_false_positives(*encoder.embed_pairs(pairs), pairs.caption_image, d_i2t=4)
    failures.to_parquet(folder / "failures.parquet")
    words = ["--pairs", str(world), "--failures", str(folder / "failures.parquet"), "--model", "world/base"]
    words += ["--llm", "world/oracle?keeps_bad=0.1&rejects_good=0.1", "--editor", "world?drift=0.2"]
    assert main(["synthesize", *words, "--output", str(folder / "records")]) == 0
    return folder
