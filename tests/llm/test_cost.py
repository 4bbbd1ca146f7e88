import asyncio
from contextlib import suppress

import pytest
from ledgers import ledger_in, pay

from repair_hf.llm.cost import (
    PAPER_TOKENS,
    Usage,
    estimate_cost,
    paid_in,
    price_per_image,
    price_per_token,
    token_price,
)
from repair_hf.llm.ledger import Reply, Topic
from repair_hf.llm.loading import load_litellm
from repair_hf.runtime.options import UserError

FLASH = "gemini/gemini-2.5-flash"


@pytest.mark.parametrize(
    ("dataset", "tokens_in", "tokens_out", "dollars", "full_round"),
    [("flickr30k", 3_630_200, 314_700, 1.88, 98), ("coco30k", 3_069_000, 241_700, 1.53, 80)],
)
def test_paper_prices(dataset, tokens_in, tokens_out, dollars, full_round):
    cent = pytest.approx(dollars, abs=0.0056)  # half a cent, and what the paper's counts were rounded by
    assert token_price(FLASH, tokens_in, tokens_out) == cent
    sample = estimate_cost(1000, 1000, model=FLASH, tokens_per_triplet=PAPER_TOKENS[dataset])
    assert sample.prompt_tokens == pytest.approx(tokens_in) and sample.completion_tokens == pytest.approx(tokens_out)
    assert sample.dollars == cent
    whole = estimate_cost(47_000, 60_000, model=FLASH, tokens_per_triplet=PAPER_TOKENS[dataset])
    assert whole.dollars == pytest.approx(full_round, abs=0.6)


@pytest.mark.parametrize(
    ("i2t", "t2i", "llm_calls", "image_calls"),
    [(47_000, 60_000, 355_000, 180_000), (47_000, 0, 235_000, 0), (0, 60_000, 120_000, 180_000)],
)
def test_paper_counts_retained_samples(i2t, t2i, llm_calls, image_calls):
    estimate = estimate_cost(i2t, t2i)
    assert (estimate.llm_calls, estimate.image_calls) == (llm_calls, image_calls)


def test_rejects_pay_for_their_audit_only():
    estimate = estimate_cost(145_000, 145_000, kept_i2t=47_000, kept_t2i=60_000)
    calls = {(stage.stage, stage.direction): stage.llm_calls + stage.image_calls for stage in estimate.stages}
    assert calls == {
        ("audit", "i2t"): 145_000,
        ("audit", "t2i"): 145_000,
        ("instruct", "i2t"): 47_000,
        ("instruct", "t2i"): 60_000,
        ("edit", "i2t"): 141_000,
        ("edit", "t2i"): 180_000,
    }
    assert estimate.llm_calls == 538_000


UNLISTED = ("openrouter/google/gemini-2.5-flash", "huggingface/me/some-model", "dashscope/qwen3-vl-plus", "openai/my")


@pytest.mark.filterwarnings("ignore::UserWarning")  # pydantic's, of LiteLLM's classes
@pytest.mark.parametrize("model", [*UNLISTED, "gemini/gemma-3-27b-it", "ollama/llava"])
def test_a_model_whose_price_is_not_listed_is_not_taken_to_be_free(model):
    assert price_per_token(model) == (None if model in UNLISTED else (0.0, 0.0))


def test_fewer_candidates_cost_fewer_edits():
    one, three = (estimate_cost(1000, 0, candidates=m, model=FLASH) for m in (1, 3))
    assert (one.llm_calls, three.llm_calls) == (3000, 5000)
    saved = token_price(FLASH, 597_900, 45_900) * 2 / 3
    assert three.dollars - one.dollars == pytest.approx(saved)


def test_price_is_linear_in_long_runs():
    model = "gemini/gemini-2.5-pro"  # single requests over 200,000 tokens cost more; a run has none
    assert token_price(model, 1e6, 0) == pytest.approx(1000 * token_price(model, 1e3, 0))


def test_unknown_price_and_impossible_counts():
    with pytest.raises(UserError, match="No list price is known for 'openai/my-local-model'"):
        token_price("openai/my-local-model", 1, 1)
    assert estimate_cost(10, 10, model="openai/my-local-model").dollars is None
    assert estimate_cost(10, 10).dollars is None
    with pytest.raises(UserError, match="got 11 of 10"):
        estimate_cost(10, 10, kept_i2t=11)


def test_usage_keeps_paid_and_replayed_apart():
    usage = Usage()
    priced, unpriced = (Reply("", "stop", 100, 10, dollars, "m") for dollars in (0.25, None))
    for reply in (priced, unpriced):
        usage.add(reply, replayed=False)
        usage.add(reply, replayed=True)
    assert usage == Usage(
        calls=2, replayed=2, prompt_tokens=200, completion_tokens=20, dollars=0.25, unpriced=1, dollars_saved=0.25
    )


def test_batches_cost_what_the_model_lists_or_half(monkeypatch):
    full, half = price_per_token(FLASH), price_per_token(FLASH, batch=True)
    assert half == pytest.approx((full[0] / 2, full[1] / 2))
    listed = load_litellm().model_cost
    monkeypatch.setitem(listed, "openai/listed", listed["gpt-4o-mini"] | {"input_cost_per_token_batches": 4e-8})
    assert price_per_token("openai/listed", batch=True)[0] == 4e-8
    assert price_per_token("openai/my-local-model", batch=True) is None


@pytest.mark.parametrize(
    ("model", "dollars"),
    [("gemini/gemini-2.5-flash-image", 0.039), ("openai/gpt-image-1", 0.042), ("openai/my-editor", None)],
)
def test_price_of_an_image(model, dollars):
    assert price_per_image(model) == (dollars and pytest.approx(dollars, abs=0.001))


def test_all_runs_of_a_folder_are_paid_for(tmp_path):
    """Answers, an image, a lost one and one that is on its way; another run of the ledger does not count."""
    for key, direction in (("a", "i2t"), ("b", "i2t")):
        pay(tmp_path, key, 0.25, direction=direction)
    pay(tmp_path, "c", 0.25, stage="edit", direction="t2i")
    pay(tmp_path, "d", run="another")
    with ledger_in(tmp_path) as ledger, suppress(TimeoutError):
        asyncio.run(lose(ledger))
    assert paid_in(tmp_path) == {
        ("audit", "i2t"): Usage(2, 0, 20, 4, 1.0),
        ("edit", "t2i"): Usage(1, 0, 10, 2, 0.25),
    }
    assert paid_in(tmp_path / "another")["audit", "i2t"].calls == 1
    assert paid_in(tmp_path / "nowhere") == {}


async def lose(ledger) -> None:
    async with ledger.pay("e", lambda: 0.5, Topic("audit", "i2t", "m")):
        raise TimeoutError
