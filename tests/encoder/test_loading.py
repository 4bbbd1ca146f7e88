"""A model whose files are missing, damaged or of another program gives an error of one line that names the folder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import BertConfig

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.opening import open_retriever
from repair_hf.runtime.options import UserError

WEIGHTS, CONFIG, TOKENS, PROCESSOR = "model.safetensors", "config.json", "tokenizer.json", "processor_config.json"
TOKENIZER = "tokenizer_config.json"


class Attack:
    def __reduce__(self):
        return os.mkdir, ("attacked",)


def weights(change):
    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def lose_ten(tensors) -> None:
    for name in sorted(name for name in tensors if name.startswith("text_model.encoder"))[:10]:
        del tensors[name]


def cut(tensors) -> None:
    tensors["text_projection.weight"] = tensors["text_projection.weight"][:5].clone()


def write(name: str, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


def halve(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:5000])


def drop(*names: str):
    return lambda folder: [(folder / name).unlink() for name in names]


def only(name: str, content: bytes, missing: str = CONFIG):
    def damage(folder: Path) -> None:
        (folder / missing).unlink()
        (folder / name).write_bytes(content)

    return damage


def settings(name: str, part: str, value):
    def damage(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(found | {part: value}))

    return damage


BROKEN = [
    (weights(lose_ten), "lacks 10 weights, .* such as text_model.encoder.layers.0.layer_norm1.bias, "),
    (weights(cut), "lacks 1 weights, or they have another shape than its config.json says, such as text_projection"),
    (halve, "file not fully covered. Download it again"),
    (only("pytorch_model.bin", pickle.dumps(Attack()), WEIGHTS), "pickle that is damaged or would run code. Give"),
    (only("pytorch_model.bin", b"PK\x03\x04" * 99, WEIGHTS), "failed reading zip archive"),
    (drop(WEIGHTS), "no file named model.safetensors.* or give a folder"),
    (drop(CONFIG), "`model_type` key in its config.json. Download it again, or give a folder"),
    (write(CONFIG, b"[" * 100_000), "recursion depth.*give a folder"),
    (drop(TOKENS), r"lacks its tokenizer: the one found has 2 tokens, .* Add tokenizer.json: `AutoTokenizer"),
    (write(TOKENS, b"\x00\xff"), "as the processor of a dual encoder: .* give a folder"),
    (settings(TOKENS, "model", {"type": "BPE"}), "lacks its tokenizer"),
    (settings(TOKENIZER, "pad_token", None), "tokenizer without a padding token. Name one as `pad_token` in its tok"),
    (drop(PROCESSOR), "Can't load image processor"),
    (settings(PROCESSOR, "image_processor", {"size": "x"}), "as the processor of a dual encoder"),
    (write("adapter_config.json", b"{}"), "an adapter whose adapter_config.json names no base; add `base_model_name"),
    (only("modules.json", b"[]"), r"a sentence-transformers model.* `repair-hf export triplets` \(modules.json is"),
    (only("open_clip_config.json", b"{}"), "is an open_clip model; give its version for transformers"),
]


@pytest.mark.parametrize(("damage", "complaint"), BROKEN)
def test_a_broken_model_is_one_line(damage, complaint, clip_folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(clip_folder, tmp_path / "model")
    damage(folder)
    with pytest.raises(UserError, match=complaint) as error:
        DualEncoder.from_pretrained(folder, device="cpu")
    said, shown = str(error.value), capfd.readouterr()
    assert said.startswith(f"`{folder}` ") and said.endswith((".", ")")) and "\n" not in said
    assert len(said) < 500 + len(str(folder))
    assert (shown.out + shown.err).replace("Loading weights", "").strip(" :|0123456789%/?it,\r\n[]<s.█") == ""
    assert not (tmp_path / "attacked").exists()


def test_files_of_other_programs_beside_a_checkpoint_are_no_harm(clip_folder, tmp_path):
    folder = shutil.copytree(clip_folder, tmp_path / "model")
    for name in ("open_clip_config.json", "modules.json"):
        (folder / name).write_text("[]")
    weights(lambda tensors: tensors.update({"text_model.embeddings.old": tensors["logit_scale"].clone()}))(folder)
    assert DualEncoder.from_pretrained(folder, device="cpu").digest


def test_a_model_of_another_family_is_named(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="is of the kind bert, and a model with .*needed. Give such a model"):
        open_retriever(tmp_path, device="cpu")


CODE = """
from pathlib import Path

Path("attacked").mkdir()
"""


@pytest.mark.parametrize("name", [CONFIG, PROCESSOR, TOKENIZER])
def test_code_of_a_repository_is_never_run(name, clip_folder, tmp_path, monkeypatch):
    """transformers asks whether to run it, and this user says yes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda question: "y")
    folder = shutil.copytree(clip_folder, tmp_path / "model")
    (folder / "custom.py").write_text(CODE)
    names = ("AutoConfig", "AutoModelForZeroShotImageClassification", "AutoProcessor", "AutoImageProcessor")
    own = {"auto_map": dict.fromkeys(names, "custom.Own") | {"AutoTokenizer": ["custom.Own", "custom.Own"]}}
    own |= {"model_type": "own", "processor_class": "Own", "tokenizer_class": "Own"}
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | own))
    refused = pytest.raises(UserError, match="its repository holds code, which this program does not run")
    with nullcontext() if name == TOKENIZER else refused:  # a tokenizer.json needs no class of its own
        DualEncoder.from_pretrained(folder, device="cpu")
    assert not (tmp_path / "attacked").exists()


def test_an_id_that_is_not_cached_says_in_full_what_to_do_offline():
    with pytest.raises(
        UserError, match="`nobody/clip` is not .* offline and has not cached it. Run `hf download nobody"
    ):
        DualEncoder.from_pretrained("nobody/clip")
