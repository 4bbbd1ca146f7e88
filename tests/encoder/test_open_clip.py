"""The open_clip export gives the same vectors in a plain implementation; tests/crosscheck runs open_clip itself."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.open_clip import open_clip_config, write_open_clip
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.hub.files import pack_model
from repair_hf.runtime.options import UserError

CAPTIONS = ["a red circle on grey paper", "the picture shows one square, painted blue " * 9]


@pytest.fixture
def encoder(clip, clip_folder) -> DualEncoder:
    return DualEncoder(clip, Preprocessor.from_pretrained(clip_folder), device="cpu")


def transformer(weights, name, x, cfg, heads, is_quick, mask):
    """Pre-norm blocks with torch's multi-head attention."""
    for layer in range(cfg["layers"]):
        block = f"{name}.resblocks.{layer}."
        part = {key[len(block) :]: value for key, value in weights.items() if key.startswith(block)}
        normed = F.layer_norm(x, x.shape[-1:], part["ln_1.weight"], part["ln_1.bias"])
        attention = torch.nn.MultiheadAttention(x.shape[-1], heads, batch_first=True)
        attention.load_state_dict({key[5:]: value for key, value in part.items() if key.startswith("attn.")})
        x = x + attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        normed = F.layer_norm(x, x.shape[-1:], part["ln_2.weight"], part["ln_2.bias"])
        inner = F.linear(normed, part["mlp.c_fc.weight"], part["mlp.c_fc.bias"])
        assert inner.shape[-1] == int(cfg["width"] * cfg["mlp_ratio"])
        inner = inner * torch.sigmoid(1.702 * inner) if is_quick else F.gelu(inner)
        x = x + F.linear(inner, part["mlp.c_proj.weight"], part["mlp.c_proj.bias"])
    return x


def image_vectors(weights, cfg, values):
    vision = cfg["vision_cfg"]
    x = F.conv2d(values, weights["visual.conv1.weight"], stride=vision["patch_size"]).flatten(2).mT
    x = torch.cat([weights["visual.class_embedding"].expand(len(x), 1, -1), x], 1)
    x = x + weights["visual.positional_embedding"]
    x = F.layer_norm(x, x.shape[-1:], weights["visual.ln_pre.weight"], weights["visual.ln_pre.bias"])
    heads = vision["width"] // vision["head_width"]
    x = transformer(weights, "visual.transformer", x, vision, heads, cfg["quick_gelu"], None)
    x = F.layer_norm(x, x.shape[-1:], weights["visual.ln_post.weight"], weights["visual.ln_post.bias"])
    return F.normalize(x[:, 0] @ weights["visual.proj"], dim=-1)


def text_vectors(weights, cfg, ids):
    text, rows = cfg["text_cfg"], torch.arange(len(ids))
    assert ids.shape[1] == text["context_length"] == len(weights["positional_embedding"])
    x = weights["token_embedding.weight"][ids] + weights["positional_embedding"]
    mask = torch.full((ids.shape[1],) * 2, float("-inf")).triu(1)
    x = transformer(weights, "transformer", x, text, text["heads"], cfg["quick_gelu"], mask)
    x = F.layer_norm(x, x.shape[-1:], weights["ln_final.weight"], weights["ln_final.bias"])
    end = (ids == text["eos_id"]).int().argmax(1) if text.get("pool_type") == "eos" else ids.argmax(1)
    return F.normalize(x[rows, end] @ weights["text_projection"], dim=-1)


@pytest.mark.parametrize("kind", ["quick_gelu", "gelu", "highest id", "shorter captions"])
def test_the_same_vectors_in_a_plain_implementation(kind, encoder, clip, tmp_path):
    with torch.no_grad():
        for parameter in clip.parameters():  # no bias is 0 and no norm is 1, so a missing one shows
            parameter += 0.1 * torch.randn_like(parameter)
    if kind == "gelu":
        for module in clip.modules():
            if hasattr(module, "activation_fn"):
                module.activation_fn = torch.nn.GELU()
        clip.config.vision_config.hidden_act = clip.config.text_config.hidden_act = "gelu"
    if kind == "highest id":  # makes transformers read a caption there
        clip.text_model.eos_token_id = clip.config.text_config.eos_token_id = 2
    if kind == "shorter captions":
        encoder.preprocessor.max_length = 20
    config = write_open_clip(encoder, tmp_path, name="me/clip")
    assert json.loads((tmp_path / "open_clip_config.json").read_text()) == config
    weights, architecture = load_file(tmp_path / "open_clip_model.safetensors"), config["model_cfg"]
    assert architecture["quick_gelu"] is (kind != "gelu")
    assert ("pool_type" in architecture["text_cfg"]) is (kind != "highest id")
    assert (tmp_path / "tokenizer.json").is_file() and weights["logit_scale"] == clip.logit_scale
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    pixels = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    padding = {"padding": "max_length", "truncation": True, "max_length": encoder.preprocessor.max_length}
    ids = encoder.preprocessor.processor.tokenizer(CAPTIONS, return_tensors="pt", **padding)
    with torch.no_grad():
        images = image_vectors(weights, architecture, encoder.preprocessor.normalize(pixels))
        texts = text_vectors(weights, architecture, ids["input_ids"])
    torch.testing.assert_close(images, torch.from_numpy(encoder.embed_images(pixels)), atol=1e-5, rtol=0)
    torch.testing.assert_close(texts, torch.from_numpy(encoder.embed_texts(CAPTIONS)), atol=1e-5, rtol=0)


