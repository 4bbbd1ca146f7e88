"""The synthesis as a whole, on a small toy world with its oracle."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter

import pytest
from datasets import Dataset
from datasets.table import embed_table_storage
from scripted import Scripted, shown_in, synthesize
from small_world import World

from repair_hf.llm.keys import ImageURL
from repair_hf.llm.prompts import SHIPPED
from repair_hf.llm.provider import ProviderError
from repair_hf.records.dataset import summarize
from repair_hf.synthesis.sources import SourceImages
from repair_hf.toyworld import captions as world_captions
from repair_hf.toyworld import renderer, scenes


def rows(dataset: Dataset) -> list[dict]:
    """Comparable rows: images as bytes, whatever folder they lie in."""
    return embed_table_storage(dataset.with_format("arrow")[:].cast(dataset.features.arrow_schema)).to_pylist()


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    """An undisturbed run: rows of records and of dropped failures, what was asked, and its folder."""
    asked, folder = Scripted(), tmp_path_factory.mktemp("whole")
    records, dropped, _ = synthesize(world, folder, asked)
    return records, dropped, asked, folder


@pytest.fixture
def assert_same(whole):
    """Compares the result of a run with that of the undisturbed one."""

    def compare(run: tuple) -> None:
        assert rows(run[0]) == rows(whole[0]) and rows(run[1]) == rows(whole[1])

    return compare


def test_every_failure_becomes_a_record_or_is_dropped_with_a_reason(whole, world):
    records, dropped, *_ = whole
    counts = summarize(records, dropped)
    assert {way: table["mined"] for way, table in counts.items()} == Counter(world.failures["direction"])
    assert all(counts[way]["kept"] > 5 for way in counts)
    captions, images = world.pairs.captions["caption_id"][:], world.pairs.images["image_id"][:]
    ids = {"t2i": (captions, images), "i2t": (images, captions)}
    mined = [(way := row["direction"], ids[way][0][row["q"]], ids[way][1][row["fp"]]) for row in world.failures]
    assert len(set(mined)) == len(mined)
    for saved in (records, dropped):
        keys = list(zip(saved["direction"], saved["q_id"], saved["fp_id"], strict=True))
        assert keys == [key for key in mined if key in set(keys)]  # in the order of the failures


def test_a_record_holds_what_its_ids_name(whole, world):
    pairs = world.pairs
    captions = {row["caption_id"]: row for row in pairs.captions}
    images = {row["image_id"]: at for at, row in enumerate(pairs.images)}
    mined = {(row["q"], pairs.captions["caption_id"][row["fp"]]): row for row in world.of("i2t")}
    for row in whole[0]:
        if row["direction"] == "t2i":
            assert row["q_text"] == captions[row["q_id"]]["caption"]
            assert images[row["gt_id"]] == captions[row["q_id"]]["image_index"]
            for role in ("gt", "fp"):
                assert row[f"{role}_image"].tobytes() == pairs.images[images[row[f"{role}_id"]]]["image"].tobytes()
            assert row["edit_text"] is row["q_image"] is row["fp_text"] is None and row["error_types"]
        else:
            assert row["q_image"].tobytes() == pairs.images[images[row["q_id"]]]["image"].tobytes()
            assert row["gt_id"] == f"{row['q_id']}#0" and row["gt_text"] == captions[row["gt_id"]]["caption"]
            assert row["fp_text"] == captions[row["fp_id"]]["caption"] and row["error_types"]
            for name in ("fp_score", "fp_rank", "gt_score", "gt_rank"):
                assert row[name] == pytest.approx(mined[images[row["q_id"]], row["fp_id"]][name])
            assert row["edit_image"] is row["gt_image"] is row["q_text"] is None
        assert (row["llm"], row["editor"]) == ("world/oracle", "world")
        assert row["retriever"].startswith("clip") and row["retriever"].endswith(f"@{world.encoder.digest}")
        assert (row["round"], row["seed"], row["prompt_digest"]) == (1, 0, SHIPPED.digest())
        similarities = row["candidate_similarities"]
        best = max(score for score in similarities if score is not None)
        assert row["edit_similarity"] == similarities[row["candidate"]] == best
        assert row["gt_reason"] and row["fp_reason"] and row["edit_instruction"]
        scene = renderer.read_scene(row["edit_image"] or row["q_image"])  # the edit fits its query
        assert not scenes.differences(world_captions.parse(row["q_text"] or row["edit_text"]), scene)


def test_a_run_in_a_notebook_with_many_requests_at_once_is_the_same_and_a_second_one_makes_nothing(
    world, assert_same, tmp_path
):
    async def notebook():  # its own event loop is running
        return synthesize(world, tmp_path, concurrency=256)

    assert_same(asyncio.run(notebook()))
    asked = Scripted()
    again = synthesize(world, tmp_path, asked)
    assert asked.requests == [] and again[2]["images"]["made"] == 0 < again[2]["images"]["reused"]
    assert_same(again)


def test_as_many_requests_are_sent_at_once_as_allowed(encoder, tmp_path):
    world = World.build(tmp_path / "world", encoder, 12, d_i2t=16, keep=lambda row: row["direction"] == "i2t")
    rejected = {"gt_reason": "", "gt_valid": False, "fp_reason": "", "fp_too_similar": False}  # and nothing more asked
    wanted, is_reached = 160, asyncio.Event()

    class Crowded(Scripted):
        async def __call__(self, request):
            self.now = getattr(self, "now", 0) + 1
            if self.now == wanted:
                is_reached.set()
            await asyncio.wait_for(is_reached.wait(), 100)
            return await super().__call__(request)

    assert len(world.failures) > wanted
    synthesize(world, tmp_path / "out", Crowded(lambda stage, shown: rejected), concurrency=wanted)


def test_an_upgrade_of_what_encodes_requests_pays_for_nothing_again(world, whole, assert_same, tmp_path, monkeypatch):
    """Images that are not encoded at all, another table of token limits and another generator of schemas."""
    shutil.copytree(whole[3], tmp_path / "run")
    url = SourceImages._url
    monkeypatch.setattr(
        SourceImages, "_url", lambda self, row: ImageURL(old := str(url(self, row)), lambda: f"{old}=")
    )
    monkeypatch.setattr("repair_hf.llm.asker.response_format", lambda schema: {"type": "json_schema", "of": "later"})
    again = Scripted()
    assert_same(synthesize(world, tmp_path / "run", again))
    assert again.calls == 0


def test_a_run_that_broke_continues_where_it_was(world, whole, assert_same, tmp_path):
    requests = []
    for fail_after in (0, 25, 50, 1):
        asked = Scripted(fail_after=fail_after)
        with pytest.raises(ProviderError, match="out of credit"):
            synthesize(world, tmp_path, asked)
        requests += asked.requests
    last = Scripted()
    assert_same(synthesize(world, tmp_path, last))
    assert len(requests) > 70 and len(requests) + len(last.requests) == len(whole[2].requests)


def test_without_audit_every_failure_is_repaired(world, whole, tmp_path):
    asked = Scripted()
    records, dropped, _ = synthesize(world, tmp_path, asked, audited=False)
    assert asked.requests and not any("Ground-truth" in shown_in(request) for request in asked.requests)
    assert set(records["gt_reason"]) == {None} and set(dropped["reason"]) <= {"no_op"}
    kept, kept_now = ({(row["direction"], row["q_id"], row["fp_id"]) for row in some} for some in (whole[0], records))
    audited_away = [row for row in whole[1] if row["reason"] in ("gt_invalid", "fp_too_similar")]
    assert kept <= kept_now and len(records) + len(dropped) == len(world.failures)
    assert {(row["q_id"], row["fp_id"]) for row in dropped} <= {(row["q_id"], row["fp_id"]) for row in audited_away}


def test_the_first_candidate_instead_of_the_nearest(world, whole, tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes((whole[3] / "ledger.sqlite").read_bytes())
    asked = Scripted()
    records, _, _ = synthesize(world, tmp_path, asked, select="first")
    assert not asked.requests  # the candidates are the same
    places = Counter()
    for first, nearest in zip(records, whole[0], strict=True):
        scores = nearest["candidate_similarities"]
        assert first["candidate_similarities"] == scores and first["q_id"] == nearest["q_id"]
        assert first["candidate"] == next(place for place, score in enumerate(scores) if score is not None)
        places[nearest["candidate"]] += 1
    assert len(places) > 1  # else the two would be one


def test_identical_work_is_done_once(world, whole, tmp_path):
    asked = Scripted()
    twice = Dataset.from_list([row for row in world.failures for _ in range(2)])
    records, _, summary = synthesize(world, tmp_path, asked, failures=twice)
    assert len(asked.requests) == len(whole[2].requests) and len(records) == 2 * len(whole[0])
    assert summary["images"]["made"] == len(list(tmp_path.rglob("candidates/*/*.png")))


def test_the_seed_decides_the_draws(world, whole, tmp_path):
    records, *_ = synthesize(world, tmp_path, seed=1)
    edits, others = ([row["edit_text"] for row in rows(some) if row["edit_text"]] for some in (records, whole[0]))
    assert len(edits) == len(others) and edits != others
