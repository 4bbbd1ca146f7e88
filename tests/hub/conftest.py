"""Folders of stages with hostile texts in them, which both cards are tested on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from markdown_it import MarkdownIt

from repair_hf.llm.prompts import prompt_digest
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
        versions = {"command": command, "python": "3.11", "commit": None, "packages": {"torch": "2"}}
        (folder / "config.yaml").write_text(yaml.safe_dump(options))
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "versions.json").write_text(json.dumps(versions))
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
        row |= {"llm": HOSTILE[0], "editor": HOSTILE[4], "retriever": HOSTILE[3], "prompt_digest": prompt_digest()}
        row |= {"edit_similarity": 0.5 + number / 100, "error_types": ["Count"] if row["direction"] == "i2t" else []}
    return Dataset.from_list(rows, features=FEATURES)


@pytest.fixture
def dropped() -> Dataset:
    reasons = (("t2i", "no_op"), ("i2t", "gt_invalid"), ("i2t", "no_op"))
    rows = [dict.fromkeys(DROPPED_FEATURES) | {"direction": way, "reason": reason} for way, reason in reasons]
    return Dataset.from_list(rows, features=DROPPED_FEATURES)


@pytest.fixture
def synthesis(hostile, dropped, stage_folder, tmp_path) -> Path:
    options = dict(pairs="/home/ann/photos", split="train", strict=False, llm="gemini/gemini-2.5-flash", drift=0.25)
    options |= dict(concurrency=7, llm_base_url="http://inside.example", pairs_fingerprint="abc")
    options |= dict(output="/home/ann/runs/records")
    paid = dict(stage="audit", direction="i2t", calls=1234, replayed=0, prompt_tokens=5000, completion_tokens=50)
    paid |= dict(dollars=1.5, unpriced=0, dollars_saved=0.0)
    folder = stage_folder(tmp_path / "records", "synthesize", options, {"paid": [paid]})
    entry = dict(key="k", text="t", finish="stop", prompt_tokens=1, completion_tokens=1, dollars=0.0, stage="audit")
    entry |= dict(direction="i2t", model="gemini/gemini-2.5-flash", answered_by="gemini-2.5-flash-002")
    (folder / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    save_records(folder, hostile, dropped)
    return folder
