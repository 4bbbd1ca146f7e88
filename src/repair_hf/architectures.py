"""Dual encoders of well-known sizes with random weights, to measure with: speed does not depend on what a model has learnt.

In:  a size, captions to learn a vocabulary from.
Out: the model and its preprocessor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from transformers import CLIPConfig, CLIPModel

from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.toyworld import base

Architecture = Literal["world", "vit-b-32", "vit-l-14"]


def random_weights(architecture: Architecture, captions: Iterable[str]) -> tuple[CLIPModel, Preprocessor]:
    """The toy world's retriever, or CLIP's own sizes with its image side and its 77 tokens, but a small vocabulary."""
    processor = base.build_processor(captions)
    torch.manual_seed(0)
    if architecture == "world":
        model = base.build_model(processor)
        return model, Preprocessor(processor, model.config)
    model = CLIPModel(_config(architecture, processor.tokenizer))
    side = model.config.vision_config.image_size
    processor.image_processor.size = {"shortest_edge": side}
    processor.image_processor.crop_size = {"height": side, "width": side}
    processor.tokenizer.model_max_length = model.config.text_config.max_position_embeddings
    return model, Preprocessor(processor, model.config)


def _config(architecture: Architecture, tokenizer: Any) -> CLIPConfig:
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    if architecture == "vit-b-32":
        return CLIPConfig(text_config=ids)
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768}
    return CLIPConfig(
        text_config=text | ids, vision_config=vision | {"patch_size": 14, "projection_dim": 768}, projection_dim=768
    )
