"""The cheaper ways to ask: the same records for fewer calls and fewer tokens, counted at a server."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from datasets import Dataset
from scripted import stage_of
from small_world import World

from repair_hf.llm.client import ChatModel
from repair_hf.llm.journal import Journal
from repair_hf.pairs.dataset import load_pairs
from repair_hf.toyworld import oracle
from repair_hf.toyworld.server import ChatServer

WAYS = {
    "default": {},
    "together": {"candidates_in_one_request": True},
    "grouped": {"grouped_audit": True},
    "both": {"grouped_audit": True, "candidates_in_one_request": True},
}


@pytest.fixture(scope="module")
def world(encoder, tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("ways") / "world"
    return World.build(folder, encoder, 6, d_i2t=4, keep=lambda row: row["direction"] == "i2t" or row["q"] % 10 == 0)


class Counting:
    """Answers as the oracle does, unless `script` says otherwise, and counts what it is asked."""

    def __init__(self, script=lambda shown: None) -> None:
        self.script = script
        self.calls, self.tokens = Counter(), Counter()
        self._lock = threading.Lock()

    def __call__(self, body: dict) -> str | list[str]:
        shown = "\n".join(part.get("text", "image") for part in body["messages"][1]["content"])
        place = stage_of(shown), "t2i" if "Query caption:" in shown else "i2t"
        with self._lock:
            self.calls[place] += 1
            self.tokens[place] += oracle.count_tokens(body["messages"])
        return self.script(shown) or oracle.choices(oracle.answer, body)


def synthesize(world: World, folder: Path, answer: Counting, failures: Dataset | None = None, **options):
    with (
        pytest.MonkeyPatch.context() as patch,
        ChatServer(answer) as server,
        Journal(folder / "journal.jsonl") as journal,
    ):
        patch.setenv("OPENAI_API_KEY", "none")
        chat = ChatModel("openai/world", journal=journal, base_url=server.base_url)
        saved = world.synthesize(chat, folder, failures, **options)
    assert {key: use.prompt_tokens for key, use in chat.usage.items()} == dict(answer.tokens)
    return saved


@pytest.fixture(scope="module")
def found(world, tmp_path_factory):
    """By each way: records, dropped, and what was counted."""
    counts = {way: Counting() for way in WAYS}
    return {
        way: (*synthesize(world, tmp_path_factory.mktemp(way), counts[way], **options), counts[way])
        for way, options in WAYS.items()
    }


def test_each_way_is_cheaper_than_the_default_and_both_together_are_cheapest(found):
    """Calls and input tokens per retained I2T sample."""
    calls, tokens = {}, {}
    for way, (records, _, counting) in found.items():
        kept = sum(row["direction"] == "i2t" for row in records)
        calls[way] = sum(count for (_, direction), count in counting.calls.items() if direction == "i2t") / kept
        tokens[way] = sum(count for (_, direction), count in counting.tokens.items() if direction == "i2t") / kept
    assert kept > 15, (calls, tokens)
    assert calls["default"] >= 5 > calls["grouped"] > calls["together"] > calls["both"] > 2
    assert tokens["default"] > max(tokens["grouped"], tokens["together"])
    assert min(tokens["grouped"], tokens["together"]) > tokens["both"] > 0
    assert tokens["both"] < 0.6 * tokens["default"]


def test_a_grouped_audit_gives_the_very_same_records(found):
    assert found["grouped"][:2] == found["default"][:2]
    assert found["both"][:2] == found["together"][:2]


def test_only_the_captions_of_an_image_are_grouped(world, found):
    rows, counting = world.of("i2t"), found["grouped"][2]
    assert counting.calls["audit", "i2t"] == len({row["q"] for row in rows}) < len(rows)
    for key, count in found["default"][2].calls.items():
        assert counting.calls[key] == count or key == ("audit", "i2t")


def test_one_request_gives_all_candidates(found):
    alone, together = found["default"][2].calls, found["together"][2].calls
    assert together["edit", "i2t"] * 3 == alone["edit", "i2t"] > 0
    texts = [[row["edit_text"] for row in found[way][0] if row["edit_text"]] for way in ("default", "together")]
    assert len(texts[0]) == len(texts[1])


def test_a_single_false_positive_is_audited_as_ever(world, tmp_path):
    asked: list[str] = []
    synthesize(world, tmp_path, Counting(asked.append), world.of("i2t", 1), grouped_audit=True)
    assert "False-positive caption:" in asked[0] and "False-positive caption 1:" not in asked[0]


@pytest.mark.parametrize("said", ["I would rather not.", json.dumps({"gt_reason": "r", "gt_valid": True})])
def test_a_group_without_an_answer_of_use_is_audited_one_by_one(world, found, said, tmp_path):
    answer = Counting(lambda shown: said if "False-positive caption 1:" in shown else None)
    assert synthesize(world, tmp_path, answer, grouped_audit=True) == found["default"][:2]
    groups = found["grouped"][2].calls["audit", "i2t"]
    assert answer.calls["audit", "i2t"] == 2 * groups + found["default"][2].calls["audit", "i2t"]


def test_a_group_whose_image_is_broken_is_dropped_whole(world, tmp_path):
    folder = shutil.copytree(world.folder, tmp_path / "world")
    broken, failures = world._replace(pairs=load_pairs(folder)), world.of("i2t")
    (folder / "images" / "train-00003.png").write_bytes(b"no image any more")
    answer = Counting()
    records, dropped = synthesize(broken, tmp_path / "out", answer, failures, grouped_audit=True)
    lost = [row["q_id"] for row in dropped if row["reason"] == "unreadable_image"]
    assert lost == ["train-00003.png"] * 4 and len(records) + len(dropped) == len(failures)
    assert answer.calls["audit", "i2t"] == 5
