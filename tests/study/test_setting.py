"""What a study has the means for, and whom it asks."""

import pytest

from repair_hf.evaluation.compositional import CompositionalOptions
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.multi_dataset import words_of_each
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.setting import Setting, settle
from repair_hf.synthesis.models import EditorOptions
from repair_hf.toyworld.corpus import build_world

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
        assert (found.weak_editor.editor, found.other_model) == ("world?drift=0.3", "world/narrow")
        assert found.weak_llm.llm == "world/oracle?keeps_bad=0.2&rejects_good=0.2"


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
    assert left_out(asked)["repair"] == ["editor"] and left_out(asked)["weak-llm"] == ["editor", "weak_llm"]


def test_a_retriever_of_the_toy_world_is_refused_for_photographs(tmp_path):
    with pytest.raises(UserError, match="`model` world/base knows the toy world alone, and `pairs` names"):
        setting(str(tmp_path))


@pytest.mark.parametrize(
    "weak, asked_at",
    [("openai/gpt-4o-mini", URL), ("litellm:openai/x", URL), ("gemini/gemini-2.5-flash", None), ("a/folder", None)],
)
def test_a_weaker_model_of_another_provider_is_not_sought_at_the_first_ones_endpoint(weak, asked_at, tmp_path):
    llm, editor = StudyLLMOptions("openai/gpt-4o", URL), StudyEditorOptions("openai/gpt-image-1", URL)
    found = setting(str(tmp_path), llm, editor, model="me/clip", weak_llm=weak, weak_editor=weak)
    assert (found.weak_llm.llm, found.weak_llm.llm_base_url) == (weak, asked_at)
    assert (found.weak_editor.editor, found.weak_editor.editor_base_url) == (weak, asked_at)


def test_a_data_set_can_turn_off_what_is_on_beside_it():
    """A switch that is off by default has no flag that begins with `--no-`."""
    sets = {"one": {"pairs": "a", "with_restval": False}, "two": {"pairs": "b"}}
    pairs, options = PairsOptions("x", with_restval=True), StudyOptions(datasets=sets, output="out")
    words = words_of_each(options, [pairs]).values()
    found = [parse((PairsOptions, StudyOptions), some, "x")[0] for some in words]
    assert [(each.pairs, each.with_restval) for each in found] == [("a", False), ("b", True)]
