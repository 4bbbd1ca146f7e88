"""ARO's order tests: the shuffles against the plainest form of the same, and what `evaluate` makes of the file."""

import json
import random
import re

import numpy as np
import pytest
from benchmark_files import captioned

from benchmarks.aro_order import load_tokenizer, normalize
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation import judging
from repair_hf.evaluation.benchmarks import load_benchmarks
from repair_hf.evaluation.options import CompositionalOptions
from repair_hf.evaluation.order import load_order
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.toyworld.parsing import build_parser
from tests.benchmarks import scripts

CAPTIONS = (
    [
        "Two big red stars to the left of a small blue box at night.",
        "a red ball above three yellow hearts in daylight",
    ],
    ["ball", "A purple star (racing along): it's a blue box, isn't it?"],
    [" ".join(["a red ball"] * 14), "one star and a heart", "a circle!", "big red ball"],
)


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    for package in ("nltk", "spacy"):
        pytest.importorskip(package, reason="the extra repair-hf[aro] is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def pairs(folder):
    return captioned(folder, CAPTIONS)


@pytest.fixture(scope="module")
def file(folder, pairs):
    """What the script writes for two seeds."""
    words = f"--pairs {folder} --split all --spacy-model world --seeds 1 7 --output {folder / 'made' / 'order.jsonl'}"
    assert "16 cases of 2 seeds" in scripts.run("aro_order", words)
    return folder / "made" / "order.jsonl"


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


def test_the_shuffles_are_the_plain_ones(pairs, file):
    parser = build_parser()
    cases = load_order(file, pairs)
    captions = [[cases.captions[row] for row in case] for case in cases.caption]
    expected = []
    for seed in (1, 7):
        np.random.seed(seed)
        random.seed(seed)
        expected += [plain(caption, parser) for caption in pairs.captions["caption"]]
    assert captions == expected
    assert cases.picture[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 2, 2] * 2
    assert cases.groups == ["1"] * 8 + ["7"] * 8 and len(set(cases.case_ids)) == 16
    unchanged = sum(case.count(case[0]) - 1 for case in captions)
    assert cases.counts["n_unchanged"] == unchanged >= 8  # `ball` has no other order
    assert [metric.name for metric in cases.metrics] == ["P@1", "P@1_ties_right", "P@1_seed_1", "P@1_seed_7"]


def test_a_caption_that_no_shuffle_changes_is_a_tie(pairs, file, clip_folder):
    encoder, cases = DualEncoder.from_pretrained(clip_folder), load_order(file, pairs)
    table = judging.evaluate_compositional(encoder, [cases], "m", encoder.embed_images(pairs.images["image"]))
    metrics = judging.compositional_metrics(table, [cases])
    margin = table["margin"].to_numpy()
    assert margin[2] == 0  # `ball`
    assert metrics["order_P@1"] == (margin > 0).mean() < (margin >= 0).mean() == metrics["order_P@1_ties_right"]
    assert metrics["order_n_ties"] == (margin == 0).sum()


def test_normalized_as_the_authors_do():
    text = '  A "Dog", (sitting) on: the ~Grass!  It\'s #1; ok.\n'
    assert normalize(text) == "a dog , sitting on the grass it's 1 ok"
    assert normalize(" ".join(map(str, range(40)))).split()[-1] == "29"


@pytest.mark.parametrize(
    "benchmark, split, name",
    [("coco30k", "test", "coco_order"), ("flickr30k", "test", "flickr30k_order"), ("coco", "val", "order")],
)
def test_only_a_test_split_has_the_authors_name(pairs, file, benchmark, split, name):
    options = CompositionalOptions(compositional=[f"order={file}"])
    (cases,) = load_benchmarks(options, pairs, PairsOptions(pairs="x", split=split, benchmark=benchmark))
    assert cases.benchmark == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": "other.png"}, "line 1 is of image 'other.png', which the pairs lack"),
        ({"captions": "a dog"}, "line 1 needs caption_id, image_id, seed, captions, got"),
        ({"captions": ["a dog"]}, "must hold cases of as many captions each"),
    ],
)
def test_a_file_that_does_not_fit_is_an_error(pairs, file, change, message, tmp_path):
    first, *others = file.read_text().splitlines()
    changed = [json.dumps(json.loads(first) | change), *others]
    (tmp_path / "order.jsonl").write_text("\n".join(changed))
    with pytest.raises(UserError, match=message):
        load_order(tmp_path / "order.jsonl", pairs)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (dict(compositional=["aro"]), "takes order, .* got 'aro'"),
        (dict(compositional=["sugarcrepe"]), "sugarcrepe=FOLDER"),
        (dict(compositional=["order"]), "benchmarks/aro_order.py: order=FILE"),
        (dict(compositional=["order=a", "order=b"]), "names order twice"),
        (dict(compositional=["order=a"], compositional_images=["b"]), "are the photographs of sugarcrepe=FOLDER"),
    ],
)
def test_options_that_cannot_work_raise(named, message):
    with pytest.raises(UserError, match=message):
        CompositionalOptions(**named)
