"""The estimate against a real run on the toy world, whose oracle counts every answer."""

from __future__ import annotations

from collections import Counter

import pytest
from small_world import World

from repair_hf.llm.asker import Asker
from repair_hf.llm.ledger import Ledger
from repair_hf.synthesis.estimate import estimate_run, rehearse
from repair_hf.synthesis.options import RepairOptions
from repair_hf.synthesis.record_builder import RecordBuilder
from repair_hf.synthesis.sources import SourceImages
from repair_hf.toyworld import oracle

MODEL = "world/oracle"


@pytest.fixture(scope="module")
def world(encoder, tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("estimate") / "world"
    return World.build(folder, encoder, 12, d_i2t=3, keep=lambda row: row["direction"] == "i2t" or row["q"] % 3 == 0)


def estimated(world, *, price=(1e-6, 1e-5), image_price=0.5, **options) -> dict:
    how = RepairOptions(**{"check_edits": 0} | options)
    mined = Counter(world.failures["direction"])
    rehearsal = rehearse(RecordBuilder(world.pairs, SourceImages(world.pairs.images)), world.failures, MODEL, how)
    estimate = estimate_run(rehearsal, mined, how, price=price, image_price=image_price)
    return {(stage.stage, stage.direction): stage for stage in estimate}


def calls(estimate: dict) -> dict[str, tuple[int, ...]]:
    """Direction -> LLM calls of audit, instruct and edit, and images."""
    stages = ("audit", "instruct", "edit")
    llm_calls = {way: tuple(estimate[stage, way].llm_calls for stage in stages) for way in ("i2t", "t2i")}
    return {way: (*counts, estimate["edit", way].image_calls) for way, counts in llm_calls.items()}


def test_every_failure_counts_as_repaired(world):
    found = estimated(world)
    assert calls(found) == {"i2t": (36, 36, 108, 0), "t2i": (20, 20, 0, 60)}
    audit, images = found["audit", "i2t"], found["edit", "t2i"]
    assert audit.dollars == pytest.approx(audit.prompt_tokens * 1e-6 + audit.completion_tokens * 1e-5)
    assert images.dollars == 30.0


def test_a_small_run_is_rehearsed_whole(world):
    builder = RecordBuilder(world.pairs, SourceImages(world.pairs.images))
    rehearsal = rehearse(builder, world.failures, MODEL, RepairOptions())
    assert rehearsal.failures == Counter(world.failures["direction"])


@pytest.mark.parametrize(("count", "checks"), [(14, (9, 5)), (1000, (36, 20)), ("all", (108, 60))])
def test_checks_are_in_the_price(world, count, checks):
    found = estimated(world, check_edits=count)
    for way, calls_of_way in zip(("i2t", "t2i"), checks, strict=True):
        check, audit = found["check", way], found["audit", way]
        assert check.llm_calls == calls_of_way
        assert check.prompt_tokens < audit.prompt_tokens * calls_of_way / audit.llm_calls  # without the annotation
        assert check.dollars > 0


def test_what_is_not_audited_is_not_counted_as_audited(world):
    found = estimated(world, audited=False)
    assert calls(found) == {"i2t": (0, 36, 108, 0), "t2i": (0, 20, 0, 60)}
    assert found["audit", "i2t"].dollars == found["audit", "t2i"].dollars == 0.0


def test_tokens_come_near_to_what_a_run_is_billed(world, tmp_path):
    found = estimated(world)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        asker = Asker(MODEL, ledger, provider=oracle.provider())
        world.synthesize(asker, tmp_path, world.of("i2t"))
    for place, use in asker.usage.items():  # the oracle counts four letters as a token
        per_call = found[place].prompt_tokens / found[place].llm_calls
        assert per_call == pytest.approx(use.prompt_tokens / use.calls, rel=0.25), place


def test_an_unknown_price_is_no_price(world):
    found = estimated(world, price=None, image_price=None)
    assert {stage.dollars for stage in found.values()} == {None}
    found = estimated(world, price=None, image_price=0.0)
    assert found["edit", "t2i"].dollars == 0.0 and found["edit", "i2t"].dollars is None


def test_one_direction_alone(world):
    found = estimated(world._replace(failures=world.of("i2t")))
    assert (found["audit", "t2i"].llm_calls, found["edit", "t2i"].image_calls) == (0, 0)


def test_failures_whose_images_are_broken_are_not_sampled(world, tmp_path):
    broken = world.with_broken_images(tmp_path / "world", "train-00003.png")
    assert calls(estimated(broken)) == calls(estimated(world))
