"""Common backbones with their published configuration and random weights: vectors, pixels and tokens.

Towers have one narrow layer and a small vocabulary, and everything else has its real size. The slow tests use whole
ones. No test loads published weights.
"""

from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import transformers
from transformers import (
    AutoProcessor,
    BertConfig,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPProcessor,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
    SiglipProcessor,
    VisionTextDualEncoderConfig,
    VisionTextDualEncoderModel,
    VisionTextDualEncoderProcessor,
    ViTConfig,
)

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor

OPENAI = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
BILINEAR, BICUBIC = 2, 3
CAPTIONS = ["a red circle on grey paper", "the picture shows one triangle, painted blue"]


def tower(width: int, inner: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip(names, (width, inner, layers, heads), strict=True)) | others


def clip(size: tuple[int, ...], image: int, patch: int, text: dict[str, Any], act: str, dim: int) -> tuple:
    vision = tower(*size, image_size=image, patch_size=patch, hidden_act=act)
    return CLIPModel, vision, text | {"hidden_act": act}, dim, OPENAI | {"resample": BICUBIC}


def siglip(resample: int = BICUBIC, **others: Any) -> tuple:
    vision, text = tower(*B, image_size=224, patch_size=16), tower(768, 3072, 12, 12, max_position_embeddings=64)
    return SiglipModel, vision, text | {"vocab_size": 32000} | others, 768, HALF | {"resample": resample}


B, L = (768, 3072, 12, 12), (1024, 4096, 24, 16)
B_TEXT = tower(512, 2048, 12, 8, max_position_embeddings=77, vocab_size=49408)
L_TEXT = tower(768, 3072, 12, 12, max_position_embeddings=77, vocab_size=49408)
BACKBONES = {  # class, both towers, length of a vector, preprocessing
    "openai/clip-vit-base-patch32": clip(B, 224, 32, B_TEXT, "quick_gelu", 512),
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": clip(B, 224, 32, B_TEXT, "gelu", 512),
    "google/siglip-base-patch16-224": siglip(),
    "openai/clip-vit-large-patch14": clip(L, 224, 14, L_TEXT, "quick_gelu", 768),
    "openai/clip-vit-large-patch14-336": clip(L, 336, 14, L_TEXT, "quick_gelu", 768),
    # SigLIP 2 of fixed resolution: transformers' SiglipModel with a larger vocabulary
    "google/siglip2-base-patch16-224": siglip(BILINEAR, vocab_size=256_000),
}
FAST = ["openai/clip-vit-base-patch32", "google/siglip-base-patch16-224"]


@pytest.fixture(scope="module")
def tokenizers(clip_folder, siglip_folder) -> dict[type, Any]:
    folders = {CLIPModel: clip_folder, SiglipModel: siglip_folder}
    found = {kind: AutoProcessor.from_pretrained(folder).tokenizer for kind, folder in folders.items()}
    for kind, length in ((CLIPModel, 77), (SiglipModel, 64)):
        found[kind].model_max_length = length
    return found


def encoder_of(name: str, tokenizer: Any, **less: Any) -> DualEncoder:
    kind, vision, text, dim, colors = BACKBONES[name]
    square = {"height": vision["image_size"], "width": vision["image_size"]}
    if kind is SiglipModel:
        config = SiglipConfig(vision_config=vision | less, text_config=text | less)
        processor = SiglipProcessor(SiglipImageProcessorPil(size=square, **colors), tokenizer)
    else:  # the end token of the tests' vocabulary is not its last, as CLIP's is
        text = text | less | {"eos_token_id": tokenizer.eos_token_id}
        config = CLIPConfig(vision_config=vision | less, text_config=text, projection_dim=dim)
        edge = {"shortest_edge": vision["image_size"]}
        processor = CLIPProcessor(CLIPImageProcessorPil(size=edge, crop_size=square, **colors), tokenizer)
    torch.manual_seed(0)
    return DualEncoder(kind(config).eval(), Preprocessor(processor, config), device="cpu")


