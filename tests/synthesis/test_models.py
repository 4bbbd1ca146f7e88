"""Models by id, and the bounds of their options."""

from __future__ import annotations

import asyncio
import base64

import pytest

from repair_hf.llm.journal import Journal
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.audit import audit
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.models import (
    EditorOptions,
    LLMOptions,
    find_editor,
    find_llm,
    local_weights,
    open_chat,
    open_editor,
)
from repair_hf.synthesis.options import SynthesisOptions
from repair_hf.toyworld import renderer, scenes
from repair_hf.toyworld.editor import WorldEditor


@pytest.mark.parametrize(
    ("id", "found"),
    [
        ("gemini/gemini-2.5-flash", ("litellm", "gemini/gemini-2.5-flash")),
        ("openai/gpt-4o", ("litellm", "openai/gpt-4o")),
        ("anthropic/claude-sonnet-4-5", ("litellm", "anthropic/claude-sonnet-4-5")),
        ("ollama/llava", ("litellm", "ollama/llava")),
        ("hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", ("litellm", "hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct")),
        ("gpt-4o", ("litellm", "gpt-4o")),
        ("Qwen/Qwen2.5-VL-7B-Instruct", ("here", "Qwen/Qwen2.5-VL-7B-Instruct")),
        ("transformers:openai/some-vlm", ("here", "openai/some-vlm")),
        ("litellm:Qwen/Qwen2.5-VL-7B-Instruct", ("litellm", "Qwen/Qwen2.5-VL-7B-Instruct")),
        ("world/oracle", ("world", "world/oracle")),
        ("litellm:world/oracle", ("litellm", "world/oracle")),
    ],
)
def test_an_llm_is_found_by_its_id(id, found):
    assert find_llm(LLMOptions(llm=id)) == found


@pytest.mark.parametrize(
    ("id", "found"),
    [
        ("black-forest-labs/FLUX.2-klein-9B", ("here", "black-forest-labs/FLUX.2-klein-9B")),
        ("timbrooks/instruct-pix2pix", ("here", "timbrooks/instruct-pix2pix")),
        ("diffusers:stability/some-editor", ("here", "stability/some-editor")),
        ("gemini/gemini-2.5-flash-image", ("litellm", "gemini/gemini-2.5-flash-image")),
        ("openai/gpt-image-1", ("litellm", "openai/gpt-image-1")),
        ("world", ("world", "world")),
    ],
)
def test_an_editor_is_found_by_its_id(id, found):
    assert find_editor(EditorOptions(editor=id)) == found


def url_of(scene: scenes.Scene) -> str:
    return "data:image/png;base64," + base64.b64encode(renderer.to_png(renderer.render(scene))).decode()


@pytest.mark.parametrize("id", ["world/oracle", "litellm:world/oracle"])
def test_an_oracle_that_errs_has_answers_of_its_own(id, tmp_path):
    two, three = (
        scenes.Scene(scenes.Thing("circle", "red", n, "small", "running"), None, None, "day") for n in (2, 3)
    )
    shown = {role: url_of(scene) for role, scene in {"gt": two, "fp": three}.items()}

    async def ask(**faults) -> tuple[str, str | None]:
        with Journal(tmp_path / "journal.jsonl") as journal:
            chat = open_chat(LLMOptions(llm=id, **faults), journal)
            return chat.model, (await audit(chat, "t2i", q="Two red circles by day", **shown)).drop_reason

    told = [asyncio.run(ask(**faults)) for faults in ({}, {"verdict_noise": 1.0}, {})]
    assert told[0] == told[2] == ("world/oracle", None)
    assert told[1][0] == "world/oracle?verdict_noise=1" and told[1][1] is not None
    with Journal(tmp_path / "other.jsonl") as journal:
        chat = open_chat(LLMOptions(llm=id, verdict_noise=0.2, malformed_rate=0.1), journal)
    assert chat.model == "world/oracle?verdict_noise=0.2&malformed_rate=0.1"


def test_a_folder_is_a_model_that_lies_here(tmp_path, monkeypatch):
    (tmp_path / "openai" / "tuned").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_llm(LLMOptions(llm="openai/tuned")) == ("here", "openai/tuned")
    assert find_editor(EditorOptions(editor=str(tmp_path))) == ("here", str(tmp_path))


def test_with_an_endpoint_it_is_always_litellm(tmp_path):
    options = LLMOptions(llm="world/oracle", llm_base_url="http://127.0.0.1:1/v1")
    assert find_llm(options) == ("litellm", "world/oracle")
    assert find_editor(EditorOptions(editor="x/y", editor_base_url="http://127.0.0.1:1/v1")) == ("litellm", "x/y")


