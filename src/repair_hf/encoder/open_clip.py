"""Export a CLIP to open_clip's format, which CLIP_benchmark and many other tools load.

`open_clip.create_model_and_transforms("local-dir:FOLDER")` loads the folder: weights under open_clip's names,
architecture and preprocessing in `open_clip_config.json`, and the tokenizer's files. The same pixels and tokens give
the same vectors.

open_clip differs in two ways for every checkpoint. It repairs mojibake and HTML entities in captions before it
tokenizes them. Where a resized image is larger than the crop by an odd number of pixels, its crop may lie one pixel
further right or down.

SigLIP is not supported. open_clip builds its image tower by a timm name. Under half of these names, including SigLIP's
first sizes, the activation is exact GELU, and `transformers` uses the tanh approximation: vectors would differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPModel, CLIPTextConfig, CLIPVisionConfig

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.runtime.stage import Stage

CONFIG_FILE, WEIGHTS_FILE = "open_clip_config.json", "open_clip_model.safetensors"
IS_QUICK = {"quick_gelu": True, "gelu": False}  # open_clip has one activation for both towers
INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # by Pillow's numbers
BYTE = 1 / 255
LEGACY_EOS = 2  # in a configuration it means: the end token has the highest id
USUAL_EPS = 1e-5

RENAMED = {  # parts of a weight's name, one after the other
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "vision_model.embeddings.patch_embedding": "visual.conv1",
    "vision_model.embeddings": "visual",
    "text_model.embeddings.": "",
    "vision_model.encoder.layers": "visual.transformer.resblocks",
    "text_model.encoder.layers": "transformer.resblocks",
    "vision_model.pre_layrnorm": "visual.ln_pre",
    "vision_model.post_layernorm": "visual.ln_post",
    "text_model.final_layer_norm": "ln_final",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "visual_projection.weight": "visual.proj",
    "text_projection.weight": "text_projection",
}


def export_open_clip(model: str | Path, output: str | Path) -> dict[str, Any]:
    """Write a retriever for open_clip, as `repair-hf export open_clip` does.

    Args:
        model: Hub id or folder of a CLIP, or `world/base`.
        output: Folder to write; a finished one is left as it is.

    Returns:
        `parameters` (how many), and the content of `open_clip_config.json`.

    Raises:
        UserError: If the format cannot represent the model, or the folder holds something else.

    Example:
        >>> export_open_clip("runs/train", "runs/open_clip")
    """
    encoder, output = DualEncoder.from_pretrained(model, device="cpu"), Path(output)
    size = sum(parameter.numel() for parameter in encoder.model.parameters())
    name = output.resolve().name
    found = {"parameters": size, **open_clip_config(encoder, name)}
    inputs = {"model": str(model), "model_digest": encoder.digest}
    stage = Stage("export open_clip", output, inputs=inputs, words=["--model", str(model)])
    return stage.run(lambda folder: found | write_open_clip(encoder, output, name=name))


def write_open_clip(encoder: DualEncoder, folder: str | Path, *, name: str) -> dict[str, Any]:
    """Write a dual encoder in open_clip's format, in float32.

    Returns the content of `open_clip_config.json`. `name` is a Hub repository id, where open_clip looks for the
    tokenizer of a model on the Hub. In a local folder it uses the tokenizer beside the weights.

    Raises:
        UserError: If the format cannot represent the encoder.
    """
    folder, config = Path(folder), open_clip_config(encoder, name)
    weights = open_clip_weights(encoder.model.state_dict(), encoder.preprocessor.max_length)
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{WEIGHTS_FILE}.tmp"
    save_file({key: tensor.float().cpu().contiguous() for key, tensor in weights.items()}, draft)
    draft.replace(folder / WEIGHTS_FILE)
    encoder.preprocessor.processor.tokenizer.save_pretrained(folder)
    write_atomically(folder / CONFIG_FILE, json.dumps(config, indent=2) + "\n")
    return config


def open_clip_config(encoder: DualEncoder, name: str) -> dict[str, Any]:
    """Return architecture and preprocessing as open_clip's configuration; see `write_open_clip`."""
    if type(encoder.model) is not CLIPModel:
        raise _cannot(f"it supports CLIPModel, got {type(encoder.model).__name__}")
    config: Any = encoder.model.config
    vision, text = config.vision_config, config.text_config
    if vision.hidden_act != text.hidden_act or vision.hidden_act not in IS_QUICK:
        raise _cannot(f"it supports gelu or quick_gelu in both towers, got {vision.hidden_act} and {text.hidden_act}")
    images = {"image_size": vision.image_size, "patch_size": vision.patch_size}
    length = encoder.preprocessor.max_length
    texts = {"context_length": length, "vocab_size": text.vocab_size, "hf_tokenizer_name": name}
    heads = {"head_width": vision.hidden_size // vision.num_attention_heads}
    architecture = {
        "embed_dim": config.projection_dim,
        "quick_gelu": IS_QUICK[vision.hidden_act],
        "vision_cfg": images | heads | _tower(vision),
        "text_cfg": texts | {"heads": text.num_attention_heads} | _tower(text) | _pooling(text),
    }
    return {"model_cfg": architecture, "preprocess_cfg": _preprocessing(encoder.preprocessor, vision.image_size)}


def open_clip_weights(state: Mapping[str, Tensor], context_length: int) -> dict[str, Tensor]:
    """Rename the weights of a `CLIPModel` for open_clip, which expects exactly `context_length` positions."""
    found: dict[str, Tensor] = {}
    for key, tensor in state.items():
        for ours, theirs in RENAMED.items():
            key = key.replace(ours, theirs)
        found[key] = tensor
    for name in ("visual.proj", "text_projection"):
        found[name] = found[name].T
    for key in [key for key in found if ".self_attn.q_proj." in key]:
        block, kind = key.split(".self_attn.q_proj.")
        # open_clip has one matrix for queries, keys and values
        parts = [found.pop(f"{block}.self_attn.{part}_proj.{kind}") for part in "qkv"]
        found[f"{block}.attn.in_proj_{kind}"] = torch.cat(parts)
    found["positional_embedding"] = found["positional_embedding"][:context_length]
    return found


def _tower(config: CLIPVisionConfig | CLIPTextConfig) -> dict[str, Any]:
    ratio = config.intermediate_size / config.hidden_size
    if int(config.hidden_size * ratio) < config.intermediate_size:  # open_clip multiplies and truncates
        ratio = math.nextafter(ratio, math.inf)
    tower = {"layers": config.num_hidden_layers, "width": config.hidden_size, "mlp_ratio": ratio}
    return tower if config.layer_norm_eps == USUAL_EPS else tower | {"norm_kwargs": {"eps": config.layer_norm_eps}}


def _pooling(text: CLIPTextConfig) -> dict[str, Any]:
    """Say where a caption's vector is read if not at the highest token id."""
    is_highest = text.eos_token_id in (LEGACY_EOS, text.vocab_size - 1)
    return {} if is_highest else {"pool_type": "eos", "eos_id": text.eos_token_id}


def _preprocessing(preprocessor: Preprocessor, side: int) -> dict[str, Any]:
    """Return open_clip's preprocessing: shorter edge and center crop, or squashed to a square."""
    settings = json.loads(preprocessor.processor.image_processor.to_json_string())
    square, crops = {"height": side, "width": side}, settings.get("do_center_crop", False)
    is_cut = crops and settings["size"] == {"shortest_edge": side} and settings["crop_size"] == square
    is_squeezed = not crops and settings["size"] == square
    steps = [step for step in ("do_resize", "do_rescale", "do_normalize") if not settings[step]]
    if steps or not (is_cut or is_squeezed):
        given = {key: settings.get(key) for key in ("size", "do_center_crop", "crop_size", *steps)}
        raise _cannot(f"it resizes, crops and normalizes to {side} x {side}, the image processor has {given}")
    if settings["resample"] not in INTERPOLATIONS or not math.isclose(settings["rescale_factor"], BYTE):
        given = {key: settings[key] for key in ("resample", "rescale_factor")}
        raise _cannot(f"it resizes by bicubic or bilinear (3 or 2) and divides by 255, the processor has {given}")
    return {
        "mean": settings["image_mean"],
        "std": settings["image_std"],
        "interpolation": INTERPOLATIONS[settings["resample"]],
        "resize_mode": "shortest" if is_cut else "squash",
    }


def _cannot(reason: str) -> UserError:
    return UserError(
        f"open_clip's format cannot represent this model: {reason}. `repair-hf evaluate` needs no export."
    )
