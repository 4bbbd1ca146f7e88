"""The toy world's base retriever: a small CLIP trained from scratch, in place of a pretrained CLIP.

`benchmarks/pretrain.py` trains these models. The shipped retrievers (`encoder.shipped`) were made with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor, CLIPTokenizer

START, END = "<|startoftext|>", "<|endoftext|>"
SIDE, PATCH, CONTEXT = 64, 16, 40
WIDTH, HEAD = 128, 32  # width of the shipped retrievers' vectors, and of one attention head


def build_processor(captions: Iterable[str]) -> CLIPProcessor:
    """Build a CLIP processor with a byte-pair vocabulary learnt from `captions`; pictures are resized to 64 px."""
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>", continuing_subword_prefix=""))
    learner.normalizer = normalizers.Lowercase()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=" ", behavior="removed"),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=1000, end_of_word_suffix="</w>", show_progress=False)
    learner.train_from_iterator(sorted(set(captions)), trainer)
    learnt: Any = [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [
        *alphabet,
        *(letter + "</w>" for letter in alphabet),
        *dict.fromkeys(a + b for a, b in learnt),
        START,
        END,
    ]
    tokenizer = CLIPTokenizer(
        vocab={word: row for row, word in enumerate(dict.fromkeys(words))}, merges=learnt, model_max_length=CONTEXT
    )
    pictures = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_mean=[0.5] * 3,
        image_std=[0.25] * 3,
    )
    return CLIPProcessor(image_processor=pictures, tokenizer=tokenizer)


def build_model(processor: CLIPProcessor, *, width: int = WIDTH, seed: int = 0) -> CLIPModel:
    """Build a CLIP with random weights for a processor of `build_processor`: 3 vision and 2 text layers.

    `width` is that of both towers and of the vectors, a multiple of 32. Width 128 has 0.9 million weights.
    """
    layers = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": width // HEAD,
        "hidden_act": "gelu",
    }
    tokenizer = processor.tokenizer
    text = layers | {
        "num_hidden_layers": 2,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = layers | {"num_hidden_layers": 3, "image_size": SIDE, "patch_size": PATCH}
    torch.manual_seed(seed)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=width))
