"""Common backbones with their published configuration and random weights: vectors, pixels, tokens, a training step.

Towers have one layer and a small vocabulary, and everything else has its real size. The slow tests use whole ones.
No test loads published weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
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
from repair_hf.encoder.token_store import TokenStore
from repair_hf.training.step import encode, mean_over_pairs, softmax_loss

OPENAI = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
HALF = ([0.5] * 3, [0.5] * 3)
BILINEAR, BICUBIC = 2, 3
CAPTIONS = ["a red circle on grey paper", "the picture shows one triangle, painted blue"]


def tower(width: int, inner: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip(names, (width, inner, layers, heads), strict=True)) | others


@dataclass(frozen=True)
class Backbone:
    """Its configuration, where it differs from the defaults of transformers."""

    kind: type
    vision: dict[str, Any]
    text: dict[str, Any]
    dim: int
    mean_std: tuple[list[float], list[float]] = OPENAI
    resample: int = BICUBIC


B_TEXT = tower(512, 2048, 12, 8, max_position_embeddings=77, vocab_size=49408)
L_TEXT = tower(768, 3072, 12, 12, max_position_embeddings=77, vocab_size=49408)
SIGLIP_TEXT = tower(768, 3072, 12, 12, max_position_embeddings=64, vocab_size=32000)
B_VISION, L_VISION = (768, 3072, 12, 12), (1024, 4096, 24, 16)


def clip(size: tuple[int, ...], image: int, patch: int, text: dict[str, Any], act: str, dim: int):
    vision, activation = tower(*size, image_size=image, patch_size=patch), {"hidden_act": act}
    return Backbone(CLIPModel, vision | activation, text | activation, dim)


def siglip(size: tuple[int, ...], image: int, patch: int, text: dict[str, Any], dim: int, **others):
    return Backbone(SiglipModel, tower(*size, image_size=image, patch_size=patch), text, dim, HALF, **others)


BACKBONES = {
    "openai/clip-vit-base-patch32": clip(B_VISION, 224, 32, B_TEXT, "quick_gelu", 512),
    "openai/clip-vit-large-patch14": clip(L_VISION, 224, 14, L_TEXT, "quick_gelu", 768),
    "openai/clip-vit-large-patch14-336": clip(L_VISION, 336, 14, L_TEXT, "quick_gelu", 768),
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": clip(B_VISION, 224, 32, B_TEXT, "gelu", 512),
    "google/siglip-base-patch16-224": siglip(B_VISION, 224, 16, SIGLIP_TEXT, 768),
    # SigLIP 2 of fixed resolution: transformers' SiglipModel with a larger vocabulary
    "google/siglip2-base-patch16-224": siglip(
        B_VISION, 224, 16, SIGLIP_TEXT | {"vocab_size": 256_000}, 768, resample=BILINEAR
    ),
}
FAST = ["openai/clip-vit-base-patch32", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "google/siglip-base-patch16-224"]
WHOLE = [*FAST, "google/siglip2-base-patch16-224", "openai/clip-vit-large-patch14-336"]


def config_of(backbone: Backbone, **less: Any) -> CLIPConfig | SiglipConfig:
    if backbone.kind is SiglipModel:
        return SiglipConfig(vision_config=backbone.vision | less, text_config=backbone.text | less)
    return CLIPConfig(
        vision_config=backbone.vision | less,
        text_config=backbone.text | {"eos_token_id": 2} | less,
        projection_dim=backbone.dim,
    )


def processor_of(backbone: Backbone, tokenizer: Any) -> CLIPProcessor | SiglipProcessor:
    side, (mean, std) = backbone.vision["image_size"], backbone.mean_std
    square = {"height": side, "width": side}
    colours = {"image_mean": mean, "image_std": std, "resample": backbone.resample}
    if backbone.kind is SiglipModel:
        return SiglipProcessor(SiglipImageProcessorPil(size=square, **colours), tokenizer)
    return CLIPProcessor(CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=square, **colours), tokenizer)


@pytest.fixture(scope="module")
def tokenizers(clip_folder, siglip_folder) -> dict[type, Any]:
    folders = {CLIPModel: clip_folder, SiglipModel: siglip_folder}
    found = {kind: AutoProcessor.from_pretrained(folder).tokenizer for kind, folder in folders.items()}
    for kind, length in ((CLIPModel, 77), (SiglipModel, 64)):
        found[kind].model_max_length = length
    return found


def encoder_of(backbone: Backbone, tokenizer: Any, **less: Any) -> DualEncoder:
    config = config_of(backbone, **less)
    if backbone.kind is CLIPModel:  # the end token of the tests' vocabulary is not its last, as CLIP's is
        config.text_config.eos_token_id = tokenizer.eos_token_id
    torch.manual_seed(0)
    model = backbone.kind(config).eval()
    return DualEncoder(model, Preprocessor(processor_of(backbone, tokenizer), config), device="cpu")


def check(encoder: DualEncoder, backbone: Backbone) -> None:
    """Check shapes, scale and bias, and compare vectors with those of the model's own call."""
    side, length = backbone.vision["image_size"], backbone.text["max_position_embeddings"]
    assert (encoder.dim, encoder.preprocessor.image_shape) == (backbone.dim, (3, side, side))
    assert encoder.preprocessor.max_length == length
    is_siglip = backbone.kind is SiglipModel
    assert encoder.preprocessor.pads_fully is is_siglip
    if is_siglip:
        assert encoder.model.logit_scale.shape == encoder.model.logit_bias.shape == (1,)
    else:
        assert encoder.model.logit_scale.exp().item() == pytest.approx(1 / 0.07, rel=1e-4)
    noise = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    pictures = [PIL.Image.fromarray(noise), PIL.Image.fromarray(noise).resize((500, 375))]
    images, texts = encoder.embed_images(pictures), encoder.embed_texts(CAPTIONS)
    assert images.shape == texts.shape == (2, backbone.dim)
    padding = {"padding": "max_length" if is_siglip else True, "truncation": True, "max_length": length}
    inputs = encoder.preprocessor.processor(text=CAPTIONS, images=pictures, return_tensors="pt", **padding)
    if is_siglip:  # the published tokenizers give no mask
        del inputs["attention_mask"]
    with torch.no_grad():
        plain = encoder.model(**inputs)
    np.testing.assert_allclose(images, plain.image_embeds.numpy(), atol=2e-5)
    np.testing.assert_allclose(texts, plain.text_embeds.numpy(), atol=2e-5)


