"""One repaired tiny world for all tests of a session: each stage once, by its command."""

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

WORLD = "--pairs {folder}/world --model world/base"
TRAIN = f"train {WORLD} --max-steps 2 --per-device-train-batch-size 8 --use-cpu"
STAGES = {  # folder -> command; 10% of the verdicts are wrong, and 20% of the edited images drift
    "world": "world build --train 24 --validation 8 --test 8",
    "failures": f"mine {WORLD} --d-i2t 4",
    "records": f"synthesize {WORLD} --failures {{folder}}/failures --llm world/oracle?keeps_bad=0.1&rejects_good=0.1 "
    "--editor world?drift=0.2",
    "contrast": "contrast --pairs {folder}/world --split test --llm world/oracle --editor world",
    "plain": TRAIN,
    "repaired": f"{TRAIN} --records {{folder}}/records",
    "evaluate": "evaluate world/base {folder}/plain {folder}/repaired --pairs {folder}/world --split test "
    "--contrast {folder}/contrast --resamples 50",
}


@pytest.fixture(scope="session")
def repaired_world(tmp_path_factory) -> Path:
    """A folder with the folder of each stage. Only read it, or a copy of a part by `copy_linked`."""
    from repair_hf.cli.main import main

    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root  # one world for all workers
    folder = root / "repaired-world"
    with FileLock(root / "repaired-world.lock"):
        for name, words in STAGES.items():  # a finished stage is only read again
            if not (folder / name / "summary.json").is_file():
                assert main([*words.format(folder=folder).split(), "--output", str(folder / name)]) == 0, name
    return folder


def copy_linked(source: Path, target: Path) -> Path:
    """Copy a folder by hard links, as files are replaced by a rename; the ledger, which is written to, is copied."""

    def copy(path: str, to: str) -> None:
        (shutil.copy if "ledger.sqlite" in path else os.link)(path, to)

    return shutil.copytree(source, target, copy_function=copy)
