"""The dry run's counts: the paper's overhead table, by our own makers' declarations."""

from dataclasses import replace

import pytest

from repair_hf.llm.cost import StageCost
from repair_hf.study.prices import Prices, price_table, total
from repair_hf.study.setting import Models
from repair_hf.study.tables import published_results
from repair_hf.synthesis.options import EditorOptions, LLMOptions
from tests.study.made_rows import setting


@pytest.fixture
def prices(pairs_folder) -> Prices:
    """COCO30K's size, counted on twelve pictures; Gemini for texts, a local image editor."""
    found = setting(size=None, pairs=str(pairs_folder), model="me/clip", swaps={"other": {"editor": "a/pix2pix"}})
    models = Models(LLMOptions("gemini/gemini-2.5-flash"), EditorOptions("black-forest-labs/FLUX.2-klein-9B"))
    found.models = {None: models, "other": models._replace(editor=EditorOptions("timbrooks/instruct-pix2pix"))}
    found.pairs_options.split = "all"
    one = Prices(found)
    one.images, one.captions = 29_000, 145_000
    return one


def asked(prices: Prices, *names: str) -> StageCost:
    return total(prices.of(names))


def counts(prices: Prices, *names: str) -> tuple[int, int]:
    found = asked(prices, *names)
    return round(found.llm_calls), round(found.image_calls)


def test_calls_are_those_of_the_papers_overhead_table(prices):
    for name in "negclip laclip tripletclip sugarcrepe alia coco-cf cf+al+la".split():
        row = published_results("coco30k")[name]
        least = row["llm_calls"].partition("-")[0]  # of SugarCrepe the paper gives a range
        assert counts(prices, name) == (1000 * int(least), 1000 * int(row["image_calls"])), name


def test_repair_asks_of_each_failure_what_the_paper_says(prices):
    """5 LLM calls of an I2T failure, 2 and 3 images of a T2I one, if every one passes the audit."""
    i2t, t2i = 29_000 * 5, 145_000
    for name, llm, images in (
        ("repair-i2t", 5 * i2t, 0),
        ("repair-t2i", 2 * t2i, 3 * t2i),
        ("repair", 5 * i2t + 2 * t2i, 3 * t2i),
        ("wo-qc", 4 * i2t + t2i, 3 * t2i),
    ):
        assert counts(prices, name) == (llm, images), name


def test_dollars_follow_tokens(prices):
    """At the list price of Gemini 2.5 Flash; images of an editor that runs here cost none."""
    for name in ("laclip", "alia", "repair"):
        one = asked(prices, name)
        assert one.prompt_tokens > one.completion_tokens > 0
        assert one.dollars == pytest.approx(0.3e-6 * one.prompt_tokens + 2.5e-6 * one.completion_tokens)
    assert asked(prices, "vanilla").dollars == asked(prices, "stablerep").dollars == 0
    rows, items = price_table(prices, ["laclip", "repair"])
    assert [row[0] for row in rows] == ["laclip", "repair", "all together"]
    assert sum(item.dollars for item in items) == pytest.approx(asked(prices, "laclip", "repair").dollars)


def test_what_methods_share_counts_once(prices):
    assert counts(prices, "laclip", "sugarcrepe") == counts(prices, "laclip", "sugarcrepe", "la+sc")
    whole = counts(prices, "repair")
    assert whole == counts(prices, "repair-i2t", "repair", "repair-batch", "wo-repair", "wo-pqc")
    assert counts(prices, "repair", "other") == (whole[0], 2 * whole[1])  # another editor asks for images alone
    assert counts(prices, "wo-pqc") == whole  # alone it takes from nobody
    assert counts(prices, "repair", "wo-failure") == (2 * whole[0], 2 * whole[1])
    assert counts(prices, "sugarcrepe", "tripletclip") == (3 * 145_000, 145_000)  # of three captions one is the same
    assert asked(prices, "repair", "other").dollars == pytest.approx(asked(prices, "repair").dollars)


def test_limits_of_mining_and_prompts_count(prices):
    before = asked(prices, "repair").prompt_tokens
    prices.setting.max_queries = 1000
    assert counts(prices, "repair") == (5 * 5000 + 2 * 1000, 3000)
    prices.setting.max_queries = None
    models = prices.setting.models[None]
    prices.setting.models = {None: models._replace(llm=replace(models.llm, domain_notes="Brand and size decide."))}
    one = Prices(prices.setting)
    one.images, one.captions = prices.images, prices.captions
    assert asked(one, "repair").prompt_tokens > before