def check_step(encoder: DualEncoder) -> None:
    """Check that the loss is finite, and that every parameter but SigLIP's bias has a finite gradient."""
    pixels = torch.randint(0, 256, (2, *encoder.preprocessor.image_shape), dtype=torch.uint8)
    batch = {"pixels": pixels, "texts": [TokenStore(encoder.preprocessor, [CAPTIONS])[np.arange(2)]]}
    model, visible = encoder.model.train(), torch.ones(2, 2, dtype=torch.bool)
    images, texts = encode(model, batch, encoder.preprocessor.normalize, inner=model)
    loss = mean_over_pairs(softmax_loss(model.logit_scale.exp() * images @ texts.mT, visible), visible)
    loss.backward()
    assert torch.isfinite(loss)
    for name, value in model.named_parameters():
        assert (value.grad is not None and torch.isfinite(value.grad).all()) == (name != "logit_bias"), name


@pytest.mark.parametrize(
    ("name", "is_whole"),
    [
        *((name, False) for name in FAST),
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in BACKBONES if name not in FAST),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in WHOLE),
    ],
)
def test_a_backbone_whole_or_with_one_layer_a_tower(name, is_whole, tokenizers):
    backbone, tokenizer = BACKBONES[name], tokenizers[BACKBONES[name].kind]
    less = {} if is_whole else {"num_hidden_layers": 1, "vocab_size": len(tokenizer)}
    encoder = encoder_of(backbone, tokenizer, **less)
    check(encoder, backbone)
    check_step(encoder)


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
    check_step(encoder)
