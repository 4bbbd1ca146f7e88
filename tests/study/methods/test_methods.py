"""The list of methods: the paper's names, each of its own samples and loss, refused where a package is missing."""

import importlib.util

import pytest

from repair_hf.mining.options import MiningOptions
from repair_hf.runtime.options import UserError
from repair_hf.study.methods.registry import check_installed, load_methods
from repair_hf.synthesis.options import SynthesizeOptions

METHODS = load_methods()
PAPER = (
    "vanilla negclip sugarcrepe laclip simclr stablerep alia coco-cf tripletclip la+sc cf+al+la repair-i2t repair-t2i "
    "repair wo-failure wo-repair wo-qc wo-pqc repair-paper full-matrix hard-neg-only"
).split()


def test_methods_come_in_the_papers_order():
    assert [name for name in METHODS if name in PAPER] == PAPER
    assert {name: method.name for name, method in METHODS.items()} == {name: name for name in METHODS}


def test_mixtures_make_nothing_of_their_own():
    assert METHODS["la+sc"].parts["negative"] is METHODS["sugarcrepe"].parts["negative"]
    assert METHODS["cf+al+la"].parts["variant"] is METHODS["alia"].parts["variant"]


def test_variants_name_options_that_exist_and_share_records_if_they_differ_in_training_alone():
    variants = [method for method in METHODS.values() if method.records]
    for method in variants:
        assert set(method.records.mine) <= set(MiningOptions.__dataclass_fields__)
        assert set(method.records.synthesize) <= set(SynthesizeOptions.__dataclass_fields__)
        assert method.fill in ("edits", "paper") and method.loss in ("batch", "grid", "both")
        assert METHODS[method.tuned_as].tuned_as == method.tuned_as
    alike = "repair wo-repair repair-paper full-matrix hard-neg-only repair-grid repair-batch".split()
    assert [method.name for method in variants if method.records.name == "repair"] == alike
    others = [method for method in variants if method.name not in alike]
    assert [method.records.name for method in others] == [method.name for method in others]


def test_a_swap_is_a_method_with_records_of_its_own():
    found = load_methods(["gpt-4o"])["gpt-4o"]
    assert (found.records.name, found.tuned_as, found.fill, found.loss) == ("gpt-4o", "repair", "edits", "both")
    with pytest.raises(UserError, match="'laclip', which is another method"):
        load_methods(["laclip"])


def test_a_missing_package_is_named_before_anything_starts(monkeypatch):
    check_installed([METHODS["laclip"], METHODS["repair"]])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_installed([METHODS["laclip"], METHODS["repair"]])
    says = r"`negclip` needs a package .* \(spacy\): pip install 'repair-hf\[study\]'"
    with pytest.raises(UserError, match=says):
        check_installed(METHODS.values())
