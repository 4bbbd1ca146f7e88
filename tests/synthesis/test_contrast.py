"""Contrast sets of the toy world, held against its scenes; resume, ceilings and drops over real runs."""

import json
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from chat_server import ChatServer, Response
from datasets import load_dataset
from killing import Held, start

from repair_hf import contrast_set
from repair_hf.cli.main import main
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.contrast_items import KINDS, draw_items
from repair_hf.toyworld import captions, oracle, renderer, scenes
from repair_hf.toyworld.corpus import build_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return build_world(tmp_path_factory.mktemp("contrast") / "world", splits={"train": 4, "test": 24}, domain="target")


@pytest.fixture(scope="module")
def pairs(world):
    return load_pairs(world, split="test")


EXACT = {"llm": "world/oracle", "editor": "world"}


@pytest.fixture(scope="module")
def captions_alone(pairs, tmp_path_factory):
    """A set that is made without an editor."""
    folder = tmp_path_factory.mktemp("captions") / "contrast"
    return contrast_set(pairs, llm="world/oracle", output=folder), folder


@pytest.fixture(scope="module")
def made(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "contrast"
    return contrast_set(pairs, **EXACT, output=folder), folder


def test_each_caption_is_true_of_its_own_picture_alone(made, pairs):
    rows, _ = made
    assert len(rows) >= 21 and len(set(rows["image_id"])) == len(rows)
    for row in rows:
        shown = [renderer.read_scene(row[f"image_{side}"]) for side in (0, 1)]
        said = [captions.parse(row[f"caption_{side}"]) for side in (0, 1)]
        true = [[scenes.holds(facts, scene) for facts in said] for scene in shown]
        assert true == [[True, False], [False, True]], row


def test_the_kind_names_what_differs(made):
    seen = set()
    for row in made[0]:
        before, after = (row[f"caption_{side}"].lower().rstrip(".").split() for side in (0, 1))
        gone = set(before) ^ set(after)
        seen.add(row["kind"])
        if row["kind"] == "Count":
            assert gone & {"two", "three", "pair", "trio"}
        if row["kind"] == "Action":
            words = {word for table in (captions.ACTION_BEFORE, captions.ACTION_AFTER) for each in table.values()
                     for word in " ".join(each).split()}  # fmt: skip
            assert gone <= words
    assert {"Object", "Attribute", "Action"} <= seen <= set(KINDS)


def test_without_an_editor_rows_have_one_picture(captions_alone):
    rows, _ = captions_alone
    assert set(rows.column_names) == {"id", "kind", "image_id", "image", "caption", "negative_caption"}
    for row in rows:
        scene = renderer.read_scene(row["image"])
        assert scenes.holds(captions.parse(row["caption"]), scene)
        assert not scenes.holds(captions.parse(row["negative_caption"]), scene)


def test_every_item_is_kept_or_dropped_with_its_reason(pairs, tmp_path):
    out = tmp_path / "out"
    contrast_set(pairs, llm="world/oracle?missed=0.5", editor="world?missed=0.5", output=out)
    summary = json.loads((out / "summary.json").read_text())
    left = pq.read_table(out / "dropped.parquet").to_pylist()
    assert summary["kept"] + len(left) == summary["items"] == 24 and not summary["open"]
    # a missed change of the caption leaves it true; a missed edit leaves the changed caption false
    assert {"change_true", "edit_false"} <= {row["reason"] for row in left} and all(row["detail"] for row in left)
    rows = load_dataset(str(out), split="test")
    assert not set(rows["image_id"]) & {row["image_id"] for row in left}


def test_more_items_keep_the_first_ones_and_pay_for_the_others_alone(pairs, tmp_path):
    out = tmp_path / "out"
    few = contrast_set(pairs, **EXACT, output=out, max_items=5)
    paid = json.loads((out / "summary.json").read_text())["paid"]
    more = contrast_set(pairs, **EXACT, output=out, max_items=10)
    assert set(few["id"]) < set(more["id"])
    later = json.loads((out / "summary.json").read_text())["paid"]
    whole = tmp_path / "whole"
    assert set(contrast_set(pairs, **EXACT, output=whole, max_items=10)["id"]) == set(more["id"])
    expected = json.loads((whole / "summary.json").read_text())["paid"]
    assert sum(one["calls"] for one in paid) < sum(one["calls"] for one in later)
    assert {one["stage"]: one["calls"] for one in later} == {one["stage"]: one["calls"] for one in expected}
    with pytest.raises(UserError, match="`max_items` 3 draws fewer"):
        contrast_set(pairs, **EXACT, output=out, max_items=3)


def test_a_ceiling_stops_and_the_same_call_goes_on(pairs, captions_alone, tmp_path):
    out, (expected, whole) = tmp_path / "out", captions_alone
    with pytest.raises(RunStopped, match="max_calls|ceiling"):
        contrast_set(pairs, llm="world/oracle", output=out, max_calls=27)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["open"] > 0 and sum(one["calls"] for one in summary["paid"]) <= 27
    resumed = contrast_set(pairs, llm="world/oracle", output=out, max_calls=1000)
    assert resumed["id"][:] == expected["id"][:]
    paid = [json.loads((folder / "summary.json").read_text())["paid"] for folder in (out, whole)]
    assert sum(one["calls"] for one in paid[0]) == sum(one["calls"] for one in paid[1])
    assert len(list((out / "data").glob("*.parquet"))) == 1


def test_the_command_estimates_and_says_when_nothing_is_done(world, tmp_path, capsys):
    out = tmp_path / "out"
    words = f"contrast --pairs {world} --llm world/oracle --editor world --max-items 3 --output {out}".split()
    assert main([*words, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "3 items, at most" in planned and not out.exists()
    assert main(words) == 0
    assert "next: repair-hf evaluate BASE PLAIN REPAIRED --pairs" in capsys.readouterr().out
    stamp = Path(out / "summary.json").stat().st_mtime_ns
    assert main(words) == 0
    assert "already finished, nothing was done" in capsys.readouterr().out
    assert Path(out / "summary.json").stat().st_mtime_ns == stamp


def test_a_larger_draw_holds_a_smaller_one(pairs):
    few, many = draw_items(pairs, 7, 3), draw_items(pairs, 20, 3)
    assert few == many[:7] and len(draw_items(pairs, 500, 3)) == 24
    assert all(item.caption in pairs.captions_of(item.image) for item in many)
    assert draw_items(pairs, 20, 4) != many


def test_a_rejected_question_is_asked_again_by_the_next_run_and_dropped_until_then(pairs, tmp_path, monkeypatch):
    """The provider rejects each third question for a while, as during a change of its rules."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    out, asked, rejects = tmp_path / "out", [], True

    def reply(request):
        asked.append(request)
        if rejects and len(asked) % 3 == 0:
            return Response(400, {"error": {"message": "not now"}})
        return oracle.answer_to(request)

    with ChatServer(reply) as server:
        how = {"llm": "openai/oracle", "llm_base_url": server.base_url, "output": out, "max_items": 12}
        how |= {"max_error_rate": 1.0}
        few = contrast_set(pairs, **how)
        summary = json.loads((out / "summary.json").read_text())
        assert summary["dropped"]["llm_failed"] == summary["unanswered"]["llm_failed"] > 2
        left = pq.read_table(out / "dropped.parquet").to_pylist()
        assert all("not now" in row["detail"] for row in left if row["reason"] == "llm_failed")
        rejects, before = False, len(asked)
        rows = contrast_set(pairs, **how)
        assert len(rows) > len(few) and before < len(asked) < 2 * before
        count = len(asked)
        assert len(contrast_set(pairs, **how)) == len(rows) and len(asked) == count
    assert set(rows["id"]) == set(contrast_set(pairs, llm="world/oracle", output=tmp_path / "x", max_items=12)["id"])


@pytest.mark.slow
def test_a_killed_command_goes_on_and_pays_for_nothing_again(world, tmp_path):
    """The chat server counts what it answered: the kill may cost the requests in flight, and nothing else."""
    held, cut, whole = Held(oracle.answer_to), tmp_path / "cut", tmp_path / "whole"

    def kept(out: Path) -> int:
        return json.loads((out / "summary.json").read_text())["kept"]

    with ChatServer(held) as server:
        words = f"contrast --pairs {world} --editor world --concurrency 2 --llm openai/oracle".split()
        command = [*words, "--llm-base-url", server.base_url, "--output"]
        assert held.kill(partial(start, [*command, str(cut)], 1, tmp_path), 30)
        assert not (cut / "summary.json").exists()
        assert main([*command, str(cut)]) == 0
        resumed = held.came
        assert main([*command, str(whole)]) == 0
    asked = held.came - resumed
    assert asked <= resumed <= asked + 2 and kept(cut) == kept(whole)
