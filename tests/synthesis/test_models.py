"""Models by id, and the bounds of their options."""

from __future__ import annotations

import pytest

from repair_hf.llm.ledger import Ledger
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.models import find_editor, find_llm, llm_price, local_weights, open_asker, open_editor
from repair_hf.synthesis.options import EditorOptions, LLMOptions
from repair_hf.toyworld.editor import WorldEditor


def llm_at(id: str, **options) -> str:
    return find_llm(LLMOptions(llm=id, **options))


def editor_at(id: str, **options) -> str:
    return find_editor(EditorOptions(editor=id, **options))


@pytest.mark.parametrize(
    ("find", "id", "place"),
    [
        (llm_at, "gemini/gemini-2.5-flash", "litellm"),
        (llm_at, "ollama/llava", "litellm"),
        (llm_at, "hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", "litellm"),
        (llm_at, "gpt-4o", "litellm"),
        (llm_at, "world/oracle", "world"),
        (editor_at, "black-forest-labs/FLUX.2-klein-9B", "here"),
        (editor_at, "openai/gpt-image-1", "litellm"),
        (editor_at, "world", "world"),
        (llm_at, "world/erring", "world"),
        (editor_at, "world/erring?smear=0", "world"),
    ],
)
def test_a_model_is_found_by_its_id(find, id, place):
    assert find(id) == place


def test_an_oracle_that_errs_has_a_name_and_so_answers_of_its_own():
    ids = ("world/oracle", "world/oracle?rejects_good=1.0", "world/oracle?rejects_good=1")
    with Ledger() as ledger:
        names = [open_asker(LLMOptions(llm=id), ledger).model for id in ids]
    assert names == ["world/oracle", *["world/oracle?rejects_good=1"] * 2]


def test_a_folder_is_an_editor_that_lies_here(tmp_path, monkeypatch):
    (tmp_path / "openai" / "tuned").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert editor_at("openai/tuned") == editor_at(str(tmp_path)) == "here"


def test_with_an_endpoint_it_is_always_litellm():
    address = "http://127.0.0.1:1/v1"
    assert llm_at("world/oracle", llm_base_url=address) == editor_at("x/y", editor_base_url=address) == "litellm"


def test_a_digest_tells_weights_apart_that_lie_in_one_folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = local_weights(EditorOptions(editor=str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"two")
    after = local_weights(EditorOptions(editor=str(tmp_path)))
    assert before.keys() == after.keys() == {"editor_digest"} and before != after
    assert local_weights(EditorOptions(editor="world")) == {}


def test_options_reach_the_editor():
    with Ledger() as ledger:
        editor = open_editor(EditorOptions(editor="world?drift=0.5"), LLMOptions(llm="world/oracle"), ledger)
        assert isinstance(editor, WorldEditor) and editor.errors.drift == 0.5
        options = EditorOptions(
            editor="gemini/gemini-2.5-flash-image", editor_size=256, editor_base_url="http://127.0.0.1:1"
        )
        editor = open_editor(options, LLMOptions(llm="world/oracle", timeout=3.0), ledger)
        assert isinstance(editor, HostedEditor)
        assert (editor.size, editor.timeout, editor.base_url) == (256, 3.0, "http://127.0.0.1:1")


def test_a_stated_price_belongs_to_the_options_that_state_it():
    mine = {"llm": "openai/mine"}
    assert llm_price(LLMOptions(**mine, price=[2.0, 4.0])) == (2e-6, 4e-6)
    assert llm_price(LLMOptions(**mine, price=[0.0, 0.0])) == (0.0, 0.0)
    assert llm_price(LLMOptions(**mine)) is None
    assert llm_price(LLMOptions(**mine, llm_base_url="http://127.0.0.1:1")) == (0.0, 0.0)  # one's own server
    listed = llm_price(LLMOptions(llm="openai/gpt-4o-mini"))
    assert listed == llm_price(LLMOptions(llm="openai/gpt-4o-mini", llm_base_url="http://127.0.0.1:1")) and any(listed)
    with Ledger() as ledger:
        assert open_asker(LLMOptions(**mine, price=[2.0, 4.0]), ledger).price == (2e-6, 4e-6)
        assert open_asker(LLMOptions(**mine), ledger).price is None
    with pytest.raises(UserError, match="A price is two amounts"):
        llm_price(LLMOptions(**mine, price=[2.0]))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch": True, "llm": "world/oracle"}, "got --llm world/oracle, which answers at once"),
        ({"reasoning_effort": "none", "llm": "world/oracle"}, "needs a provider, and --llm world/oracle has none"),
        ({"llm": "Qwen/Qwen2.5-VL-7B-Instruct"}, "needs a server.*transformers serve Qwen/.*hosted_vllm/Qwen"),
        (
            {"llm": "world/oracel"},
            "`world/oracel` is neither a folder nor an LLM of the toy world, which has",
        ),
    ],
)
def test_what_cannot_be_opened_is_a_users_mistake(options, complaint, tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as ledger, pytest.raises(UserError, match=complaint):
        open_asker(LLMOptions(**options), ledger)


def test_a_misspelt_editor_is_the_users_mistake():
    complaint = "`world/editor` is neither a folder nor an image editor of the toy world"
    with Ledger() as ledger, pytest.raises(UserError, match=complaint):
        open_editor(EditorOptions(editor="world/editor"), LLMOptions(llm="world/oracle"), ledger)
