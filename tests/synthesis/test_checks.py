"""The check of selected edits: what it finds in the toy world is what is true there."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest
from datasets import Dataset
from scripted import Scripted, synthesize

from repair_hf.llm.provider import ProviderError
from repair_hf.records.dataset import load_kept
from repair_hf.synthesis.checks import check_rows
from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.editor import WorldEditor

WRONG = {"editor": WorldEditor("world/erring?missed=0.6&drift=0.3")}


def fits(row: dict) -> bool:
    """Whether an edit fits its query, by the scenes."""
    scene = renderer.read_scene(row["edit_image"] or row["q_image"])
    return not scenes.differences(captions.parse(row["q_text"] or row["edit_text"]), scene)


def share(summary: dict, direction: str) -> dict:
    (row,) = [r for r in summary["checked"] if (r["direction"], r["error_type"]) == (direction, "all")]
    return row


@pytest.fixture(scope="module")
def few(world) -> Dataset:
    """Some failures of both directions, where it does not matter how many there are."""
    return Dataset.from_list([*world.of("i2t", 8), *world.of("t2i", 4)])


@pytest.fixture(scope="module")
def checked(world, tmp_path_factory):
    """All edits of a poor editor, kept, each with what the check found: `check_edits` above their number."""
    return synthesize(world, tmp_path_factory.mktemp("checked"), check_edits=10_000, **WRONG)


def test_the_check_finds_the_edits_that_are_wrong_in_the_world(checked):
    records, _, summary = checked
    assert [row["edit_fits"] for row in records] == [fits(row) for row in records]
    counts = {way: [row["edit_fits"] for row in records if row["direction"] == way] for way in ("t2i", "i2t")}
    assert 0 < sum(counts["t2i"]) < len(counts["t2i"]) and all(counts["i2t"])
    for way, answers in counts.items():
        row = share(summary, way)
        assert (row["checked"], row["fit"]) == (len(answers), sum(answers))
        assert row["low"] < row["share"] <= row["high"]
    typed = [row for row in summary["checked"] if row["error_type"] != "all"]
    assert sum(row["checked"] for row in typed) == sum(len(row["error_types"]) for row in records)


def test_with_all_only_what_fits_is_kept(world, checked, tmp_path):
    before, _, counts = checked
    records, dropped, summary = synthesize(world, tmp_path, check_edits="all", **WRONG)
    assert all(map(fits, records)) and all(records["edit_fits"])
    assert summary["checked"] == counts["checked"]  # the share is that of the edits that were selected first
    lost = [row for row in dropped if row["reason"] == "edit_false"]
    assert lost and all(row["detail"] for row in lost) and len(records) + len(lost) == len(before)
    first = {row["record_id"] for row in before}
    assert any(row["record_id"] not in first for row in records)  # the next nearest candidate stands in


def test_an_editor_that_errs_never_has_no_wrong_edit(world, few, tmp_path):
    records, dropped, summary = synthesize(world, tmp_path, failures=few, check_edits="all")
    assert {row["share"] for row in summary["checked"]} == {1.0}
    assert len(records) and "edit_false" not in dropped["reason"][:]


def test_a_sample_is_drawn_by_seed_and_a_larger_one_holds_it(world, few, tmp_path):
    found = {}
    for count, seed in ((3, 0), (5, 0), (3, 1)):
        how = {"failures": few, "check_edits": count, "seed": seed}
        records, _, _ = synthesize(world, tmp_path / f"{count}-{seed}", **how)
        found[count, seed] = {(row["q_id"], row["fp_id"]) for row in records if row["edit_fits"] is not None}
        assert len(found[count, seed]) == count
    assert found[3, 0] < found[5, 0] and found[3, 0] != found[3, 1]


@pytest.mark.parametrize("count", [pytest.param(4, marks=pytest.mark.slow), "all"])
def test_a_run_that_stops_while_it_checks_goes_on_there(world, few, tmp_path, count):
    whole, how = Scripted(), {"failures": few, "check_edits": count, "concurrency": 1}
    expected = synthesize(world, tmp_path / "whole", whole, **how)
    with pytest.raises(ProviderError):
        synthesize(world, tmp_path / "out", Scripted(fail_after=whole.calls - 2), **how)
    stopped, again = load_kept(tmp_path / "out"), Scripted()
    records, _, summary = synthesize(world, tmp_path / "out", again, failures=few, check_edits=count)
    assert again.calls == 2 and len(stopped) == len(records) - 2 and summary["open"] == 0
    assert summary["checked"] == expected[2]["checked"]
    assert records["record_id"][:] == expected[0]["record_id"][:]


def test_an_answer_that_cannot_be_used_is_no_verdict(world, tmp_path):
    def broken(stage: str, shown: str):
        return "no JSON" if stage in ("audit", "check") and crc32(shown.encode()) % 6 == 0 else None

    _, dropped, summary = synthesize(world, tmp_path / "none", Scripted(broken), check_edits=0)
    assert summary["checked"] == []
    failures = Counter(dropped["reason"][:])["llm_unparsed"]
    _, dropped, summary = synthesize(world, tmp_path / "all", Scripted(broken), check_edits="all")
    lost = Counter(dropped["reason"][:])["llm_unparsed"] - failures
    kept = sum(counts["kept"] for counts in summary["directions"].values())
    assert lost > 0 and summary["unanswered"]["llm_unparsed"] == lost + failures
    assert sum(row["checked"] for row in summary["checked"] if row["error_type"] == "all") == kept


def test_an_editor_that_changes_almost_nothing_is_a_warning(world, encoder, tmp_path, caplog):
    class OnePixel:
        id = "one-pixel"

        def edit(self, image, instruction, seeds):
            image.putpixel((0, 0), tuple((value + 1) % 256 for value in image.getpixel((0, 0))))
            return [image for _ in seeds]

    _, _, summary = synthesize(world, tmp_path, editor=OnePixel(), failures=world.of("t2i"), check_edits=100)
    assert "the editor changed almost nothing" in caplog.text
    assert share(summary, "t2i")["fit"] == 0


@pytest.mark.parametrize(("checked", "fit", "low", "high"), [(100, 92, 0.855, 0.961), (10, 10, 0.783, 1.0)])
def test_the_interval_is_that_of_jeffreys_prior(checked, fit, low, high):
    (row,) = check_rows({("t2i", "all"): (checked, fit)})
    assert row["low"] == pytest.approx(low, abs=1e-3) and row["high"] == pytest.approx(high, abs=1e-3)