def test_digests_tell_weights_apart_that_lie_in_one_folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    llm, editor = LLMOptions(llm=str(tmp_path)), EditorOptions(editor="world")
    before = local_weights(llm, editor)
    (tmp_path / "model.safetensors").write_bytes(b"two")
    after = local_weights(llm, editor)
    assert before.keys() == after.keys() == {"llm_digest"} and before != after
    assert local_weights(LLMOptions(llm="some/vlm"), editor) == {}


def test_options_reach_the_editor():
    assert isinstance(
        open_editor(EditorOptions(editor="world", drift=0.5), LLMOptions(llm="world/oracle")), WorldEditor
    )
    options = EditorOptions(
        editor="gemini/gemini-2.5-flash-image", editor_size=256, editor_base_url="http://127.0.0.1:1"
    )
    editor = open_editor(options, LLMOptions(llm="world/oracle", timeout=3.0))
    assert isinstance(editor, HostedEditor)
    assert (editor.size, editor.timeout, editor.base_url) == (256, 3.0, "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch": True, "llm": "world/oracle"}, "got --llm world/oracle, which answers at once"),
        ({"reasoning_effort": "none", "llm": "world/oracle"}, "needs a provider, and --llm world/oracle has none"),
        ({"llm": "transformers:no/such-model"}, "no vision-language model could be loaded"),
        ({"llm": "litellm:no/such-model"}, "names no provider"),
        ({"llm": "world/oracel"}, "`world/oracel` is no folder, and the toy world has one LLM: world/oracle."),
        ({"llm": "world"}, "the toy world has one LLM: world/oracle"),
        ({"llm": "hosted_vllm/mine", "max_usd": 1.0}, "price"),
    ],
)
def test_what_cannot_be_opened_is_a_users_mistake(options, complaint, tmp_path):
    with Journal(tmp_path / "journal.jsonl") as journal, pytest.raises(UserError, match=complaint):
        open_chat(LLMOptions(**options), journal)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("black_forest_labs/flux-kontext-pro", ": black_forest_labs sends the address of an image.* Give"),
        ("recraft/recraftv3", ": recraft sends the address of an image"),
        ("fal_ai/flux-lora-depth", ": fal_ai sends the address of an image"),
        ("nobody/knows-it", " names no provider"),
    ],
)
def test_a_provider_that_cannot_edit_is_the_users_mistake(model, complaint):
    with pytest.raises(UserError, match=f"--editor {model}{complaint}"):
        open_editor(EditorOptions(editor=f"litellm:{model}"), LLMOptions(llm="world/oracle"))


def test_the_toy_world_has_one_editor():
    with pytest.raises(UserError, match="`world/editor` is no folder, and the toy world has one image editor: world."):
        find_editor(EditorOptions(editor="world/editor"))


@pytest.mark.parametrize(
    ("type", "options", "complaint"),
    [
        (LLMOptions, {"concurrency": 0}, "`concurrency` must be at least 1, got 0"),
        (LLMOptions, {"requests_per_minute": 0}, "`requests_per_minute` must be at least 1, got 0"),
        (LLMOptions, {"timeout": -1.0}, "`timeout` must be above 0, got -1"),
        (LLMOptions, {"max_error_rate": 1.5}, "`max_error_rate` must be at least 0 and at most 1, got 1.5"),
        (LLMOptions, {"max_usd": -1.0}, "`max_usd` must be at least 0, got -1"),
        (LLMOptions, {"llm": "openai/gpt-4o", "malformed_rate": 0.1}, "faults of the toy world's oracle"),
        (EditorOptions, {"editor_size": 32}, "`editor_size` must be at least 64, got 32"),
        (EditorOptions, {"editor_steps": 0}, "`editor_steps` must be at least 1, got 0"),
        (EditorOptions, {"editor": "some/editor", "drift": 0.1}, "faults of the toy world's editor"),
        (SynthesisOptions, {"candidates": 0}, "`candidates` must be at least 1, got 0"),
        (SynthesisOptions, {"workers": 0}, "`workers` must be at least 1, got 0"),
        (SynthesisOptions, {"image_side": 31}, "`image_side` must be at least 32, got 31"),
    ],
)
def test_impossible_options(type, options, complaint):
    needed = {LLMOptions: {"llm": "world/oracle"}, EditorOptions: {"editor": "world"}, SynthesisOptions: {}}
    with pytest.raises(UserError, match=complaint):
        type(**needed[type] | options)
