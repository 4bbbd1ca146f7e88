"""What a study has the means for, whom it asks, and what decides its results."""

import importlib.util
from dataclasses import replace

import pytest

from repair_hf.runtime.options import UserError
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions
from repair_hf.study.run import check, lacking
from repair_hf.toyworld.corpus import build_world
from tests.study.made_rows import setting, settings_of

URL = "http://127.0.0.1:9/v1"


def test_the_toy_world_has_the_means_for_all_methods(tmp_path):
    build_world(tmp_path / "world", splits={"train": 2})
    for found in (setting(), setting(size=None, pairs=str(tmp_path / "world"))):
        assert not lacking([found]) and found.spacy_model == "world"


def test_photographs_have_the_means_for_what_asks_nobody_and_no_more(tmp_path):
    """The toy world's LLM, editor and parser know nothing of them."""
    own = {"size": None, "pairs": str(tmp_path), "model": "me/clip"}
    found = setting(**own)
    assert found.spacy_model == "en_core_web_sm"
    assert set(found.methods) - set(lacking([found])) == {"vanilla", "negclip", "simclr"}
    assert (lacking([found])["laclip"], lacking([found])["stablerep"]) == ("`llm`", "`editor`")
    asked = setting(**own, llm=StudyLLMOptions("openai/gpt-4o"))
    assert "repair-i2t" not in lacking([asked]) and lacking([asked])["repair"] == "`editor`"
    given = setting(**own, records=["some/records"])
    assert {"repair", "repair-paper", "wo-repair"}.isdisjoint(lacking([given])) and "wo-qc" in lacking([given])
    with pytest.raises(UserError, match="`model` world/base knows the toy world alone"):
        setting(size=None, pairs=str(tmp_path))


def test_a_missing_package_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check([setting()], ["laclip", "repair"])
    with pytest.raises(UserError, match=r"`simclr` needs a package .* \(kornia\): pip install 'repair-hf\[study\]'"):
        check([setting()], ["laclip", "simclr"])


def test_what_decides_a_method_is_what_it_uses():
    def deciding(name: str, **options):
        found = setting(**options)
        return found.deciding(found.methods[name])

    for name, options, decides in (
        ("laclip", {"editor": StudyEditorOptions("world/erring")}, False),
        ("repair", {"editor": StudyEditorOptions("world/erring")}, True),
        ("laclip", {"llm": StudyLLMOptions("world/erring")}, True),
        ("laclip", {"llm": StudyLLMOptions(concurrency=3, max_usd=5.0)}, False),
        ("negclip", {"llm": StudyLLMOptions("world/erring")}, False),
        ("vanilla", {"d_i2t": 2, "seeds": 5, "output": "x", "methods": ["laclip"]}, False),
        ("repair", {"d_i2t": 2}, True),
        ("vanilla", {"batch_size": 8}, True),
        ("vanilla", {"training": {"max_grad_norm": 0.0}}, True),
    ):
        assert (deciding(name) != deciding(name, **options)) == decides, (name, options)
    with pytest.raises(UserError, match="`training` has 'loss', which the study sets itself"):
        setting(training={"loss": "both"})


@pytest.mark.parametrize(
    "id, asked_at",
    [("openai/gpt-4o-mini", URL), ("litellm:openai/x", URL), ("gemini/gemini-2.5-flash", None), ("a/folder", None)],
)
def test_a_swap_differs_in_what_it_names_and_another_provider_is_not_sought_at_the_first_ones_address(id, asked_at):
    models = {"llm": StudyLLMOptions("openai/gpt-4o", URL), "editor": StudyEditorOptions("openai/gpt-image-1", URL)}
    swaps = {"other-llm": {"llm": id}, "other-editor": {"editor": id, "editor_steps": 100}}
    found = setting(swaps=swaps, **models)
    own, one, other = (found.models[name] for name in (None, *swaps))
    assert one.editor == own.editor and other.llm == own.llm
    assert one.llm == replace(own.llm, llm=id, llm_base_url=asked_at)
    assert other.editor == replace(own.editor, editor=id, editor_base_url=asked_at, editor_steps=100)
    assert found.models_of("other-editor") == other and found.models_of("repair") == own


@pytest.mark.parametrize(
    "options, says",
    [
        ({"swaps": {"a/b": {}}}, "`swaps` has 'a/b'"),
        ({"swaps": {"laclip": {}}}, "'laclip', which is another method"),
        ({"swaps": {"a": "gpt-4o"}}, "`swaps` a has 'gpt-4o'; give its options by name"),
        ({"swaps": {"a": {"max_usd": 3}}}, "`swaps` a has `max_usd`, which is one for all methods"),
        ({"swaps": {"a": {"editor_stebs": 3}}}, "`swaps` a: .*Did you mean `editor_steps`"),
        ({"swaps": {"a": {"editor_steps": 0}}}, "`swaps` a: `editor_steps` must be at least 1"),
        ({"datasets": {}}, "`datasets` is empty"),
        ({"datasets": {"a/b": {}}}, "`datasets` has 'a/b'"),
        ({"datasets": {"a": {"max_usd": 3}}}, "`datasets` a has `max_usd`; a dataset may have"),
        ({"datasets": {"a": {"pairs": "x"}}}, "`datasets` a: `size` tiny is one of the toy world"),
        ({"datasets": {"a": {"pairs": "x", "size": None}}}, "`datasets` a: `model` world/base knows the toy world"),
        ({"losses": ["all"]}, "`losses` takes batch, grid, both, got 'all'"),
    ],
)
def test_what_cannot_be_made_is_named(options, says):
    with pytest.raises(UserError, match=says):
        settings_of(**options)


def test_a_dataset_has_options_of_its_own():
    sets = {"one": {"size": "small"}, "two": {"pairs": "x", "size": None, "model": "me/clip", "with_restval": False}}
    found = settings_of(datasets=sets, paper="coco30k")
    assert [each.size.batch_size for each in found] == [128, 128]
    assert [(each.options.model, each.options.paper) for each in found] == [
        ("world/base", "coco30k"),
        ("me/clip", "coco30k"),
    ]
    assert [each.pairs_options.pairs for each in found] == ["runs/study/one/world", "x"]
    assert found[0].digest("negclip", "test") == setting(size="small").digest("negclip", "test")  # as if it were alone
