"""What stands with every number: of which data, which weights, which code."""

import pytest

from repair_hf.evaluation.provenance import describe, provenance
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import PairsOptions


@pytest.fixture(scope="module")
def found(pairs_folder):
    pairs = load_pairs(pairs_folder, split="all")
    said = provenance(PairsOptions(pairs="photos", split="all"), pairs, "me/clip", "0123abcd")
    assert said["pairs_fingerprint"] == pairs.fingerprint and said["benchmark"] is None
    return pairs, said


@pytest.mark.parametrize(
    "options, split",
    [
        ({"benchmark": "coco", "split": "validation"}, "val"),
        ({"benchmark": "coco", "split": "train", "with_restval": True}, "train+restval"),
        ({"benchmark": None, "split": "validation"}, "validation"),
    ],
)
def test_a_split_has_the_benchmarks_own_name(found, options, split):
    said = provenance(PairsOptions(pairs="x", **options), found[0], "m", "d")
    assert (said["split"], said["benchmark"]) == (split, options["benchmark"])


@pytest.mark.parametrize("texts, other", [(25_000, "25,010"), (25_010, "25,000")])
def test_of_two_forms_of_a_split_the_other_is_named(found, texts, other):
    one = found[1] | {"benchmark": "coco", "split": "test", "n_texts": texts}
    assert f"{texts:,} texts (another version of this split has {other})." in describe({"a": one})
    assert describe({"a": one}).startswith("coco, split test,")
