"""The estimate against a real run on the toy world, whose oracle counts every answer."""

from __future__ import annotations

import pytest
from small_world import World

from repair_hf.llm.client import ChatModel
from repair_hf.llm.cost import Usage
from repair_hf.llm.ledger import Ledger
from repair_hf.synthesis.estimate import estimate_run
from repair_hf.synthesis.options import SynthesisOptions
from repair_hf.toyworld import oracle

MODEL = "world/oracle"


@pytest.fixture(scope="module")
def world(encoder, tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("estimate") / "world"
    return World.build(folder, encoder, 12, d_i2t=3, keep=lambda row: row["direction"] == "i2t" or row["q"] % 3 == 0)


def estimated(world, *, measured=None, price=(1e-6, 1e-5), image_price=0.5, **options) -> dict:
    prices = {"price": price, "image_price": image_price}
    failures, how = world.failures.to_list(), SynthesisOptions(**options)
    estimate = estimate_run(world.pairs, failures, MODEL, how, measured=measured, **prices)
    return {(stage.stage, stage.direction): stage for stage in estimate.stages}


def calls(estimate: dict) -> dict[str, tuple[int, ...]]:
    """Direction -> LLM calls of audit, instruct and edit, and images."""
    stages = ("audit", "instruct", "edit")
    llm_calls = {way: tuple(estimate[stage, way].llm_calls for stage in stages) for way in ("i2t", "t2i")}
    return {way: (*counts, estimate["edit", way].image_calls) for way, counts in llm_calls.items()}


def test_without_a_measurement_every_failure_is_repaired(world):
    found = estimated(world)
    assert calls(found) == {"i2t": (36, 36, 108, 0), "t2i": (20, 20, 0, 60)}
    audit, images = found["audit", "i2t"], found["edit", "t2i"]
    assert audit.dollars == pytest.approx(audit.prompt_tokens * 1e-6 + audit.completion_tokens * 1e-5)
    assert images.dollars == 30.0


def test_options_that_ask_less_are_counted_as_less(world):
    default = estimated(world)
    grouped = estimated(world, grouped_audit=True)["audit", "i2t"]
    assert grouped.llm_calls == 12 and grouped.prompt_tokens < 0.5 * default["audit", "i2t"].prompt_tokens
    edit = default["edit", "i2t"]
    shown = estimated(world, attach_image=True)["edit", "i2t"]
    assert shown.prompt_tokens == pytest.approx(edit.prompt_tokens + 108 * 258, rel=0.02)


@pytest.mark.parametrize("grouped", [False, True])
def test_what_is_not_audited_is_not_counted_as_audited(grouped, world):
    """Nor does a share of failures that an audit in the same folder has passed count."""
    usual = {("audit", "i2t"): 20_000, ("instruct", "i2t"): 10_000, ("audit", "t2i"): 40, ("instruct", "t2i"): 20}
    measured = {place: Usage(calls=calls, prompt_tokens=100 * calls) for place, calls in usual.items()}
    found = estimated(world, audited=False, grouped_audit=grouped, measured=measured)
    assert calls(found) == {"i2t": (0, 36, 108, 0), "t2i": (0, 20, 0, 60)}
    assert found["audit", "i2t"].dollars == found["audit", "t2i"].dollars == 0.0
    assert found["instruct", "i2t"].prompt_tokens == 3600


def test_tokens_come_near_to_what_a_run_is_billed(world, tmp_path):
    found = estimated(world)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        chat = ChatModel(MODEL, ledger=ledger, provider=oracle.provider())
        world.synthesize(chat, tmp_path, world.of("i2t"))
    for place, use in chat.usage.items():  # the oracle counts four letters as a token
        per_call = found[place].prompt_tokens / found[place].llm_calls
        assert per_call == pytest.approx(use.prompt_tokens / use.calls, rel=0.25), place


def test_a_measurement_takes_the_place_of_the_count(world):
    measured = {
        ("audit", "i2t"): Usage(calls=30, prompt_tokens=30_000, completion_tokens=3_000),
        ("instruct", "i2t"): Usage(calls=20, prompt_tokens=20_000, completion_tokens=100),
        ("audit", "t2i"): Usage(calls=3, prompt_tokens=99_999, completion_tokens=99_999),  # too few to say anything
    }
    found, counted = estimated(world, measured=measured), estimated(world)
    audit, instruct, edit = (found[stage, "i2t"] for stage in ("audit", "instruct", "edit"))
    assert (audit.prompt_tokens, audit.completion_tokens) == (36_000, 3_600)
    assert (instruct.llm_calls, instruct.prompt_tokens) == (24, 24_000)  # two of three pass
    assert edit.llm_calls == 72
    assert found["audit", "t2i"] == counted["audit", "t2i"]


def test_an_unknown_price_is_no_price(world):
    found = estimated(world, price=None, image_price=None)
    assert {stage.dollars for stage in found.values()} == {None}
    found = estimated(world, price=None, image_price=0.0)
    assert found["edit", "t2i"].dollars == 0.0 and found["edit", "i2t"].dollars is None


def test_one_direction_alone(world):
    measured = {(stage, "t2i"): Usage(calls=30, prompt_tokens=30_000) for stage in ("audit", "instruct")}
    found = estimated(world._replace(failures=world.of("i2t")), measured=measured)
    assert (found["audit", "t2i"].llm_calls, found["edit", "t2i"].image_calls) == (0, 0)


def test_failures_whose_images_are_broken_are_not_sampled(world, tmp_path):
    broken = world.with_broken_images(tmp_path / "world", "train-00003.png")
    assert calls(estimated(broken)) == calls(estimated(world))
