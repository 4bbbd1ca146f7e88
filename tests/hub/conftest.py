"""Folders of stages with hostile texts for the cards; a Hub on loopback and its clients for the pushes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from datasets import Dataset
from hub_server import Client, Hub
from ledgers import ledger_in
from markdown_it import MarkdownIt
from pictures import draw

from repair_hf.llm.ledger import Reply, Topic
from repair_hf.llm.prompts import SHIPPED
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records

HOSTILE = [
    "<script>alert(1)</script> a dog",
    '<img src=x onerror="alert(1)">',
    "a | b \\| c",
    "`</code><b>bold</b>` and ``more`` ```",
    "[click](javascript:alert(1)) ![x](http://evil.example/x.png)",
    "https://evil.example www.evil.example me@evil.example",
    "# heading\n\n- list\n\n---\n\n| a | b |\n|---|---|\n",
    "**bold** _it_ ~~gone~~ &lt;b&gt; $x$",
    "{{ 7 * 7 }} {% for x in y %}",
    "right\u202eleft \u200b hidden\x07",
    "```\n</details>\n```",
    "``",
]
TOKEN = "hf_goodgoodgoodgoodgood"
LOADING = """
import contextlib, datasets, hashlib
from pathlib import Path
from unittest import mock
from huggingface_hub import constants

@contextlib.contextmanager
def as_stranger(home):
    with mock.patch.dict(os.environ), mock.patch.multiple(constants, HF_HUB_CACHE=f"{home}/hub"), \\
            mock.patch.multiple(datasets.config, HF_DATASETS_CACHE=Path(home, "datasets")):
        del os.environ["HF_TOKEN"]
        yield

def digest(dataset):
    from datasets import Image
    for name, kind in dataset.features.items():
        if isinstance(kind, Image):
            dataset = dataset.cast_column(name, Image(decode=False))
    return hashlib.sha256(repr(dataset.to_list()).encode()).hexdigest()
"""
TEXTS = "q_text gt_text fp_text edit_text gt_reason fp_reason edit_instruction q_id fp_id".split()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "hostile_text" in metafunc.fixturenames:
        metafunc.parametrize("hostile_text", HOSTILE)


@pytest.fixture(scope="session")
def rendered():
    """Renders Markdown as HTML."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render


@pytest.fixture(scope="session")
def stage_folder():
    """Writes what a stage leaves in its folder."""

    def write(folder: Path, command: str, options: dict, summary: dict) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        versions = {"command": command, "python": "3.11", "here": [], "packages": {"torch": "2"}}
        versions |= {"output": "/home/ann/runs", "platform": "Ann's machine"}
        for name, content in {"config.yaml": options, "summary.json": summary, "versions.json": versions}.items():
            (folder / name).write_text(json.dumps(content))
        (folder / "command.txt").write_text(
            f"repair-hf {command} --output /home/ann/runs/{command} --model=/home/ann/clip "
            "--llm-base-url http://inside.example --editor_base_url=http://inside.example/v1 --seed 3\n"
        )
        return folder

    return write


@pytest.fixture
def hostile(repaired) -> Dataset:
    rows = repaired.to_list()[:3] + repaired.to_list()[-3:]
    for number, row in enumerate(rows):
        for place, name in enumerate(TEXTS):
            if row[name] is not None or name in ("gt_reason", "fp_reason", "edit_instruction"):
                row[name] = HOSTILE[(number * 3 + place) % len(HOSTILE)]
        row["record_id"] = f"{number}{HOSTILE[number]}"
        row |= {"llm": HOSTILE[0], "editor": HOSTILE[4], "retriever": HOSTILE[3], "prompt_digest": SHIPPED.digest()}
        row |= {"edit_similarity": 0.5 + number / 100, "error_types": ["Count"] if row["direction"] == "i2t" else []}
    return Dataset.from_list(rows, features=FEATURES)


def failures(*reasons: tuple[str, str]) -> Dataset:
    """Dropped failures, of a direction and a reason each."""
    empty = dict.fromkeys(DROPPED_FEATURES) | {"q_id": "a", "error_types": []}
    rows = [empty | {"direction": way, "reason": reason} for way, reason in reasons]
    return Dataset.from_list(rows, features=DROPPED_FEATURES)


@pytest.fixture
def dropped() -> Dataset:
    return failures(("t2i", "no_op"), ("i2t", "gt_invalid"), ("i2t", "no_op"))


@pytest.fixture
def synthesis(hostile, dropped, stage_folder, tmp_path) -> Path:
    options = dict(pairs="/home/ann/photos", split="train", strict=False, llm="gemini/gemini-2.5-flash")
    options |= dict(concurrency=7, llm_base_url="http://inside.example", pairs_fingerprint="abc")
    options["output"] = "/home/ann/runs/records"
    paid = dict(stage="audit", direction="i2t", calls=1234, prompt_tokens=5000, completion_tokens=50, dollars=1.5)
    folder = stage_folder(tmp_path / "records", "synthesize", options, {"paid": [paid]})
    with ledger_in(folder) as ledger:
        reply = Reply("t", "stop", 1, 1, 0.0, "gemini-2.5-flash-002")
        asyncio.run(ledger.answer("k", Topic("audit", "i2t", "gemini/gemini-2.5-flash"), reply))
    save_records(folder, hostile, dropped)
    return folder


@pytest.fixture(scope="session")
def hub_of_all_tests():
    with Hub({TOKEN: "me", "hf_otherotherotherother": "you"}) as server:
        yield server


@pytest.fixture
def hub(hub_of_all_tests):
    yield hub_of_all_tests
    hub_of_all_tests.faults.clear()
    hub_of_all_tests.before.clear()


@pytest.fixture(scope="session")
def client(hub_of_all_tests, tmp_path_factory):
    client = Client(hub_of_all_tests, tmp_path_factory.mktemp("home"), TOKEN)
    client.run(f"{LOADING}\nfrom repair_hf.hub import push as hub\nhub.WAITS = (0.0, 0.0)")
    yield client
    client.close()


@pytest.fixture(scope="session")
def stranger(client, tmp_path_factory):
    """Runs code as somebody who is not logged in, and has nothing cached."""
    home = str(tmp_path_factory.mktemp("stranger"))
    return lambda code: client.run(f"with as_stranger({home!r}):\n    exec({code!r}, globals())")


@pytest.fixture
def push(client):
    """Pushes a folder of records; gives back the exit code, what was printed and the errors."""
    return lambda folder, repo, *more: client.main("push", "records", folder, "--repo", repo, *more)


@pytest.fixture(scope="session")
def one_dropped() -> Dataset:
    return failures(("t2i", "no_op"))


@pytest.fixture(scope="session")
def folder(repaired, one_dropped, tmp_path_factory) -> Path:
    """Records with an image of a source in them."""
    folder = tmp_path_factory.mktemp("records")

    def with_source(row: dict) -> dict:
        return row | ({"gt_image": draw(row["gt_id"])} if row["direction"] == "t2i" else {})

    save_records(folder, repaired.map(with_source, features=FEATURES), one_dropped)
    return folder
