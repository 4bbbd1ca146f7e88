"""The dry run's counts: the paper's overhead table, by our own makers' declarations."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from repair_hf.analysis.costs import whole_price
from repair_hf.llm.calls import format_dollars
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import PairsOptions
from repair_hf.study.cost_tables import published_results
from repair_hf.study.estimates import Corpus, Estimator
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.plan import bill, count_trainings, plan_rows
from repair_hf.study.setting import Setting
from repair_hf.study.swaps import Models
from repair_hf.study.tuning import SearchSpace
from repair_hf.synthesis.options import EditorOptions, LLMOptions

METHODS = load_methods()


@pytest.fixture(scope="module")
def estimator(pairs_folder, tmp_path_factory) -> Estimator:
    """COCO30K's size, counted on twelve pictures; Gemini for texts, a local image editor."""
    setting = Setting(
        output=tmp_path_factory.mktemp("study"),
        pairs_options=PairsOptions(pairs=str(pairs_folder), split="all"),
        model="world/base",
        llm=LLMOptions(llm="gemini/gemini-2.5-flash"),
        editor=EditorOptions(editor="black-forest-labs/FLUX.2-klein-9B"),
        spacy_model="world",
        mine={"max_queries": None, "d_i2t": 5, "d_t2i": 1},
        training={},
        type_command=print,
    )
    setting.swaps = {"weak-editor": Models(setting.llm, EditorOptions(editor="timbrooks/instruct-pix2pix"))}
    return Estimator(setting, Corpus(29_000, 145_000), load_pairs(pairs_folder, split="all"))


@pytest.mark.parametrize("name", "negclip laclip tripletclip sugarcrepe alia coco-cf cf+al+la".split())
def test_calls_are_those_of_the_papers_overhead_table(estimator, name):
    row, asked = published_results("coco30k")[name], estimator.of(METHODS[name])
    least = row["llm_calls"].partition("-")[0]  # of SugarCrepe the paper gives a range, one category to all three
    assert asked.llm_calls == 1000 * int(least) and asked.image_calls == 1000 * int(row["image_calls"])


def test_repair_asks_of_each_failure_what_the_paper_says(estimator):
    """5 LLM calls of an I2T failure, 2 and 3 images of a T2I one, if every one passes the audit."""
    i2t, t2i = 29_000 * 5, 145_000
    for name, llm, images in (
        ("repair-i2t", 5 * i2t, 0),
        ("repair-t2i", 2 * t2i, 3 * t2i),
        ("repair", 5 * i2t + 2 * t2i, 3 * t2i),
        ("wo-qc", 4 * i2t + t2i, 3 * t2i),
        ("repair-reciprocal", 5 * (i2t + t2i), 0),
    ):
        asked = estimator.of(METHODS[name])
        assert (round(asked.llm_calls), round(asked.image_calls)) == (llm, images), name


def test_dollars_follow_tokens(estimator):
    """At the list price of Gemini 2.5 Flash; images of an editor that runs here cost none."""
    for name in ("laclip", "alia", "repair"):
        asked = estimator.of(METHODS[name])
        assert asked.prompt_tokens > asked.completion_tokens > 0
        assert asked.dollars == pytest.approx(0.3e-6 * asked.prompt_tokens + 2.5e-6 * asked.completion_tokens)
    assert estimator.of(METHODS["vanilla"]).dollars == estimator.of(METHODS["stablerep"]).dollars == 0


def test_what_methods_share_counts_once(estimator):
    def all_of(*names: str):
        found = estimator.of_all([METHODS[name] for name in names])
        kinds = ("llm_calls", "image_calls", "prompt_tokens", "completion_tokens", "dollars")
        return SimpleNamespace(**{kind: round(getattr(found, kind), 6) for kind in kinds})

    assert all_of("laclip", "sugarcrepe") == all_of("laclip", "sugarcrepe", "la+sc")
    assert all_of("repair") == all_of("repair-i2t", "repair", "repair-both-losses", "wo-repair", "wo-pqc")
    both = all_of("repair", "weak-editor")
    assert both.llm_calls == all_of("repair").llm_calls and both.image_calls == 2 * all_of("repair").image_calls
    assert all_of("wo-pqc") == all_of("repair")  # alone it takes from nobody
    assert all_of("repair-2-rounds").llm_calls == 2 * all_of("repair").llm_calls
    assert all_of("repair-2-rounds", "repair") == all_of("repair-2-rounds")  # its first round is RePair's own
    each = [all_of(name).dollars for name in ("repair-i2t", "repair-t2i")]
    assert all_of("repair-i2t", "repair-t2i").dollars == pytest.approx(sum(each))
    negatives = all_of("sugarcrepe", "tripletclip")  # of three false captions one is the same
    assert negatives.llm_calls == all_of("sugarcrepe").llm_calls and negatives.image_calls == 145_000


