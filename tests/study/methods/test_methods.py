"""The list of methods: the paper's names, each of its own samples and loss, refused where a package is missing."""

import importlib.util
from typing import get_args

import pytest
from datasets import Dataset

from repair_hf.mining.options import MiningOptions
from repair_hf.runtime.options import UserError
from repair_hf.study.methods.method import Baseline, RepairVariant
from repair_hf.study.methods.registry import check_installed, load_methods
from repair_hf.study.methods.selection import Order, Selection
from repair_hf.study.swaps import TOY_SWAPS
from repair_hf.synthesis.options import SynthesizeOptions
from repair_hf.training.options import Hyperparameters

METHODS = load_methods()
PAPER = (
    "vanilla negclip sugarcrepe laclip simclr stablerep alia coco-cf tripletclip la+sc cf+al+la repair-i2t repair-t2i "
    "repair wo-failure wo-repair wo-qc wo-pqc repair-paper full-matrix hard-neg-only"
).split()
VARIANTS = {name: method for name, method in METHODS.items() if isinstance(method, RepairVariant)}


def test_methods_come_in_the_papers_order():
    assert [name for name in METHODS if name in PAPER] == PAPER
    assert {name: method.name for name, method in METHODS.items()} == {name: name for name in METHODS}


def test_parts_and_losses_are_those_of_the_papers_table():
    """What each baseline adds, and which have a loss of their own."""
    parts = {name: set(method.parts) for name, method in METHODS.items() if isinstance(method, Baseline)}
    assert parts == {
        "vanilla": set(),
        "negclip": {"negative"},
        "sugarcrepe": {"negative"},
        "laclip": {"rewrite"},
        "simclr": set(),
        "stablerep": {"drawn"},
        "alia": {"variant"},
        "coco-cf": {"negative"},
        "tripletclip": {"negative"},
        "la+sc": {"rewrite", "negative"},
        "cf+al+la": {"negative", "variant", "rewrite"},
        "new-pairs": {"negative"},
        "new-pairs-grid": {"negative"},
    }
    own = {"simclr", "stablerep", "tripletclip", "new-pairs-grid"}
    assert {name for name in parts if METHODS[name].objective is not None} == own
    # a mixture makes nothing of its own
    assert METHODS["la+sc"].parts["negative"] is METHODS["sugarcrepe"].parts["negative"]
    assert METHODS["cf+al+la"].parts["variant"] is METHODS["alia"].parts["variant"]


@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_of_repair_names_options_that_exist(method):
    stages = {MiningOptions: method.mine, SynthesizeOptions: method.synthesize, Hyperparameters: method.train}
    for kind, options in stages.items():
        assert set(options) <= set(kind.__dataclass_fields__)
    assert method.tuned_as in METHODS and {"fill", "loss"} <= set(method.train)


def test_variants_that_differ_in_training_alone_share_records():
    same = {
        name for name, method in METHODS.items() if isinstance(method, RepairVariant) and method.product == "repair"
    }
    trained = "repair-paper repair-grid repair-both-losses repair-scenes wo-repair full-matrix hard-neg-only"
    assert {name for name in same if not METHODS[name].select} == {"repair", *trained.split()}
    assert len([name for name in same if METHODS[name].select]) == 12
    products = {name: METHODS[name].product for name in VARIANTS if name not in same}
    for name in TOY_SWAPS:
        assert products.pop(f"{name}-grid") == products[name]
    assert len(set(products.values())) == len(products)


def test_a_selection_takes_the_most_promising_edits():
    """Margins from -4 to 5; the first five rank above the ground truth."""
    rows = {
        "direction": ["i2t", "t2i"] * 5, "fp_rank": [1] * 5 + [2] * 5, "gt_rank": [2] * 5 + [1] * 5,
        "fp_score": [float(5 - row) for row in range(10)], "gt_score": [1.0] * 10,
    }  # fmt: skip
    records = Dataset.from_dict(rows).add_column("row", list(range(10)))
    chosen = {order: set(Selection(order, 0.5).of(records)["row"]) for order in get_args(Order)}
    assert chosen["outranking"] == chosen["gravest"] == set(range(5)) and chosen["slightest"] == set(range(5, 10))
    assert chosen["i2t"] == {0, 2, 4, 6, 8} and chosen["t2i"] == {1, 3, 5, 7, 9} and len(chosen["random"]) == 5
    assert set(Selection("random", 0.2).of(records)["row"]) < chosen["random"] != set(range(5))


def test_a_missing_package_is_named_before_anything_starts(monkeypatch):
    check_installed([METHODS["laclip"], METHODS["repair"]])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_installed([METHODS["laclip"], METHODS["repair"]])
    says = r"negclip, simclr need packages .* \(kornia, spacy\): pip install 'repair-hf\[study\]'"
    with pytest.raises(UserError, match=says):
        check_installed(METHODS.values())
