"""The table of methods: the paper's names, one change in each ablation, and choices that exist."""

import pytest

from repair_hf.mining.options import MiningOptions
from repair_hf.study.losses import OBJECTIVES
from repair_hf.study.methods import ABLATIONS, METHODS, PAPER, Records
from repair_hf.study.tables import published_results
from repair_hf.synthesis.options import SynthesizeOptions

FIELDS = ("data", "loss", "fill", "edits", "grid_weight", "grid_mean")


def test_every_method_of_the_papers_tables_is_there_besides_other_models_backbones_and_rounds():
    other = {"klein-4b", "gemini-image", "instruct-pix2pix", "gpt-4o", "repair-2-rounds"}
    reported = {*published_results("flickr30k"), *published_results("coco30k")}
    left = {name for name in reported - set(METHODS) if not name.startswith("other-backbone")}
    assert left == other and set(METHODS) >= reported - other - {"other-backbone", "other-backbone-vanilla"}


@pytest.mark.parametrize("method", ABLATIONS, ids=lambda method: method.name)
def test_an_ablation_differs_from_the_papers_method_in_one_field(method):
    parent = METHODS[method.parent]
    assert parent.name == PAPER and parent.parent == ""
    assert len([name for name in FIELDS if getattr(method, name) != getattr(parent, name)]) == 1


def test_choices_exist_and_records_share_a_name_only_if_they_are_the_same():
    records: dict[str, Records] = {}
    for name, method in METHODS.items():
        assert name == method.name and (method.loss in ("none", "batch", "grid", "both") or method.loss in OBJECTIVES)
        for source in method.sources.values():
            if isinstance(source, Records):
                assert method.fill in ("edits", "paper")
                assert set(source.mine) <= set(MiningOptions.__dataclass_fields__)
                assert set(source.synthesize) <= set(SynthesizeOptions.__dataclass_fields__)
                assert records.setdefault(source.name, source) == source
