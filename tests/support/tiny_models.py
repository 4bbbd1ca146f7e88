"""Fixtures with tiny models of random weights, made on the spot: CLIP, SigLIP, LLaVA and two image editors.

`clip` is a fresh copy for each test. The folders are made once per session: only read them.
"""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from pictures import pictures

SMALL = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def seed() -> None:
    """Make the next random weights the same each time. Torch is imported late: xdist's main process needs none."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def clip_processor():
    """A CLIPProcessor for 32x32 pixels with a byte-pair vocabulary learnt from a few captions."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import CLIPImageProcessorPil, CLIPProcessor, CLIPTokenizer

    start, end = "<|startoftext|>", "<|endoftext|>"
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.normalizer = normalizers.Lowercase()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    whole_words = [f"{letter}</w>" for letter in alphabet()]
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        initial_alphabet=alphabet(),
        end_of_word_suffix="</w>",
        special_tokens=[*whole_words, start, end],
        show_progress=False,
    )
    bpe.train_from_iterator([caption for _, captions in pictures() for caption in captions], trainer)
    learnt = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in learnt["merges"]]
    tokenizer = CLIPTokenizer(vocab=learnt["vocab"], merges=merges, model_max_length=32)
    size = {"height": 32, "width": 32}
    return CLIPProcessor(CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size), tokenizer)


@pytest.fixture(scope="session")
def _clip(clip_processor):
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    seed()
    tokenizer = clip_processor.tokenizer
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    text = CLIPTextConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **special, **SMALL)
    vision = CLIPVisionConfig(image_size=32, patch_size=16, **SMALL)
    model = CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8))
    return model.eval()


@pytest.fixture
def clip(_clip):
    """A fresh copy of a CLIPModel of about ten thousand random weights."""
    return deepcopy(_clip)


@pytest.fixture(scope="session")
def clip_folder(_clip, clip_processor, tmp_path_factory) -> Path:
    """The model and its processor, as a user would have them on disk."""
    folder = tmp_path_factory.mktemp("clip")
    _clip.save_pretrained(folder)
    clip_processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory) -> Path:
    """A tiny SiglipModel with its processor, which normalizes and pads in another way than CLIP's."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import (
        PreTrainedTokenizerFast,
        SiglipConfig,
        SiglipImageProcessorPil,
        SiglipModel,
        SiglipProcessor,
        SiglipTextConfig,
        SiglipVisionConfig,
    )

    words = sorted({word for _, captions in pictures() for text in captions for word in text.split()})
    tokens = Tokenizer(
        models.WordLevel({word: k for k, word in enumerate(["</s>", "<unk>", *words])}, unk_token="<unk>")
    )
    tokens.normalizer = normalizers.Lowercase()
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="</s>", unk_token="<unk>", eos_token="</s>")
    text = SiglipTextConfig(vocab_size=len(tokenizer), max_position_embeddings=12, **SMALL)
    vision = SiglipVisionConfig(image_size=32, patch_size=16, **SMALL)
    seed()
    folder = tmp_path_factory.mktemp("siglip")
    SiglipModel(SiglipConfig(text_config=text.to_dict(), vision_config=vision.to_dict())).save_pretrained(folder)
    SiglipProcessor(SiglipImageProcessorPil(size={"height": 32, "width": 32}), tokenizer).save_pretrained(folder)
    return folder


def alphabet() -> list[str]:
    """The letters that stand for the 256 bytes, in the same order in every process."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def byte_tokenizer(*marks: str):
    """A Qwen2Tokenizer whose tokens are the 256 bytes, followed by these special tokens."""
    from transformers import Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer(vocab={letter: k for k, letter in enumerate(alphabet())}, merges=[])
    tokenizer.add_tokens(list(marks), special_tokens=True)
    return tokenizer


@pytest.fixture(scope="session")
def vlm_folder(tmp_path_factory) -> Path:
    """A tiny LLaVA with its processor: a vision LLM whose tokens are bytes, and whose answers are random."""
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        Qwen2Config,
    )

    tokenizer = byte_tokenizer("<|im_start|>", "<|im_end|>", "<image>")
    tokenizer.eos_token = "<|im_end|>"
    size = {"height": 32, "width": 32}
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size),
        tokenizer,
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    text = Qwen2Config(
        vocab_size=len(tokenizer),
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.5,  # far from zero, so that answers depend on the question
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SMALL,
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=32, patch_size=16, **SMALL),
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    seed()
    folder = tmp_path_factory.mktemp("vlm")
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_parts() -> tuple[dict[str, int], list[tuple[str, str]]]:
    ends = [letter + "</w>" for letter in alphabet()]
    words = [*alphabet(), *ends, "<|startoftext|>", "<|endoftext|>", "<|im_start|>"]
    return {word: row for row, word in enumerate(words)}, []


@pytest.fixture(scope="session")
def pix2pix_folder(tokenizer_parts, tmp_path_factory) -> Path:
    """An InstructPix2Pix pipeline of about ten thousand random weights."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    seed()
    vocab, merges = tokenizer_parts
    tokenizer = CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=200)
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    text = CLIPTextConfig(vocab_size=len(tokenizer), max_position_embeddings=200, **special, **SMALL)
    pipeline = StableDiffusionInstructPix2PixPipeline(
        vae=AutoencoderKL(
            block_out_channels=(4, 4),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=1,
        ),
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=UNet2DConditionModel(
            block_out_channels=(4, 8),
            layers_per_block=1,
            in_channels=8,
            out_channels=4,
            norm_num_groups=1,
            attention_head_dim=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=16,
        ),
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    folder = tmp_path_factory.mktemp("instruct-pix2pix")
    pipeline.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def flux_folder(tokenizer_parts, tmp_path_factory) -> Path:
    """FLUX.2-klein's classes with some ten thousand random weights."""
    from diffusers import (
        AutoencoderKLFlux2,
        FlowMatchEulerDiscreteScheduler,
        Flux2KleinPipeline,
        Flux2Transformer2DModel,
    )
    from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

    seed()
    vocab, merges = tokenizer_parts
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    vae = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    vae |= {"block_out_channels": (4,) * 4, "latent_channels": 1, "norm_num_groups": 1, "layers_per_block": 1}
    transformer = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}
    transformer |= {"joint_attention_dim": 3 * 16, "timestep_guidance_channels": 16, "axes_dims_rope": [4] * 4}
    pipeline = Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=AutoencoderKLFlux2(use_quant_conv=False, use_post_quant_conv=False, sample_size=32, **vae),
        text_encoder=Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=28, head_dim=8, **small, **words)),
        tokenizer=tokenizer,
        transformer=Flux2Transformer2DModel(patch_size=1, in_channels=4, guidance_embeds=False, **transformer),
        is_distilled=True,
    )
    folder = tmp_path_factory.mktemp("flux2-klein")
    pipeline.save_pretrained(folder)
    return folder
