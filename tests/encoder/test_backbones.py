"""The backbones that people bring, each of its published configuration with random weights: vectors, pixels, tokens, a training step.

With one layer a tower and a small vocabulary all else is of its real size; the slow tests have whole ones too. Weights that somebody has
trained were loaded by none of them.
"""

from __future__ import annotations

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
    Siglip2Config,
    Siglip2ImageProcessorPil,
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
from repair_hf.runtime.options import UserError
from repair_hf.training.losses import ContrastiveLoss
from repair_hf.training.towers import encode_batch

OPENAI = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
HALF = ([0.5] * 3, [0.5] * 3)
BILINEAR, BICUBIC = 2, 3
CAPTIONS = ["a red circle on grey paper", "the picture shows one triangle, painted blue"]


def tower(width: int, inner: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    sizes = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return sizes | others


@dataclass(frozen=True)
class Backbone:
    """What its `config.json` and `preprocessor_config.json` say, where it is not the default of transformers."""

    kind: type
    vision: dict[str, Any]
    text: dict[str, Any]
    dim: int
    mean_std: tuple[list[float], list[float]] = OPENAI
    resample: int = BICUBIC
    parameters: int = 0  # millions, as published


B_TEXT = tower(512, 2048, 12, 8, max_position_embeddings=77, vocab_size=49408)
L_TEXT = tower(768, 3072, 12, 12, max_position_embeddings=77, vocab_size=49408)
H_TEXT = tower(1024, 4096, 24, 16, max_position_embeddings=77, vocab_size=49408)
SIGLIP_TEXT = tower(768, 3072, 12, 12, max_position_embeddings=64, vocab_size=32000)
SO400M_TEXT = tower(1152, 4304, 27, 16, max_position_embeddings=64, vocab_size=32000)
QUICK, EXACT = {"hidden_act": "quick_gelu"}, {"hidden_act": "gelu"}
BACKBONES = {
    "openai/clip-vit-base-patch32": Backbone(
        CLIPModel, tower(768, 3072, 12, 12, image_size=224, patch_size=32, **QUICK), B_TEXT | QUICK, 512, parameters=151
    ),
    "openai/clip-vit-base-patch16": Backbone(
        CLIPModel, tower(768, 3072, 12, 12, image_size=224, patch_size=16, **QUICK), B_TEXT | QUICK, 512, parameters=150
    ),
    "openai/clip-vit-large-patch14": Backbone(
        CLIPModel, tower(1024, 4096, 24, 16, image_size=224, patch_size=14, **QUICK), L_TEXT | QUICK, 768, parameters=428
    ),
    "openai/clip-vit-large-patch14-336": Backbone(
        CLIPModel, tower(1024, 4096, 24, 16, image_size=336, patch_size=14, **QUICK), L_TEXT | QUICK, 768, parameters=428
    ),
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": Backbone(
        CLIPModel, tower(768, 3072, 12, 12, image_size=224, patch_size=32, **EXACT), B_TEXT | EXACT, 512, parameters=151
    ),
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": Backbone(
        CLIPModel, tower(1280, 5120, 32, 16, image_size=224, patch_size=14, **EXACT), H_TEXT | EXACT, 1024, parameters=986
    ),
    "google/siglip-base-patch16-224": Backbone(
        SiglipModel, tower(768, 3072, 12, 12, image_size=224, patch_size=16), SIGLIP_TEXT, 768, HALF, parameters=203
    ),
    "google/siglip-so400m-patch14-384": Backbone(
        SiglipModel, tower(1152, 4304, 27, 16, image_size=384, patch_size=14), SO400M_TEXT, 1152, HALF, parameters=878
    ),
    "google/siglip2-base-patch16-224": Backbone(  # of fixed resolution; transformers' SiglipModel, a larger vocabulary
        SiglipModel, tower(768, 3072, 12, 12, image_size=224, patch_size=16), SIGLIP_TEXT | {"vocab_size": 256_000}, 768, HALF, BILINEAR, 375,
    ),
}  # fmt: skip
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
    square, colours = (
        {"height": side, "width": side},
        {"image_mean": mean, "image_std": std, "resample": backbone.resample},
    )
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
    """Shapes, scale and bias, and what transformers' own call gives."""
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
    """The loss and its gradient are finite, and every parameter but SigLIP's bias has one."""
    pixels = torch.randint(0, 256, (2, *encoder.preprocessor.image_shape), dtype=torch.uint8)
    tokens = encoder.preprocessor.texts(CAPTIONS)
    inputs = [encoder.preprocessor.text_inputs(tokens, torch.arange(2))]
    model = encoder.model.train()
    vectors = encode_batch(model, pixels, inputs, encoder.preprocessor.normalize, once_more=model, in_chunks=False)
    loss = ContrastiveLoss()(*vectors, model.logit_scale.exp())["loss"]
    loss.backward()
    assert torch.isfinite(loss)
    without = [
        name for name, value in model.named_parameters() if value.grad is None or not torch.isfinite(value.grad).all()
    ]
    assert without == [name for name, _ in model.named_parameters() if name == "logit_bias"]


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in BACKBONES]
)
def test_a_backbone_with_one_layer_a_tower(name, tokenizers):
    backbone = BACKBONES[name]
    tokenizer = tokenizers[backbone.kind]
    encoder = encoder_of(backbone, tokenizer, num_hidden_layers=1, vocab_size=len(tokenizer))
    check(encoder, backbone)
    check_step(encoder)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_backbone(name, tokenizers):
    """All layers, the whole table of tokens; CLIP's end token is the last of it, as published."""
    backbone = BACKBONES[name]
    encoder = encoder_of(backbone, tokenizers[backbone.kind])
    check(encoder, backbone)
    check_step(encoder)


