"""The table of methods: the paper's names, one change in each ablation, and choices that exist."""

from pathlib import Path
from typing import get_args

import pytest

from repair_hf.study.cells import config_of
from repair_hf.study.losses import OBJECTIVES
from repair_hf.study.methods import ABLATIONS, CANDIDATES, METHODS, PAPER, REPAIR, Method, Records
from repair_hf.study.paper import published_results
from repair_hf.study.results import Cell
from repair_hf.synthesis.options import SynthesizeOptions
from repair_hf.training.options import Fill, Loss
from tests.study.made_rows import setting

FIELDS = ("data", "loss", "fill", "edits", "grid_weight", "grid_mean")


def test_every_method_of_the_papers_tables_is_there_besides_other_models_backbones_and_rounds():
    other = {"klein-4b", "gemini-image", "instruct-pix2pix", "gpt-4o", "repair-2-rounds", "repair-3-rounds"}
    reported = {*published_results("flickr30k"), *published_results("coco30k")}
    left = {name for name in reported - set(METHODS) if not name.startswith("other-backbone")}
    assert left == other and set(METHODS) >= reported - other - {"other-backbone", "other-backbone-vanilla"}


@pytest.mark.parametrize("method", ABLATIONS, ids=lambda method: method.name)
def test_an_ablation_differs_from_the_papers_method_in_one_field(method):
    parent = METHODS[PAPER]
    assert method.parent == PAPER and parent.parent == ""
    assert len([name for name in FIELDS if getattr(method, name) != getattr(parent, name)]) == 1


def test_the_papers_method_is_as_it_is_written():
    assert METHODS[PAPER] == Method("repair-paper", REPAIR, loss="grid", fill="paper", grid_weight=0.5)


def test_the_candidates_for_the_default():
    found = [(one.name, one.fill, one.loss, one.grid_weight, one.grid_mean) for one in CANDIDATES]
    assert found == [
        ("repair-batch", "edits", "batch", 0.0, "grids"),
        ("repair-grid", "edits", "grid", 1.0, "grids"),
        ("repair-both", "edits", "both", 1.0, "grids"),
        ("repair-both-0.25", "edits", "both", 0.25, "grids"),
        ("repair-both-anchors", "edits", "both", 1.0, "anchors"),
        ("repair-paper", "paper", "grid", 0.5, "grids"),
        ("paper-both", "paper", "both", 0.5, "grids"),
    ]
    assert all(one.data is REPAIR for one in CANDIDATES)


def test_choices_exist_and_records_share_a_name_only_if_they_are_the_same():
    records: dict[str, Records] = {}
    for name, method in METHODS.items():
        assert name == method.name and method.loss in (*get_args(Loss), *OBJECTIVES)
        for source in method.sources.values():
            if isinstance(source, Records):
                assert method.fill in get_args(Fill)
                assert set(source.synthesize) <= set(SynthesizeOptions.__dataclass_fields__)
                assert records.setdefault(source.name, source) == source


def test_every_method_has_a_configuration_of_training():
    """A study's test trains one method of each kind."""
    one = setting()
    for name, method in METHODS.items():
        config = config_of(method, one, Path("x"), Cell("tiny", name, "test", 0, 1e-4, 0.2))
        wanted = "grid" if method.loss in OBJECTIVES else method.loss, method.fill or "edits"
        assert (config.loss, config.fill) == wanted, name
