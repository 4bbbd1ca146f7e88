import pytest

from repair_hf.llm.cost import (
    PAPER_TOKENS,
    Usage,
    estimate_cost,
    paid_in,
    price_per_image,
    price_per_token,
    token_price,
)
from repair_hf.llm.journal import Entry, open_journal
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
    priced, unpriced = (Entry("k", "", "stop", 100, 10, dollars, "audit", "i2t", "m", "m") for dollars in (0.25, None))
    for entry in (priced, unpriced):
        usage.add(entry, replayed=False)
        usage.add(entry, replayed=True)
    assert usage == Usage(
        calls=2, replayed=2, prompt_tokens=200, completion_tokens=20, dollars=0.25, unpriced=1, dollars_saved=0.25
    )


def test_batches_cost_half():
    full, half = price_per_token(FLASH), price_per_token(FLASH, batch=True)
    assert half == pytest.approx((full[0] / 2, full[1] / 2))
    assert price_per_token("openai/my-local-model", batch=True) is None


@pytest.mark.parametrize(
    ("model", "dollars"),
    [("gemini/gemini-2.5-flash-image", 0.039), ("openai/gpt-image-1", 0.042), ("openai/my-editor", None)],
)
def test_price_of_an_image(model, dollars):
    assert price_per_image(model) == (dollars and pytest.approx(dollars, abs=0.001))


def test_all_runs_of_a_folder_are_paid_for(tmp_path):
    """One process, then two, and a hosted image editor; a line that was cut off does not count."""
    places = [("journal", 0, 1), ("journal", 0, 2), ("journal", 1, 2), ("images", 0, 1)]
    for number, (name, process, processes) in enumerate(places):
        where = ("edit", "t2i") if name == "images" else ("audit", "i2t")
        with open_journal(tmp_path, name, process=process, processes=processes) as journal:
            journal.put(Entry(f"key{number}", "", "stop", 100, 10, 0.25, *where, "m", "m"))
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"key": "cut o')
    assert paid_in(tmp_path) == {
        ("audit", "i2t"): Usage(3, 0, 300, 30, 0.75),
        ("edit", "t2i"): Usage(1, 0, 100, 10, 0.25),
    }
    assert paid_in(tmp_path / "nowhere") == {}
