"""ARO's order tests: the shufflings against the plainest form of the same, with the process's own generators."""

import random
import re

import numpy as np
import pytest
from benchmark_files import captioned

from repair_hf.evaluation import judging
from repair_hf.evaluation.benchmarks import load_benchmarks
from repair_hf.evaluation.options import CompositionalOptions
from repair_hf.evaluation.order import load_order, normalize
from repair_hf.evaluation.words import load_tokenizer
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.toyworld.parsing import build_parser

for _package in ("nltk", "spacy"):
    pytest.importorskip(_package, reason="the extra repair-hf[aro] is not installed")

CAPTIONS = (
    [
        "Two big red stars to the left of a small blue box at night.",
        "a red ball above three yellow hearts in daylight",
    ],
    ["ball", "A purple star (racing along): it's a blue box, isn't it?"],
    [" ".join(["a red ball"] * 14), "one star and a heart", "a circle!", "big red ball"],
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return captioned(tmp_path_factory.mktemp("pairs"), CAPTIONS)


def plain(caption: str, parser) -> list[str]:
    """The five captions of one case; draws from the generators of NumPy and Python themselves."""
    document, found = parser(caption), [caption]
    words = np.array([token.text for token in document])
    nouns = [k for k, token in enumerate(document) if token.tag_.startswith("NN")]
    adjectives = [k for k, token in enumerate(document) if token.tag_.startswith("JJ")]
    both = words.copy()
    both[nouns] = np.random.permutation(both[nouns])
    both[adjectives] = np.random.permutation(both[adjectives])
    found.append(" ".join(both))
    is_other = np.ones(len(words), bool)
    is_other[nouns + adjectives] = False
    words[is_other] = np.random.permutation(words[is_other])
    found.append(" ".join(words))
    tokens = load_tokenizer()(caption)
    runs = [tokens[k : k + 3] for k in range(0, len(tokens), 3)]
    for run in runs:
        random.shuffle(run)
    found.append(" ".join(" ".join(run) for run in runs))
    runs = [tokens[k : k + 3] for k in range(0, len(tokens), 3)]
    random.shuffle(runs)
    found.append(" ".join(" ".join(run) for run in runs))
    spaced = [re.sub(r"\s+", " ", re.sub(r'[.!"()*#:;~]', " ", text.lower())).strip() for text in found]
    return [" ".join(text.split()[:30]) for text in spaced]


def test_the_shufflings_are_the_plain_ones(pairs):
    parser = build_parser()
    cases = load_order(pairs, parser, load_tokenizer(), seeds=(1, 7))
    found = [[cases.captions[row] for row in case] for case in cases.caption]
    expected = []
    for seed in (1, 7):
        np.random.seed(seed)
        random.seed(seed)
        expected += [plain(caption, parser) for caption in pairs.captions["caption"]]
    assert found == expected
    assert cases.picture[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 2, 2] * 2
    assert cases.groups == ["1"] * 8 + ["7"] * 8 and len(set(cases.case_ids)) == 16
    unchanged = sum(case.count(case[0]) - 1 for case in found)
    assert cases.counts["n_unchanged"] == unchanged >= 8  # `ball` has no other order
    assert [metric.name for metric in cases.metrics] == ["P@1", "P@1_ties_right", "P@1_seed_1", "P@1_seed_7"]


def test_a_caption_that_no_shuffle_changes_is_a_tie(pairs, encoder):
    cases = load_order(pairs, build_parser(), load_tokenizer())
    table = judging.evaluate_compositional(encoder, [cases], "m", encoder.embed_images(pairs.images["image"]))
    found = judging.compositional_metrics(table, [cases])
    margin = table["margin"].to_numpy()
    assert margin[2] == 0  # `ball`
    assert found["order_P@1"] == (margin > 0).mean() < (margin >= 0).mean() == found["order_P@1_ties_right"]
    assert found["order_n_ties"] == (margin == 0).sum()


def test_normalized_as_the_authors_do():
    text = '  A "Dog", (sitting) on: the ~Grass!  It\'s #1; ok.\n'
    assert normalize(text) == "a dog , sitting on the grass it's 1 ok"
    assert normalize(" ".join(map(str, range(40)))).split()[-1] == "29"


@pytest.mark.parametrize(
    "benchmark, split, name",
    [("coco30k", "test", "coco_order"), ("flickr30k", "test", "flickr30k_order"), ("coco", "val", "order")],
)
def test_only_a_test_split_has_the_authors_name(pairs, benchmark, split, name):
    options = CompositionalOptions(compositional=["order=world"], order_seeds=[2])
    (cases,) = load_benchmarks(options, pairs, PairsOptions(pairs="x", split=split, benchmark=benchmark))
    assert cases.benchmark == name and set(cases.groups) == {"2"}


def test_a_missing_model_is_named_with_its_remedy(pairs):
    options = CompositionalOptions(compositional=["order=en_core_web_xxl"])
    message = "`en_core_web_xxl` cannot be loaded .* python -m spacy download en_core_web_sm"
    with pytest.raises(UserError, match=message):
        load_benchmarks(options, pairs, PairsOptions(pairs="x"))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (dict(compositional=["aro"]), "takes order, .* got 'aro'"),
        (dict(compositional=["sugarcrepe"]), "sugarcrepe=FOLDER"),
        (dict(compositional=["order", "order=world"]), "names order twice"),
        (dict(order_seeds=[1, 1]), "takes one or more different numbers from 0 to 4294967295, got .1, 1."),
        (dict(compositional=["order=world"], order_seeds=[2**32]), "`order_seeds` takes .*, got .4294967296."),
        (dict(order_seeds=[2]), "`order_seeds` .2. is for `compositional` order; give it"),
        (dict(compositional=["order"], compositional_subset=True), "are for benchmarks of photographs"),
    ],
)
def test_options_that_cannot_work_raise(named, message):
    with pytest.raises(UserError, match=message):
        CompositionalOptions(**named)