def test_preprocessing_configuration(encoder):
    processor = encoder.preprocessor.processor.image_processor
    colours = {"mean": list(processor.image_mean), "std": list(processor.image_std)}
    resizing = {"interpolation": "bicubic", "resize_mode": "shortest"}
    assert open_clip_config(encoder, "x")["preprocess_cfg"] == colours | resizing
    processor.size, processor.do_center_crop, processor.resample = {"height": 32, "width": 32}, False, 2
    squashed = open_clip_config(encoder, "x")["preprocess_cfg"]
    assert (squashed["interpolation"], squashed["resize_mode"]) == ("bilinear", "squash")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("do_normalize", False, r"resizes, crops and normalizes to 32 x 32, .*'do_normalize': False"),
        ("size", {"shortest_edge": 40}, r"has \{'size': \{'shortest_edge': 40\}"),
        ("resample", 1, r"bicubic or bilinear \(3 or 2\) .*'resample': 1"),
        ("rescale_factor", 1.0, r"divides by 255, .*'rescale_factor': 1.0"),
    ],
)
def test_refuses_pixels_that_open_clip_would_not_make(setting, value, message, encoder):
    setattr(encoder.preprocessor.processor.image_processor, setting, value)
    with pytest.raises(UserError, match=f"cannot represent this model: .*{message}.*needs no export"):
        open_clip_config(encoder, "x")


def test_refuses_other_activations_and_architectures(encoder, siglip_folder, tmp_path, capsys):
    encoder.model.config.text_config.hidden_act = "gelu"
    with pytest.raises(UserError, match="gelu or quick_gelu in both towers, got quick_gelu and gelu"):
        write_open_clip(encoder, tmp_path / "out", name="x")
    assert not (tmp_path / "out").exists()
    words = ["export", "open_clip", str(siglip_folder), "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert "supports CLIPModel, got SiglipModel" in capsys.readouterr().err


def test_the_command_writes_a_folder(tmp_path, capsys):
    words = ["export", "open_clip", "world/base", "--output", str(tmp_path / "my base")]
    assert main(words) == 0
    files = {path.name for path in (tmp_path / "my base").iterdir()}
    assert {"open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json", "summary.json"} <= files
    written = (tmp_path / "my base" / "open_clip_model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    assert main(words) == 0  # is done already
    assert (tmp_path / "my base" / "open_clip_model.safetensors").stat().st_mtime_ns == written
    shown = capsys.readouterr().out
    assert f"create_model_and_transforms('local-dir:{tmp_path}/my base')" in shown
    assert f"--model 'local-dir:{tmp_path}/my base' " in shown


def test_a_push_takes_both_formats(clip_folder, tmp_path):
    plain = pack_model(clip_folder, "me/clip", scratch=tmp_path)
    assert not any("open_clip" in name for name in plain.files)
    assert "open_clip_*" in plain.replaces  # what an earlier push sent is of other weights
    assert "`repair-hf export open_clip me/clip --output FOLDER`" in plain.card
    both = pack_model(clip_folder, "me/clip", scratch=tmp_path, open_clip=True)
    assert set(both.files) - set(plain.files) == {"open_clip_config.json", "open_clip_model.safetensors"}
    text = json.loads(both.files["open_clip_config.json"].read_text())["model_cfg"]["text_cfg"]
    assert text["hf_tokenizer_name"] == "me/clip"  # where open_clip looks for the tokenizer
    assert 'create_model_and_transforms("hf-hub:me/clip")' in both.card