def test_limits_of_mining_limit_the_estimate(estimator, monkeypatch):
    monkeypatch.setitem(estimator.setting.mine, "max_queries", 1000)
    asked = estimator.of(METHODS["repair"])
    assert (round(asked.llm_calls), round(asked.image_calls)) == (5 * 5000 + 2 * 1000, 3000)


def test_the_plan_divides_hours_by_gpus_and_not_the_llms(estimator):
    """435,000 images of a second each, 1,015,000 requests at 1,000 a minute, a third of a megabyte an image."""
    rows = plan_rows(estimator, [METHODS["repair"], METHODS["repair-paper"]], trainings=40)
    price = format_dollars(estimator.of(METHODS["repair"]).dollars)
    assert rows == [
        ("1", "120.8", "40.0", "16.9", "160.8", price, "171.2"),
        ("4", "30.2", "10.0", "16.9", "40.2", price, "171.2"),
        ("8", "15.1", "5.0", "16.9", "21.9", price, "171.2"),
    ]
    drawn = plan_rows(estimator, [METHODS["stablerep"]], trainings=1)[0]  # a candidate each, and no LLM
    assert drawn == ("1", "40.3", "1.0", "0.0", "41.3", "$0.00", "74.5")


HERE, THERE = LLMOptions(llm="world/oracle"), LLMOptions(llm="gemini/gemini-2.5-flash", requests_per_minute=500)
KLEIN, HOSTED = (EditorOptions(editor=name) for name in ("flux/klein", "gemini/gemini-2.5-flash-image"))
SLOW = EditorOptions(editor="timbrooks/instruct-pix2pix", editor_steps=100, editor_size=1024)


@pytest.mark.parametrize(
    ("own", "swap", "images", "llm", "gigabytes"),
    [
        (Models(HERE, KLEIN), Models(HERE, HOSTED), 435_000, 0, 2),
        (Models(HERE, HOSTED), Models(HERE, KLEIN), 435_000, 0, 2),
        (Models(HERE, HOSTED), Models(HERE, SLOW), 435_000 * 12.5, 0, 5),  # 100 steps in place of 8
        (Models(HERE, KLEIN), Models(THERE, KLEIN), 2 * 435_000, 1_015_000, 2),
        (Models(THERE, HOSTED), Models(HERE, HOSTED), 0, 1_015_000, 2),
    ],
)
def test_the_plan_counts_each_methods_own_models(estimator, monkeypatch, own, swap, images, llm, gigabytes):
    monkeypatch.setattr(estimator, "setting", replace(estimator.setting, llm=own.llm, editor=own.editor))
    estimator.setting.swaps = {"weak-editor": swap}
    methods = [METHODS["repair"], METHODS["weak-editor"]]
    row = plan_rows(estimator, methods, trainings=0)[0]
    assert (row[1], row[3]) == (f"{images / 3600:,.1f}", f"{llm / 500 / 60:,.1f}")
    decoded = (29_000 + 2 * 145_000) * 224**2 * 3
    assert row[-1] == f"{(gigabytes * 435_000 * 1e6 / 3 + decoded) / 1e9:,.1f}"
    items = bill(estimator.by_models(methods))
    assert whole_price(items).startswith(f"Whole price: {format_dollars(estimator.of_all(methods).dollars)}: ")
    assert sum(item.number for item in items if item.kind == "images") == pytest.approx(870_000)
    assert {item.model for item in items} == {
        model for each in (own, swap) for model in (each.llm.llm, each.editor.editor)
    }


def test_trainings_are_those_of_tuning_and_of_the_tables():
    """Of RePair 2 rates with one weight, then the other weight of the better rate, two seeds each."""
    space = SearchSpace([1e-5, 1e-6], [5.0], [0.5, 1.0])

    def count(wanted, tune=True, points=(1.0,)):
        study = SimpleNamespace(methods=METHODS, wanted=wanted, space=space, tune=tune, points=points)
        return count_trainings(study, seeds=3)

    assert count(["vanilla"]) == 2 * 2 + 3 - 2
    assert count(["repair-paper"]) == 3 * 2 + 3 - 2
    assert count(["repair-paper", "hard-neg-only"]) == count(["repair-paper"]) + 3
    assert count(["vanilla"], tune=False) == 3
    swept = ["vanilla", "simclr", "laclip", "repair", "wo-repair"]  # three train on data beside the pairs
    assert count(swept, tune=False, points=[0.2, 0.5, 5, 1.0]) == 3 * (5 + 3 * 3)


@pytest.mark.parametrize("more", [{"domain_notes": "Brand and size decide."}, {"audit": "lenient"}])
def test_repair_is_priced_with_the_prompts_that_are_sent(estimator, monkeypatch, more):
    before = estimator.of(METHODS["repair"]).prompt_tokens
    monkeypatch.setattr(estimator, "setting", replace(estimator.setting, llm=replace(estimator.setting.llm, **more)))
    assert estimator.of(METHODS["repair"]).prompt_tokens != before
