"""Time image editors: do three candidates of a picture take less in one call of the pipeline than in three?

    python benchmarks/editor.py --device cuda          # FLUX.2-klein 4B and InstructPix2Pix in bfloat16
    python benchmarks/editor.py --sizes tiny           # the same classes with some ten thousand weights

Weights are random and made on the device: time does not depend on what a model has learnt. Nothing is downloaded.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from common import parser, print_notes, print_table
from PIL import Image

from repair_hf.synthesis.images import DiffusersEditor
from repair_hf.synthesis.options import EditorOptions

NOTES = {
    "flux2-klein": "FLUX.2-klein 4B: transformer, text encoder and autoencoder of its configuration",
    "instruct-pix2pix": "InstructPix2Pix: Stable Diffusion 1.5 with three guided branches",
}
SIZES = ("real", "tiny")
CANDIDATES = [1, 2, 3]  # their seeds
PROMPT = "Make the left dog black, and leave everything else as it is."


def main() -> None:
    """Print a row for each pipeline: seconds in one call, in three, the ratio, and the peak of GPU memory."""
    options = parser("Time three candidates of a picture.", NOTES)
    options.add_argument("--sizes", choices=SIZES, default=SIZES[0], help="of the models")
    options.add_argument("--steps", type=int, default=4, help="denoising steps per image")
    options.add_argument("--size", type=int, default=512, help="side of a square of the picture's area, in pixels")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = options.parse_args()
    rows = []
    for row in args.rows:
        began = time.perf_counter()
        editor = editor_of(row, args.sizes, args.device, steps=args.steps, size=args.size)
        made = time.perf_counter() - began
        one, three = times(editor, args.repeat, args.device)
        memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if args.device == "cuda" else "-"
        weights = sum(part.numel() for name, part in parameters(editor))
        rows.append(
            (row, f"{weights / 1e6:,.2f} M", f"{made:.1f}", f"{one:.3f}", f"{three:.3f}", f"{one / three:.2f}", memory)
        )
        del editor
        if args.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    print_table(("", "weights", "s to make", "s one call", "s three calls", "ratio", "GPU memory"), rows)
    print_notes(
        NOTES, args.rows, f"{args.sizes} sizes, a picture of 500 x 375 edited at {args.size} x {args.size} pixels'"
    )
    print(f"area, {args.steps} steps, on {args.device}; median of {args.repeat} rounds after a first")


def times(editor: DiffusersEditor, repeat: int, device: str) -> tuple[float, float]:
    """Return the seconds of all candidates in one call, and of as many calls."""
    picture = Image.effect_noise((500, 375), 60).convert("RGB")

    def seconds(calls: list[list[int]]) -> float:
        began = time.perf_counter()
        images = [image for seeds in calls for image in editor.edit(picture, PROMPT, seeds)]
        if device == "cuda":
            torch.cuda.synchronize()
        assert len({image.tobytes() for image in images if image is not None}) <= len(CANDIDATES) == len(images)
        return time.perf_counter() - began

    ways = [CANDIDATES], [[seed] for seed in CANDIDATES]
    rounds = [[seconds(way) for way in ways] for _ in range(repeat + 1)][1:]
    one, three = (median(way) for way in zip(*rounds, strict=True))
    return one, three


def parameters(editor: DiffusersEditor) -> list[tuple[str, torch.Tensor]]:
    """Return the weights of all parts of a pipeline."""
    parts = [part for part in editor.pipeline.components.values() if isinstance(part, torch.nn.Module)]
    return [pair for part in parts for pair in part.named_parameters()]


def editor_of(name: str, sizes: str, device: str, **settings: int) -> DiffusersEditor:
    """Build a pipeline with random weights on the device: bfloat16 on a GPU, float32 on the CPU."""
    from diffusers.utils import logging

    logging.set_verbosity_error()
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            parts = MAKERS[name](tiny=sizes == "tiny")
    finally:
        torch.set_default_dtype(before)
    for part in parts.values():
        if isinstance(part, torch.nn.Module):
            part.eval().requires_grad_(False)
    kind, parts["scheduler"] = parts.pop("kind"), parts["scheduler"]()  # a scheduler is made on the CPU
    options = {f"editor_{key}": value for key, value in settings.items()}
    return DiffusersEditor(kind(**parts), name, EditorOptions(name, **options))


def flux(*, tiny: bool) -> dict[str, Any]:
    """Return the parts of a Flux2KleinPipeline."""
    import diffusers
    from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

    vocab = {letter: row for row, letter in enumerate([*letters(), "<|endoftext|>", "<|im_start|>"])}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    transformer: dict[str, Any] = {"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24}
    transformer |= {"joint_attention_dim": 7680, "guidance_embeds": False}
    text: dict[str, Any] = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
    text |= {
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    }
    vae: dict[str, Any] = {}
    if tiny:
        transformer |= {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}
        transformer |= {"joint_attention_dim": 48, "timestep_guidance_channels": 16, "axes_dims_rope": (4,) * 4}
        transformer |= {"in_channels": 4}
        text |= {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 28, "num_attention_heads": 2}
        text |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 300}
        vae |= {"block_out_channels": (4,) * 4, "latent_channels": 1, "norm_num_groups": 1, "layers_per_block": 1}
        vae |= {"use_quant_conv": False, "use_post_quant_conv": False}
    return {
        "kind": diffusers.Flux2KleinPipeline,
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler,
        "vae": diffusers.AutoencoderKLFlux2(**vae),
        "text_encoder": Qwen3ForCausalLM(Qwen3Config(**text)),
        "tokenizer": tokenizer,
        "transformer": diffusers.Flux2Transformer2DModel(**transformer),
        "is_distilled": True,
    }


def pix2pix(*, tiny: bool) -> dict[str, Any]:
    """Return the parts of a StableDiffusionInstructPix2PixPipeline."""
    import diffusers
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    ends = [letter + "</w>" for letter in letters()]
    words = [*letters(), *ends, "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={word: row for row, word in enumerate(words)}, merges=[], model_max_length=77)
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    text: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    unet: dict[str, Any] = {"in_channels": 8, "out_channels": 4, "cross_attention_dim": 768, "attention_head_dim": 8}
    vae: dict[str, Any] = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 4}
    if tiny:
        text |= {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
        unet |= {"block_out_channels": (4,) * 4, "norm_num_groups": 1, "attention_head_dim": 2}
        unet |= {"cross_attention_dim": 16, "layers_per_block": 1}
        vae |= {"block_out_channels": (4,) * 4, "norm_num_groups": 1}
    vae |= {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    return {
        "kind": diffusers.StableDiffusionInstructPix2PixPipeline,
        "vae": diffusers.AutoencoderKL(**vae),
        "text_encoder": CLIPTextModel(CLIPTextConfig(vocab_size=49_408, **special, **text)),
        "tokenizer": tokenizer,
        "unet": diffusers.UNet2DConditionModel(**unet),
        "scheduler": diffusers.EulerAncestralDiscreteScheduler,
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }


def letters() -> list[str]:
    """Return the letters of a byte-level tokenizer."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


MAKERS = {"flux2-klein": flux, "instruct-pix2pix": pix2pix}

if __name__ == "__main__":
    main()
