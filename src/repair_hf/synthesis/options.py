"""The options of a synthesis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repair_hf.llm.options import RequestOptions
from repair_hf.mining.filtering import FilterOptions
from repair_hf.runtime.options import SEEDS, Bounded, EncoderOptions, need, opt

Select = Literal["nearest", "first"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Offload = Literal["none", "model", "sequential"]
Format = Literal["png", "webp", "jpeg"]

# Sides in pixels.
SMALLEST_SIDE = 32  # no model can say what a smaller image shows
LONGEST_SIDE = 1024  # providers scale larger images down themselves, and bill for more tiles
SMALLEST_EDIT = 64  # FLUX.2 rejects smaller sides


@dataclass
class LLMOptions(RequestOptions):
    """Which LLM, and how much of it."""

    _argument_group_name = "llm"

    llm: str = need(
        "LLM: LiteLLM id (gemini/gemini-3.5-flash-lite; on your own server openai/NAME or hosted_vllm/NAME with "
        "--llm-base-url), or world/oracle."
    )
    llm_base_url: str | None = opt(
        None, "URL of your own server; it must use the protocol of --llm's provider.", neutral=True
    )
    max_usd: float | None = opt(
        None, "Most US dollars to spend from this ledger, LLM and editor together.", least=0, neutral=True, main=True
    )
    price: list[float] | None = opt(
        None,
        "Price of the LLM in US dollars per million tokens, in and out. Default: LiteLLM's list.",
        least=0,
        neutral=True,
    )
    max_calls: int | None = opt(None, "Most LLM answers and hosted images to pay for.", least=0, neutral=True)
    ledger: str | None = opt(
        None,
        "Ledger file; runs with the same file share answers, images and ceilings. Default: OUTPUT/ledger.sqlite.",
        neutral=True,
    )
    prompts: str | None = opt(
        None, "Folder of your own prompts; each replaces ours of its name (audit_t2i.md).", neutral=True
    )
    audit: Literal["strict", "lenient"] = opt(
        "strict",
        "What makes a false positive wrong: one contradiction, or only a major mismatch, as in the paper.",
        neutral=True,
    )
    always_instruct: bool = opt(
        False, "Ask for an edit even where the LLM would find nothing to change.", neutral=True
    )
    domain_notes: str | None = opt(None, "Text to add to every prompt, such as: brand and size decide.", neutral=True)
    batch: bool = opt(
        False,
        "Use the provider's batch API at a lower price: submit now, and rerun later to collect.",
        neutral=True,
        main=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ledger is not None:  # a folder notes it, and is read from other places
            self.ledger = str(Path(self.ledger).absolute())


@dataclass
class EditorOptions(Bounded):
    """Which image editor, and how it works."""

    _argument_group_name = "editor"

    editor: str = need(
        "Image editor: diffusers Hub id or folder, LiteLLM id (gemini/gemini-2.5-flash-image), or `world`."
    )
    editor_base_url: str | None = opt(
        None, "URL of your own server; it must use the protocol of --editor's provider.", neutral=True
    )
    editor_price: list[float] | None = opt(
        None,
        "Price of a hosted editor in US dollars per million tokens, in and out. Default: LiteLLM's list.",
        least=0,
        neutral=True,
    )
    editor_steps: int = opt(8, "diffusers: denoising steps per image.", least=1)
    editor_size: int = opt(
        512,
        "Images are edited at the area of a square of this side, in pixels; at most a megapixel.",
        least=SMALLEST_EDIT,
        most=1024,  # pipelines of FLUX.2 shrink a larger source, and not their output
    )
    editor_dtype: Dtype = opt(
        "auto", "diffusers: dtype of the weights; auto is bfloat16 on a GPU and float32 on the CPU."
    )
    editor_offload: Offload = opt(
        "none",
        "diffusers: keep unused weights in CPU memory, by whole models or layer by layer.",
        neutral=True,
    )
    editor_format: Format = opt(
        "png", "Files of edited images: png and webp lose nothing, jpeg takes a sixth of the disk."
    )


@dataclass(kw_only=True)
class RepairOptions(Bounded):
    """How failures are repaired."""

    candidates: int = opt(3, "Edits to make of each false positive; the best is kept.", least=1, main=True)
    select: Select = opt("nearest", "Keep the edit nearest to the false positive, or the first one, as an ablation.")
    audited: bool = opt(True, "Let the LLM check each failure before it is edited.")
    check_edits: int | Literal["all"] = opt(
        100,
        "Ask the LLM whether so many selected edits fit their queries; `all` also drops those that do not.",
        least=0,
        main=True,
    )
    seed: int = opt(0, "Seed of the LLM and the image editor.", least=0, most=SEEDS - 1)
    image_side: int = opt(LONGEST_SIDE, "Longest side, in pixels, of images sent to the LLM.", least=SMALLEST_SIDE)


@dataclass(kw_only=True)
class SynthesizeOptions(EncoderOptions, FilterOptions, RepairOptions):
    """What to repair, and how."""

    failures: str = need("Output folder of `repair-hf mine`, or a Parquet file of failures.")
    model: str = need(
        "Retriever that mined the failures; it also selects the best edit: Hub id, folder, or world/base."
    )
    any_model: bool = opt(False, "Accept a --model other than the one that mined the failures.", neutral=True)
    earlier_rounds: list[str] | None = opt(
        None,
        "Records of earlier rounds, folders or Hub ids; failures that are repaired or dropped there are skipped.",
        main=True,
    )
    embed_source_images: bool = opt(True, "Store the images of query, ground truth and false positive in the records.")


@dataclass(kw_only=True)
class ContrastOptions(Bounded):
    """How many pictures are drawn."""

    max_items: int = opt(
        1000, "Pictures to draw; a larger number keeps the smaller one's.", least=1, neutral=True, main=True
    )
    seed: int = opt(0, "Seed of the drawn pictures and captions, the LLM and the editor.", least=0, most=SEEDS - 1)
    image_side: int = opt(LONGEST_SIDE, "Longest side, in pixels, of images sent to the LLM.", least=SMALLEST_SIDE)


@dataclass
class ContrastEditorOptions(EditorOptions):
    """Which image editor, if any, and how it works."""

    editor: str | None = opt(  # type: ignore[assignment]
        None,
        "Image editor, as in `synthesize`; it adds pictures that fit the changed captions. Default: captions alone.",
        main=True,
    )
