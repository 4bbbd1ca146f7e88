"""What `examples/export_open_clip.py` writes gives the same vectors; tests/crosscheck runs open_clip itself."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from examples.export_open_clip import export
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor

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
    config = export(encoder, tmp_path)
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