@pytest.mark.parametrize("name", BACKBONES)
def test_it_is_as_large_as_published(name):
    with torch.device("meta"):
        model = BACKBONES[name].kind(config_of(BACKBONES[name]))
    assert sum(parameter.numel() for parameter in model.parameters()) / 10**6 == pytest.approx(
        BACKBONES[name].parameters, abs=0.5
    )


@pytest.mark.parametrize("name", BACKBONES)
def test_pixels_are_scaled_by_its_own_mean_and_deviation(name, tokenizers):
    backbone = BACKBONES[name]
    preprocessor = Preprocessor(processor_of(backbone, tokenizers[backbone.kind]), config_of(backbone))
    values = preprocessor.normalize(torch.full((1, *preprocessor.image_shape), 51, dtype=torch.uint8))  # 0.2
    mean, std = (torch.tensor(each) for each in backbone.mean_std)
    torch.testing.assert_close(values[0, :, 0, 0], (0.2 - mean) / std)
    wide = PIL.Image.new("RGB", (120, 60))
    wide.paste((255, 255, 255), (0, 0, 30, 60))  # its left quarter
    kept = preprocessor.images([wide])[0, 0, 0].float().mean() / 255
    assert kept == pytest.approx(
        0.25 if backbone.kind is SiglipModel else 0.0, abs=0.01
    )  # squeezed, or cut out of the middle


def test_any_two_towers_of_a_vision_text_dual_encoder(clip_processor, tmp_path):
    """BERT reads both ways: captions of unlike length must come with a mask."""
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


def test_flexible_resolution_is_refused(tokenizers):
    """SigLIP 2 NaFlex gives each picture patches of its own number, which no batch of pixels holds."""
    processor = SiglipProcessor(Siglip2ImageProcessorPil(patch_size=16, max_num_patches=256), tokenizers[SiglipModel])
    with pytest.raises(UserError, match=r"Siglip2ImageProcessor.* a processor with one \(3, H, W\) for all is needed"):
        Preprocessor(processor, Siglip2Config())
