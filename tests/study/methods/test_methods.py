"""The list of methods: the paper's names, and variants that name options which exist."""

from repair_hf.mining.options import MiningOptions
from repair_hf.study.methods.registry import load_methods
from repair_hf.synthesis.options import SynthesizeOptions

METHODS = load_methods()
PAPER = (
    "vanilla negclip sugarcrepe laclip simclr stablerep alia coco-cf tripletclip la+sc cf+al+la repair-i2t repair-t2i "
    "repair wo-failure wo-repair wo-qc wo-pqc repair-paper full-matrix hard-neg-only"
).split()


def test_methods_come_in_the_papers_order():
    assert [name for name in METHODS if name in PAPER] == PAPER
    assert {name: method.name for name, method in METHODS.items()} == {name: name for name in METHODS}


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
