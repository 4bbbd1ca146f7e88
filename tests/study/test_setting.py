"""What a study has the means for, whom it asks and how much, and which options contradict each other."""

import importlib.util

import pytest

from repair_hf.cli.main import main
from repair_hf.runtime.options import UserError
from repair_hf.study.estimate import asked_by
from repair_hf.study.methods import METHODS
from repair_hf.study.options import StudyLLMOptions
from repair_hf.study.paper import published_results
from repair_hf.toyworld.corpus import build_world
from tests.study.made_rows import setting

ASKED = list(METHODS)  # by default


def test_the_toy_world_has_the_means_for_all_methods(tmp_path):
    build_world(tmp_path / "world", splits={"train": 2})
    for found in (setting(), setting(size=None, pairs=str(tmp_path / "world"))):
        assert found.wanted == ASKED and found.spacy_model == "world"
        found.check([name for name in METHODS if name != "simclr"], ["train"])


def test_the_models_of_the_toy_world_know_nothing_of_photographs(pairs_folder):
    own = {"size": None, "pairs": str(pairs_folder), "model": "me/clip"}
    found = setting(**own)
    assert found.spacy_model == "en_core_web_sm" and set(ASKED) - set(found.wanted) == {"new-pairs"}
    found.check(["plain", "negclip"], [])
    for name, says in (("laclip", "`llm` world/oracle"), ("stablerep", "`editor` world")):
        with pytest.raises(UserError, match=f"{says} knows the toy world alone"):
            found.check(["plain", name], [])
    given = setting(**own, records=["some/records"], llm=StudyLLMOptions("openai/gpt-4o"))
    assert given.wanted == ["repair-batch", "repair-paper"]
    assert not [source for name in given.wanted for source in given.sources(name)]  # nobody is asked
    with pytest.raises(UserError, match="`model` world/base knows the toy world alone"):
        setting(size=None, pairs=str(pairs_folder))


def test_a_missing_package_or_key_is_named_before_anything_starts(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ["study", "--size", "tiny", "--editor", "openai/gpt-image-1", "--output", str(tmp_path / "out")]
    for more in ([], ["--dry-run"]):
        assert main([*words, "--methods", "repair-batch", *more]) == 2 and "OPENAI_API_KEY" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"`simclr` needs kornia: pip install 'repair-hf\[study\]'"):
        setting().check(["laclip", "simclr"], ["test"])


def test_settings_are_not_chosen_on_the_reported_split():
    found = setting(test_split="validation")
    found.check(["plain"], ["test"])
    with pytest.raises(UserError, match="would be chosen on the results"):
        found.check(["plain"], ["validation", "test"])


def test_calls_are_those_of_the_papers_overhead_table(monkeypatch):
    """COCO30K's size. 5 LLM calls of an I2T failure, 2 and 3 images of a T2I one, if every one passes the audit."""
    found = setting()
    monkeypatch.setattr(type(found), "size_of_data", (29_000, 145_000))
    found.max_queries = None
    for name in "negclip laclip tripletclip sugarcrepe alia coco-cf cf+al+la".split():
        row = published_results("coco30k")[name]
        least = row["llm_calls"].partition("-")[0]  # of SugarCrepe the paper gives a range
        assert asked_by(found, name) == (1000 * int(least), 1000 * int(row["image_calls"])), name
    i2t, t2i = 29_000 * 5, 145_000
    for name, llm, images in (
        ("repair-i2t", 5 * i2t, 0),
        ("repair-t2i", 2 * t2i, 3 * t2i),
        ("repair-paper", 5 * i2t + 2 * t2i, 3 * t2i),
        ("wo-qc", 4 * i2t + t2i, 3 * t2i),
    ):
        assert asked_by(found, name) == (llm, images), name
    found.max_queries = 1000
    assert asked_by(found, "repair-batch") == (5 * 5000 + 2 * 1000, 3000)
    assert asked_by(found, "plain") == (0, 0)
