"""The cheaper ways to ask: the same records for fewer calls and fewer tokens, counted at a server."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from datasets import Dataset
from scripted import shown_in, stage_of
from small_world import World

from repair_hf.llm.client import ChatModel
from repair_hf.llm.ledger import Ledger
from repair_hf.toyworld import oracle
from repair_hf.toyworld.server import ChatServer

WAYS = {
    "default": {},
    "grouped": {"grouped_audit": True},
}


@pytest.fixture(scope="module")
def world(encoder, tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("ways") / "world"
    return World.build(folder, encoder, 6, d_i2t=4, keep=lambda row: row["direction"] == "i2t" or row["q"] % 10 == 0)


class Counted(NamedTuple):
    """What a run made, and its calls and prompt tokens by stage and direction, counted at the server."""

    saved: tuple[list[dict], list[dict]]
    calls: Counter
    tokens: Counter


def synthesize(world: World, folder: Path, script=lambda shown: None, failures: Dataset | None = None, **options):
    """Run with the oracle, unless `script` answers."""
    requests = []

    def answer(body: dict) -> str:
        shown = shown_in(body)
        place = stage_of(shown), "t2i" if "Query caption:" in shown else "i2t"
        requests.append((place, oracle.count_tokens(body["messages"])))
        return script(shown) or oracle.answer_to(body)

    with ChatServer(answer) as server, Ledger(folder / "ledger.sqlite") as ledger:
        chat = ChatModel("openai/world", ledger=ledger, base_url=server.base_url)
        saved = world.synthesize(chat, folder, failures, **options)
    tokens = Counter()
    for place, count in requests:
        tokens[place] += count
    assert {key: use.prompt_tokens for key, use in chat.usage.items()} == dict(tokens)
    return Counted(saved, Counter(place for place, _ in requests), tokens)


@pytest.fixture(scope="module")
def found(world, tmp_path_factory) -> dict[str, Counted]:
    return {way: synthesize(world, tmp_path_factory.mktemp(way), **options) for way, options in WAYS.items()}


def i2t(counts: Counter) -> int:
    return sum(count for (_, direction), count in counts.items() if direction == "i2t")


def test_a_grouped_audit_takes_fewer_calls_and_tokens(found):
    """Of all I2T failures, of which each way keeps as many."""
    calls, tokens = ({way: i2t(run[what]) for way, run in found.items()} for what in (1, 2))
    (kept,) = {sum(row["direction"] == "i2t" for row in run.saved[0]) for run in found.values()}
    assert kept > 15 and calls["default"] >= 5 * kept
    assert calls["default"] > calls["grouped"] > 2 * kept
    assert tokens["default"] > tokens["grouped"] > 0


def test_a_grouped_audit_changes_no_other_request_and_no_record(world, found):
    assert found["grouped"].saved == found["default"].saved
    rows, default, grouped = world.of("i2t"), found["default"].calls, found["grouped"].calls
    assert grouped["audit", "i2t"] == len({row["q"] for row in rows}) < len(rows)
    assert all(grouped[key] == count or key == ("audit", "i2t") for key, count in default.items())


def test_a_single_false_positive_is_audited_as_ever(world, tmp_path):
    asked: list[str] = []
    synthesize(world, tmp_path, asked.append, world.of("i2t", 1), grouped_audit=True)
    assert "False-positive caption:" in asked[0] and "False-positive caption 1:" not in asked[0]


@pytest.mark.parametrize("said", ["I would rather not.", json.dumps({"gt_reason": "r", "gt_valid": True})])
def test_a_group_without_an_answer_of_use_is_audited_one_by_one(world, found, said, tmp_path):
    run = synthesize(
        world, tmp_path, lambda shown: said if "False-positive caption 1:" in shown else None, grouped_audit=True
    )
    assert run.saved == found["default"].saved
    groups = found["grouped"].calls["audit", "i2t"]
    assert run.calls["audit", "i2t"] == 2 * groups + found["default"].calls["audit", "i2t"]


def test_a_group_whose_image_is_broken_is_dropped_whole(world, tmp_path):
    broken, failures = world.with_broken_images(tmp_path / "world", "train-00003.png"), world.of("i2t")
    run = synthesize(broken, tmp_path / "out", failures=failures, grouped_audit=True)
    lost = [row["q_id"] for row in run.saved[1] if row["reason"] == "unreadable_image"]
    assert lost == ["train-00003.png"] * 4 and sum(map(len, run.saved)) == len(failures)
    assert run.calls["audit", "i2t"] == 5
