"""The estimate against a real run on the toy world, whose oracle counts every answer."""

from __future__ import annotations

import pytest

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.client import ChatModel
from repair_hf.llm.cost import Usage
from repair_hf.llm.journal import Journal
from repair_hf.mining.false_positives import mine_false_positives
from repair_hf.pairs.dataset import load_pairs
from repair_hf.synthesis.estimate import estimate_run
from repair_hf.synthesis.options import SynthesisOptions
from repair_hf.synthesis.pipeline import Synthesizer
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.editor import WorldEditor

MODEL = "world/oracle"


@pytest.fixture(scope="module")
def mined(clip_folder, tmp_path_factory):
    world = build_world(tmp_path_factory.mktemp("world") / "world", splits={"train": 12, "validation": 1, "test": 1})
    pairs, encoder = load_pairs(world), DualEncoder.from_pretrained(clip_folder)
    failures = mine_false_positives(*encoder.embed_pairs(pairs), pairs.caption_image, d_i2t=3)
    rows = failures.filter(lambda row: row["direction"] == "i2t" or row["q"] % 3 == 0)
    return pairs, encoder, rows


def estimated(mined, *, measured=None, price=(1e-6, 1e-5), image_price=0.5, **options) -> dict:
    pairs, _, failures = mined
    estimate = estimate_run(
        pairs,
        failures.to_list(),
        MODEL,
        SynthesisOptions(**options),
        price=price,
        image_price=image_price,
        measured=measured,
    )
    return {(stage.stage, stage.direction): stage for stage in estimate.stages}


def test_without_a_measurement_every_failure_is_repaired(mined):
    found = estimated(mined)
    assert {place: (stage.llm_calls, stage.image_calls) for place, stage in found.items()} == {
        ("audit", "i2t"): (36, 0),
        ("instruct", "i2t"): (36, 0),
        ("edit", "i2t"): (108, 0),
        ("audit", "t2i"): (20, 0),
        ("instruct", "t2i"): (20, 0),
        ("edit", "t2i"): (0, 60),
    }
    audit, images = found["audit", "i2t"], found["edit", "t2i"]
    assert audit.dollars == pytest.approx(audit.prompt_tokens * 1e-6 + audit.completion_tokens * 1e-5)
    assert images.dollars == 30.0


def test_options_that_ask_less_are_counted_as_less(mined):
    default = estimated(mined)
    grouped = estimated(mined, grouped_audit=True)["audit", "i2t"]
    assert grouped.llm_calls == 12 and grouped.prompt_tokens < 0.5 * default["audit", "i2t"].prompt_tokens
    together = estimated(mined, candidates_in_one_request=True)["edit", "i2t"]
    assert together.llm_calls == 36 and together.prompt_tokens == pytest.approx(
        default["edit", "i2t"].prompt_tokens / 3
    )
    assert together.completion_tokens == default["edit", "i2t"].completion_tokens
    shown = estimated(mined, attach_image=True)["edit", "i2t"]
    assert shown.prompt_tokens == pytest.approx(default["edit", "i2t"].prompt_tokens + 108 * 258, rel=0.02)


@pytest.mark.parametrize("grouped", [False, True])
def test_what_is_not_audited_is_not_counted_as_audited(grouped, mined):
    """Nor does a share of failures that an audit in the same folder has passed count."""
    usual = {("audit", "i2t"): 20_000, ("instruct", "i2t"): 10_000, ("audit", "t2i"): 40, ("instruct", "t2i"): 20}
    measured = {place: Usage(calls=calls, prompt_tokens=100 * calls) for place, calls in usual.items()}
    found = estimated(mined, audited=False, grouped_audit=grouped, measured=measured)
    assert {place: (stage.llm_calls, stage.image_calls) for place, stage in found.items()} == {
        ("audit", "i2t"): (0, 0),
        ("instruct", "i2t"): (36, 0),
        ("edit", "i2t"): (108, 0),
        ("audit", "t2i"): (0, 0),
        ("instruct", "t2i"): (20, 0),
        ("edit", "t2i"): (0, 60),
    }
    assert found["audit", "i2t"].dollars == found["audit", "t2i"].dollars == 0.0
    assert found["instruct", "i2t"].prompt_tokens == 3600


def test_tokens_come_near_to_what_a_run_is_billed(mined, tmp_path):
    pairs, encoder, failures = mined
    failures, found = failures.filter(lambda row: row["direction"] == "i2t"), estimated(mined)
    with Journal(tmp_path / "journal.jsonl") as journal:
        chat = ChatModel(MODEL, journal=journal, provider=oracle.provider())
        Synthesizer(pairs, encoder, chat, WorldEditor()).run(failures, tmp_path)
    for place, use in chat.usage.items():
        per_call = found[place].prompt_tokens / found[place].llm_calls
        assert per_call == pytest.approx(use.prompt_tokens / use.calls, rel=0.25), (
            place
        )  # the oracle counts four letters as a token


def test_a_measurement_takes_the_place_of_the_count(mined):
    measured = {
        ("audit", "i2t"): Usage(calls=30, prompt_tokens=30_000, completion_tokens=3_000),
        ("instruct", "i2t"): Usage(calls=10, prompt_tokens=20_000, completion_tokens=100),
        ("audit", "t2i"): Usage(calls=3, prompt_tokens=99_999, completion_tokens=99_999),  # too few to say anything
    }
    measured["instruct", "i2t"].calls = 20
    found, counted = estimated(mined, measured=measured), estimated(mined)
    audit, instruct, edit = (found[stage, "i2t"] for stage in ("audit", "instruct", "edit"))
    assert (audit.prompt_tokens, audit.completion_tokens) == (36_000, 3_600)
    assert (instruct.llm_calls, instruct.prompt_tokens) == (24, 24_000)  # two of three pass
    assert edit.llm_calls == 72
    assert found["audit", "t2i"] == counted["audit", "t2i"]


def test_an_unknown_price_is_no_price(mined):
    found = estimated(mined, price=None, image_price=None)
    assert {stage.dollars for stage in found.values()} == {None}
    found = estimated(mined, price=None, image_price=0.0)
    assert found["edit", "t2i"].dollars == 0.0 and found["edit", "i2t"].dollars is None


def test_one_direction_alone(mined):
    pairs, encoder, failures = mined
    measured = {(stage, "t2i"): Usage(calls=30, prompt_tokens=30_000) for stage in ("audit", "instruct")}
    one = pairs, encoder, failures.filter(lambda row: row["direction"] == "i2t")
    found = estimated(one, measured=measured)
    assert (found["audit", "t2i"].llm_calls, found["edit", "t2i"].image_calls) == (0, 0)
