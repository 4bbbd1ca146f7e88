"""Settings and fixtures of all tests: no network, one thread, tiny models, small pictures, made-up records."""

import os
import shutil
import sys
import tempfile
from unittest import mock

_HOME = tempfile.mkdtemp(prefix="repair-hf-tests-")
os.environ |= {  # before any of the libraries is imported: they read these once
    "HF_HOME": _HOME,
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

with mock.patch.object(sys, "addaudithook"):  # filelock's is called at each event of Python, and doubles a deep copy
    import filelock  # noqa: F401

import gc  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402

import children  # noqa: E402
import pytest  # noqa: E402
from pictures import draw, pictures  # noqa: E402
from PIL import Image  # noqa: E402

pytest_plugins = ["tiny_models", "sentence_models", "repaired_world"]

# Files of over five seconds of processor time come first, so that no worker begins one when the other is done.
LONG = """
    analysis/test_report.py cli/test_changed_pairs.py cli/test_folders.py cli/test_run.py cli/test_stopped.py
    cli/test_synthesize.py cli/test_train.py evaluation/test_contrast.py hub/test_push.py study/test_study.py
    synthesis/test_checks.py training/test_adapters.py training/test_blend.py training/test_trainer.py
""".split()
ASKING = "cli/", "llm/", "synthesis/"  # folders whose tests ask an LLM
TOGETHER = "hub/test_push", "hub/test_from_hub"  # files that share what takes long: the Hub's client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not str(item.path).endswith(tuple(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Give each worker whole files, and those of `TOGETHER` to one worker."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "hub" if any(each in file for each in TOGETHER) else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported modules from garbage collection, which the Trainer runs at the start of each training."""
    import torch  # late: xdist's main process, which collects nothing, needs none

    torch.set_num_threads(1)
    if any(item.nodeid.partition("tests/")[2].startswith(ASKING) for item in session.items):
        import litellm  # noqa: F401  # takes three seconds, which no single test should seem to take
    if any(item.get_closest_marker("slow") for item in session.items):
        children.PRELOADED += children.FOR_SLOW_TESTS
    gc.collect()
    gc.freeze()


def pytest_runtest_logstart(nodeid: str, _file: list[str] = [""]) -> None:  # noqa: B006
    """Exclude what the tests of earlier files have imported, too."""
    if _file[0] != (file := nodeid.partition("::")[0]):
        _file[0] = file
        gc.freeze()


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory) -> Path:
    """Twelve pictures of 48x40 pixels with two captions each, and their captions.jsonl; no splits. Only read it."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = []
    for name, captions in pictures():
        draw(name).save(folder / name)
        lines.append(json.dumps({"image": name, "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def repaired():
    """Records of half of the captions and half of the images of `pairs_folder`, with made-up edits."""
    import random

    from datasets import Dataset

    from repair_hf.records.dataset import FEATURES

    rng, rows = random.Random(0), []
    captions = {f"{name}#{k}": text for name, texts in pictures() for k, text in enumerate(texts)}
    for caption in rng.sample(sorted(captions), 12):
        fp = rng.choice([name for name, _ in pictures() if not caption.startswith(name)])
        edit = Image.new("RGB", (48, 40), (rng.randrange(256), rng.randrange(256), rng.randrange(256)))
        rows.append({"direction": "t2i", "q_id": caption, "fp_id": fp, "edit_image": edit, "gt_id": caption[:-2]})
        rows[-1] |= {"q_text": captions[caption]}
    for name, texts in rng.sample(pictures(), 6):
        for fp in rng.sample([caption for caption in captions if not caption.startswith(name)], 2):
            edit = f"{captions[fp]}, or rather {texts[0]}"
            rows.append({"direction": "i2t", "q_id": name, "fp_id": fp, "edit_text": edit, "gt_id": f"{name}#0"})
            rows[-1] |= {"fp_text": captions[fp], "gt_text": texts[0]}
    for number, row in enumerate(rows):
        row |= {"record_id": f"{number:016x}", "fp_score": round(rng.random(), 3), "error_types": []}
    return Dataset.from_list([dict.fromkeys(FEATURES) | row for row in rows], features=FEATURES)


@pytest.fixture(scope="session")
def records_folder(repaired, tmp_path_factory) -> Path:
    """`repaired` as a folder of records, without dropped failures. Only read it."""
    from datasets import Dataset

    from repair_hf.records.dataset import DROPPED_FEATURES, save_records

    folder = tmp_path_factory.mktemp("records")
    save_records(folder, repaired, Dataset.from_dict(dict.fromkeys(DROPPED_FEATURES, []), features=DROPPED_FEATURES))
    return folder


@pytest.fixture(scope="session")
def illustrated(pairs_folder, repaired):
    """Pairs, and records of theirs with all pictures."""
    from datasets import Dataset

    from repair_hf.pairs.dataset import load_pairs

    pairs = load_pairs(pairs_folder, split="all")
    images = {row["image_id"]: row["image"] for row in pairs.images}
    rows = []
    for row in repaired:
        roles = ("gt", "fp") if row["direction"] == "t2i" else ("q",)
        rows.append(row | {f"{role}_image": images[row[f"{role}_id"]] for role in roles} | {"edit_similarity": 0.9})
    return pairs, Dataset.from_list(rows, features=repaired.features)


@pytest.fixture(scope="session")
def illustrated_folder(illustrated, tmp_path_factory) -> Path:
    """A folder of these records and of one dropped failure. Only read it."""
    from datasets import Dataset

    from repair_hf.records.dataset import DROPPED_FEATURES, save_records

    folder = tmp_path_factory.mktemp("illustrated")
    failure = dict(direction="t2i", q_text="a", gt_id="red_circle.png", fp_id="red_square.png", reason="gt_invalid")
    dropped = Dataset.from_list([dict.fromkeys(DROPPED_FEATURES) | failure], features=DROPPED_FEATURES)
    save_records(folder, illustrated[1], dropped)
    return folder
