"""Image editing through `diffusers`: tiny random pipelines, loaded from a folder as a Hub id would be."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

from repair_hf.options import UserError
from repair_hf.synthesis.images import DiffusersEditor, _fit, load_editor

SEEDS = [7, 8, 9]


@pytest.fixture(scope="module")
def tokenizer_parts() -> tuple[dict[str, int], list[tuple[str, str]]]:
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>", "<|im_start|>"]
    return {word: row for row, word in enumerate(words)}, []


@pytest.fixture(scope="module")
def flux_folder(tokenizer_parts, tmp_path_factory) -> Path:
    """FLUX.2-klein's classes with some ten thousand random weights."""
    from diffusers import (
        AutoencoderKLFlux2,
        FlowMatchEulerDiscreteScheduler,
        Flux2KleinPipeline,
        Flux2Transformer2DModel,
    )
    from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    vocab, merges = tokenizer_parts
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    text = Qwen3Config(hidden_size=16, intermediate_size=16, num_hidden_layers=28, num_attention_heads=2,
                       num_key_value_heads=2, head_dim=8, vocab_size=len(tokenizer), max_position_embeddings=1024)  # fmt: skip
    pipeline = Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=AutoencoderKLFlux2(
            block_out_channels=(4,) * 4,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            latent_channels=1,
            norm_num_groups=1,
            use_quant_conv=False,
            use_post_quant_conv=False,
            layers_per_block=1,
            sample_size=32,
        ),  # fmt: skip
        text_encoder=Qwen3ForCausalLM(text),
        tokenizer=tokenizer,
        transformer=Flux2Transformer2DModel(
            patch_size=1,
            in_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=3 * 16,
            timestep_guidance_channels=16,
            axes_dims_rope=[4] * 4,
            guidance_embeds=False,
        ),  # fmt: skip
        is_distilled=True,
    )
    folder = tmp_path_factory.mktemp("flux2-klein")
    pipeline.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pix2pix_folder(tokenizer_parts, tmp_path_factory) -> Path:
    """InstructPix2Pix's classes with some ten thousand random weights."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    vocab, merges = tokenizer_parts
    tokenizer = CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=200)
    text = CLIPTextConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=200,
                          bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id)  # fmt: skip
    pipeline = StableDiffusionInstructPix2PixPipeline(
        vae=AutoencoderKL(
            block_out_channels=(4, 4),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=1,
        ),  # fmt: skip
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
        ),  # fmt: skip
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    folder = tmp_path_factory.mktemp("instruct-pix2pix")
    pipeline.save_pretrained(folder)
    return folder


@pytest.fixture(params=["flux_folder", "pix2pix_folder"])
def editor(request) -> DiffusersEditor:
    return load_editor(str(request.getfixturevalue(request.param)), steps=2, size=64, device="cpu")


@pytest.fixture(scope="module")
def photographs() -> list[Image.Image]:
    return [
        Image.linear_gradient("L").resize((96, 72)).convert("RGB"),
        Image.radial_gradient("L").resize((60, 90)).convert("RGB"),
    ]


def near(one: Image.Image, other: Image.Image) -> bool:
    return all(abs(a - b) <= 1 for a, b in zip(one.tobytes(), other.tobytes(), strict=True))


def test_gives_one_image_per_seed_whatever_else_is_asked(editor, photographs):
    both = editor.edit(photographs, ["make it red", "make it blue"], [SEEDS, [5]])
    assert [len(row) for row in both] == [3, 1]
    assert len({image.tobytes() for image in both[0]}) == 3
    ((second,),) = editor.edit(photographs[:1], ["make it red"], [[SEEDS[1]]])
    assert near(second, both[0][1])
    ((other,),) = editor.edit(photographs[1:], ["make it blue"], [[5]])
    assert near(other, both[1][0])


def test_keeps_the_proportions(editor, photographs):
    wide, tall = editor.edit(photographs, ["x", "y"], [[1], [1]])
    assert wide[0].size == (80, 64) or wide[0].size[0] > wide[0].size[1]
    assert tall[0].size[0] < tall[0].size[1]


def test_is_quiet(editor, photographs, caplog):
    from diffusers.utils import logging as diffusers_logging

    diffusers_logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        editor.edit(photographs[:1], ["make it red"], [SEEDS])
    assert not caplog.records


def test_a_sliver_cannot_be_edited(editor):
    assert editor.edit([Image.new("RGB", (900, 100))], ["make it red"], [SEEDS]) == [[None] * 3]


def test_a_blacked_out_image_is_none(pix2pix_folder, photographs, monkeypatch):
    editor = load_editor(str(pix2pix_folder), steps=1, size=64, device="cpu")
    flags = [False, True, False]
    monkeypatch.setattr(editor.pipeline, "run_safety_checker", lambda image, *_: (image, flags))
    (row,) = editor.edit(photographs[:1], ["make it red"], [SEEDS])
    assert [image is None for image in row] == flags


def test_the_id_tells_what_changes_the_images(flux_folder):
    ids = {
        load_editor(f"diffusers:{flux_folder}", steps=steps, size=size, device="cpu").id
        for steps, size in ((8, 512), (4, 512), (8, 256))
    }
    assert len(ids) == 3 and all(id.startswith(str(flux_folder)) for id in ids)


@pytest.mark.parametrize("id", ["no/such-pipeline", "/no/such/folder"])
def test_an_unknown_pipeline_is_the_users_mistake(id):
    with pytest.raises(UserError, match="--editor .*no diffusers pipeline.*FLUX.2-klein"):
        load_editor(id)


def test_a_pipeline_that_takes_no_image_is_refused():
    class TextToImage:
        def __call__(self, prompt, generator=None): ...

    with pytest.raises(UserError, match="TextToImage, whose call takes no image"):
        DiffusersEditor(TextToImage(), "my/model")


@pytest.mark.parametrize(
    ("size", "side"), [((512, 512), 512), ((640, 480), 512), ((4000, 500), 512), ((10, 10), 64), ((1, 7), 64)]
)
def test_fits_the_area_of_a_square(size, side):
    width, height = _fit(size, side)
    assert width % 16 == height % 16 == 0 and min(width, height) >= 64
    if min(width, height) > 64:
        assert width * height == pytest.approx(side**2, rel=0.06)
        assert width / height == pytest.approx(size[0] / size[1], rel=0.06)
