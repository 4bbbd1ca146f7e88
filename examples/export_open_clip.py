"""Write a trained CLIP for open_clip, and so for CLIP_benchmark and many other tools.

    python examples/export_open_clip.py

Change MODEL to a folder of `repair-hf train` or a Hub id of a CLIP, and REPO if you upload the folder. The same pixels
and tokens give the same vectors. open_clip cleans HTML entities in captions, and may crop one pixel further right or
down. SigLIP cannot be written: open_clip builds its image tower with another activation.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import CLIPModel

from repair_hf import DualEncoder

MODEL, FOLDER = "world/base", "runs/examples/open_clip"
REPO = "me/clip"  # where open_clip looks for the tokenizer of a model on the Hub
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


def main() -> None:
    encoder = DualEncoder.from_pretrained(MODEL, device="cpu")
    export(encoder, Path(FOLDER))
    print(f"open_clip.create_model_and_transforms('local-dir:{FOLDER}') loads it.")
    print(f"clip_benchmark eval --model local-dir:{FOLDER} --pretrained '' --no_amp ... measures it.")


def export(encoder: DualEncoder, folder: Path) -> dict[str, Any]:
    """Write weights, configuration and tokenizer; return the configuration."""
    if type(encoder.model) is not CLIPModel:
        raise TypeError(f"open_clip's format takes a CLIPModel, got {type(encoder.model).__name__}.")
    config = {"model_cfg": architecture(encoder), "preprocess_cfg": preprocessing(encoder)}
    folder.mkdir(parents=True, exist_ok=True)
    weights = renamed(encoder.model.state_dict(), encoder.preprocessor.max_length)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "open_clip_model.safetensors")
    encoder.preprocessor.processor.tokenizer.save_pretrained(folder)
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2))
    return config


def architecture(encoder: DualEncoder) -> dict[str, Any]:
    vision, text = encoder.model.config.vision_config, encoder.model.config.text_config
    towers = {
        name: {
            "layers": tower.num_hidden_layers,
            "width": tower.hidden_size,
            # a little more, because open_clip multiplies and rounds down
            "mlp_ratio": math.nextafter(tower.intermediate_size / tower.hidden_size, math.inf),
            "norm_kwargs": {"eps": tower.layer_norm_eps},
        }
        for name, tower in {"vision_cfg": vision, "text_cfg": text}.items()
    }
    towers["vision_cfg"] |= {"image_size": vision.image_size, "patch_size": vision.patch_size}
    towers["vision_cfg"] |= {"head_width": vision.hidden_size // vision.num_attention_heads}
    towers["text_cfg"] |= {"context_length": encoder.preprocessor.max_length, "vocab_size": text.vocab_size}
    towers["text_cfg"] |= {"heads": text.num_attention_heads, "hf_tokenizer_name": REPO}
    if text.eos_token_id not in (2, text.vocab_size - 1):  # else a caption is read at its highest id
        towers["text_cfg"] |= {"pool_type": "eos", "eos_id": text.eos_token_id}
    return towers | {
        "embed_dim": encoder.model.config.projection_dim,
        "quick_gelu": vision.hidden_act == "quick_gelu",
    }


def preprocessing(encoder: DualEncoder) -> dict[str, Any]:
    processor = encoder.preprocessor.processor.image_processor
    return {
        "mean": list(processor.image_mean),
        "std": list(processor.image_std),
        "interpolation": {2: "bilinear", 3: "bicubic"}[processor.resample],
        "resize_mode": "shortest" if processor.do_center_crop else "squash",
    }


def renamed(state: dict[str, torch.Tensor], context_length: int) -> dict[str, torch.Tensor]:
    """Rename the weights, and join queries, keys and values: open_clip has one matrix for them."""
    weights = {}
    for name, tensor in state.items():
        for ours, theirs in RENAMED.items():
            name = name.replace(ours, theirs)
        weights[name] = tensor.float()
    for name in ("visual.proj", "text_projection"):
        weights[name] = weights[name].T
    for name in [name for name in weights if ".self_attn.q_proj." in name]:
        block, kind = name.split(".self_attn.q_proj.")
        parts = [weights.pop(f"{block}.self_attn.{part}_proj.{kind}") for part in "qkv"]
        weights[f"{block}.attn.in_proj_{kind}"] = torch.cat(parts)
    weights["positional_embedding"] = weights["positional_embedding"][:context_length]
    return weights


if __name__ == "__main__":
    main()