@pytest.mark.parametrize(
    ("name", "is_whole"),
    [
        *((name, False) for name in FAST),
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in BACKBONES if name not in FAST),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in BACKBONES if name[-2:] != "14"),
    ],
)
def test_a_backbone_whole_or_with_one_layer_a_tower(name, is_whole, tokenizers):
    """Shapes, scale and bias; and the vectors of the model's own call."""
    kind, vision, text, dim, _ = BACKBONES[name]
    tokenizer, is_siglip = tokenizers[kind], kind is SiglipModel
    less = {} if is_whole else {"num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": len(tokenizer)}
    encoder = encoder_of(name, tokenizer, **less)
    side, length, preprocessor = vision["image_size"], text["max_position_embeddings"], encoder.preprocessor
    assert (encoder.dim, preprocessor.image_shape, preprocessor.max_length) == (dim, (3, side, side), length)
    assert preprocessor.pads_fully is is_siglip
    noise = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    pictures = [PIL.Image.fromarray(noise), PIL.Image.fromarray(noise).resize((500, 375))]
    padding = {"padding": "max_length" if is_siglip else True, "truncation": True, "max_length": length}
    inputs = preprocessor.processor(text=CAPTIONS, images=pictures, return_tensors="pt", **padding)
    if is_siglip:  # the published tokenizers give no mask
        del inputs["attention_mask"]
    with torch.no_grad():
        plain = encoder.model(**inputs)
    np.testing.assert_allclose(encoder.embed_images(pictures), plain.image_embeds.numpy(), atol=2e-5)
    np.testing.assert_allclose(encoder.embed_texts(CAPTIONS), plain.text_embeds.numpy(), atol=2e-5)


def test_any_two_towers_of_a_vision_text_dual_encoder(clip_processor, tmp_path):
    """BERT attends in both directions, so captions of different length need a mask."""
    small, tokenizer = tower(16, 32, 1, 2), clip_processor.tokenizer
    text = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=24, **small)
    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        ViTConfig(image_size=32, patch_size=16, **small), text, projection_dim=8
    )
    torch.manual_seed(0)
    VisionTextDualEncoderModel(config).save_pretrained(tmp_path)
    VisionTextDualEncoderProcessor(clip_processor.image_processor, tokenizer).save_pretrained(tmp_path)
    encoder = DualEncoder.from_pretrained(tmp_path, device="cpu")
    assert (encoder.dim, encoder.preprocessor.max_length) == (8, 24)
    texts = encoder.embed_texts(CAPTIONS)
    for caption, vector in zip(CAPTIONS, texts, strict=True):
        with torch.no_grad():
            alone = encoder.model.get_text_features(**tokenizer(caption, return_tensors="pt")).pooler_output[0]
        np.testing.assert_allclose(vector, alone / alone.norm(), atol=1e-5)


@pytest.mark.parametrize(
    "name", ["AltCLIP", "Aimv2", "Blip", "CLIPSeg", "ChineseCLIP", "GroupViT", "MetaClip2", "Owlv2"]
)
def test_other_dual_encoders_of_transformers(name, clip_processor, tmp_path):
    """Captions that are embedded together have the vectors of the model's own call for each of them alone."""
    tokenizer, small = clip_processor.tokenizer, tower(16, 32, 1, 2)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    text = small | ids | {"max_position_embeddings": 40, "project_dim": 16, "encoder_hidden_size": 16}
    vision = small | {"image_size": 32, "patch_size": 16}
    if name == "GroupViT":
        vision |= {"depths": [1, 1, 1], "num_group_tokens": [4, 2, 0], "num_output_groups": [4, 2, 0]}
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=vision, projection_dim=8, projection_intermediate_dim=16
    )
    torch.manual_seed(0)
    getattr(transformers, f"{name}Model")(config).save_pretrained(tmp_path)
    clip_processor.save_pretrained(tmp_path)
    encoder = DualEncoder.from_pretrained(tmp_path, device="cpu")
    assert encoder.embed_images([PIL.Image.new("RGB", (50, 40))]).shape == (1, 8)
    for caption, vector in zip(CAPTIONS, encoder.embed_texts(CAPTIONS), strict=True):
        with torch.no_grad():
            alone = encoder.model.get_text_features(**tokenizer(caption, return_tensors="pt")).pooler_output[0]
        np.testing.assert_allclose(vector, alone / alone.norm(), atol=1e-5)
