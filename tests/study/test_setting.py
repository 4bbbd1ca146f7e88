"""What a study has the means for, and whom it asks."""

from dataclasses import replace

import pytest

from repair_hf.evaluation.compositional import CompositionalOptions
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.multi_dataset import words_of_each
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.setting import Setting, settle
from repair_hf.synthesis.options import EditorOptions
from repair_hf.toyworld.corpus import build_world
from repair_hf.training.config import RepairConfig

METHODS = load_methods()
URL = "http://127.0.0.1:9/v1"


def setting(
    pairs: str | None = None, llm: StudyLLMOptions | None = None, editor: EditorOptions | None = None, **options
) -> Setting:
    return settle(
        StudyOptions(**options),
        StudyPairsOptions(pairs),
        llm or StudyLLMOptions(),
        editor or StudyEditorOptions(),
        CompositionalOptions(),
        print,
    )


def left_out(found: Setting) -> dict[str, list[str]]:
    return {name: found.lacks(method) for name, method in METHODS.items() if found.lacks(method)}


def test_the_toy_world_has_the_means_for_all_methods(tmp_path):
    build_world(tmp_path / "world", splits={"train": 2})
    for found in (setting(), setting(str(tmp_path / "world"))):
        assert found.is_toy and not left_out(found) and found.spacy_model == "world"
        assert found.swaps["weak-editor"].editor.editor == "world?drift=0.3" and found.other_model == "world/narrow"
        assert found.swaps["weak-llm"].llm.llm == "world/oracle?keeps_bad=0.2&rejects_good=0.2"


def test_photographs_have_the_means_for_what_asks_nobody_and_no_more(tmp_path):
    """The toy world's LLM, editor and parser know nothing of them."""
    found = setting(str(tmp_path), model="me/clip")
    assert not found.is_toy and found.spacy_model == "en_core_web_sm"
    assert set(METHODS) - set(left_out(found)) == {"vanilla", "negclip", "simclr"}
    lacking = left_out(found)
    assert (lacking["laclip"], lacking["stablerep"]) == (["llm"], ["editor"])
    assert lacking["other-backbone-vanilla"] == ["other_model"]
    asked = setting(str(tmp_path), StudyLLMOptions("openai/gpt-4o"), model="me/clip")
    assert not asked.lacks(METHODS["repair-i2t"]) and not asked.lacks(METHODS["repair-reciprocal"])
    assert left_out(asked)["repair"] == ["editor"] and not asked.swaps


def test_an_option_of_training_is_the_same_for_all_methods():
    """Gradients are clipped at the default of `transformers`, unless the study says otherwise."""
    clips = [{"max_grad_norm": 1.0} | setting().training_of(method) for method in (None, *METHODS.values())]
    assert {each["max_grad_norm"] for each in clips} == {RepairConfig("x").max_grad_norm} == {1.0}
    free = setting(training={"max_grad_norm": 0.0})
    assert {free.training_of(method)["max_grad_norm"] for method in (None, *METHODS.values())} == {0.0}
    with pytest.raises(UserError, match="`training` has 'loss', which the study sets itself"):
        setting(training={"loss": "both"})


def test_kept_cells_have_no_compositional_results():
    options = StudyOptions(cells="kept"), StudyPairsOptions(), StudyLLMOptions(), StudyEditorOptions()
    with pytest.raises(UserError, match="`cells` keeps no results of `compositional` benchmarks"):
        settle(*options, CompositionalOptions(["world"]), print)


def test_a_retriever_of_the_toy_world_is_refused_for_photographs(tmp_path):
    with pytest.raises(UserError, match="`model` world/base knows the toy world alone, and `pairs` names"):
        setting(str(tmp_path))


@pytest.mark.parametrize(
    "id, asked_at",
    [("openai/gpt-4o-mini", URL), ("litellm:openai/x", URL), ("gemini/gemini-2.5-flash", None), ("a/folder", None)],
)
def test_a_swap_differs_in_what_it_names_and_another_provider_is_not_sought_at_the_first_ones_address(
    id, asked_at, tmp_path
):
    llm = StudyLLMOptions("openai/gpt-4o", URL, concurrency=3)
    editor = StudyEditorOptions("openai/gpt-image-1", URL, editor_size=256)
    swaps = {"other-llm": {"llm": id}, "other-editor": {"editor": id, "editor_steps": 100}}
    found = setting(str(tmp_path), llm, editor, model="me/clip", swaps=swaps)
    one, other = found.swaps["other-llm"], found.swaps["other-editor"]
    assert one.editor == found.editor and other.llm == found.llm
    assert one.llm == replace(found.llm, llm=id, llm_base_url=asked_at)
    assert other.editor == replace(found.editor, editor=id, editor_base_url=asked_at, editor_steps=100)
    methods = load_methods(found.swaps)
    variant = methods["other-editor-grid"]
    assert found.llm_of(variant) == found.llm and found.editor_of(variant) == other.editor
    assert variant.product == methods["other-editor"].product == "other-editor" and "weak-llm" not in methods


@pytest.mark.parametrize(
    "swaps, says",
    [
        ({"a/b": {}}, "'a/b', and each name becomes a method"),
        ({"a": "gpt-4o"}, "a has 'gpt-4o'; give its options by name"),
        ({"a": {"max_usd": 3}}, "a has `max_usd`, which is one for all methods"),
        ({"a": {"editor_stebs": 3}}, "a: unknown flags .*Did you mean `editor_steps`"),
        ({"a": {"editor_steps": 0}}, "a: `editor_steps` must be at least 1"),
        ({"repair": {}}, "'repair', which is another method, too"),
        ({"a": {}, "a-grid": {}}, "'a-grid', which is another method, too"),
    ],
)
def test_swaps_that_cannot_be_made_are_named(swaps, says):
    with pytest.raises(UserError, match=f"`swaps` (has )?{says}"):
        load_methods(setting(swaps=swaps).swaps)


def test_a_data_set_can_turn_off_what_is_on_beside_it():
    """A switch that is off by default has no flag that begins with `--no-`."""
    sets = {"one": {"pairs": "a", "with_restval": False}, "two": {"pairs": "b"}}
    pairs, options = PairsOptions("x", with_restval=True), StudyOptions(datasets=sets, output="out")
    words = words_of_each(options, [pairs]).values()
    found = [parse((PairsOptions, StudyOptions), some, "x")[0] for some in words]
    assert [(each.pairs, each.with_restval) for each in found] == [("a", False), ("b", True)]
