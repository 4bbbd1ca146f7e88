"""Edit images: carry out an edit instruction on a false-positive image.

In:  images, one instruction each, and for each the seeds of its M candidates.
Out: for each image one edited image per seed. Any `diffusers` pipeline that takes an image and a prompt will do; what else it is given
     is read from the signature of its call.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal, Protocol

from PIL import Image

from repair_hf.llm.prompts import image_prompt
from repair_hf.runtime.hub_access import settle_hub
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import RunStopped, name_with_digest

logger = logging.getLogger(__name__)

WIDEST = 8  # FLUX.2 refuses images whose sides differ by more
GRID = 16  # pipelines cut sides down to a multiple of this, cropping; we scale to one instead
SMALLEST = 64  # pixels; FLUX.2 refuses less

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Offload = Literal["none", "model", "sequential"]


class ImageEditor(Protocol):
    """What the synthesis asks of an image editor."""

    id: str
    """Names the model and every setting that changes its images. Goes into the records and into the names of the candidate files."""
    batch_size: int
    """How many images to hand to one call of `edit`."""
    own_process: bool
    """True for an editor that can be pickled and keeps a CPU core busy: it then runs in a process of its own. A model stays here, in a thread."""

    def edit(
        self, sources: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> Iterable[list[Image.Image | None]]:
        """Edit a batch: one list per source, in order and as soon as it is there, in it one image per seed, the same for the same
        arguments in every run; None where the editor would or could not."""
        ...


def load_editor(
    id: str,
    *,
    steps: int = 8,
    size: int = 512,
    batch_size: int = 1,
    dtype: Dtype = "auto",
    offload: Offload = "none",
    device: str | None = None,
) -> ImageEditor:
    """Load an image editor by Hub id or folder.

    Args:
        id: A `diffusers` pipeline that takes an image and a prompt, such as `black-forest-labs/FLUX.2-klein-9B` or
            `timbrooks/instruct-pix2pix`. `diffusers:` in front is allowed.
        steps: Denoising steps per image.
        size: Images are edited at the area of a square with this side, in their own proportions.
        batch_size: Images edited at once, where the pipeline can.
        dtype: Of the weights; `auto` is bfloat16 on an accelerator and float32 on the CPU.
        offload: What waits in main memory until the accelerator needs it: nothing, whole models, or layers. Takes less of the
            accelerator's memory, and more time.
        device: Default: this process's accelerator, if there is one.

    Raises:
        UserError: If there is no such pipeline, it is not an image editor, or it cannot be offloaded here.
    """
    import torch  # here and below: the process in which a light editor runs imports this module too
    from diffusers import DiffusionPipeline

    name = id.removeprefix("diffusers:")
    device = torch.device(device) if device else processes().device
    if offload != "none" and device.type == "cpu":
        raise UserError(
            f"`editor_offload` ({offload}) moves weights between a GPU and main memory, and this runs on the CPU; leave it out."
        )
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else "bfloat16"
    settle_hub(name)
    try:
        pipeline = DiffusionPipeline.from_pretrained(name, dtype=_torch_dtype(dtype), use_safetensors=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--editor {id}: no diffusers pipeline could be loaded: {' '.join(str(error).split())[:300]} "
            "Give a Hub id such as black-forest-labs/FLUX.2-klein-9B, or a folder with a model_index.json."
        ) from error
    pipeline = _pairing(pipeline) if batch_size > 1 else pipeline
    editor = DiffusersEditor(
        pipeline, f"{name_with_digest(name)}?dtype={dtype}", steps=steps, size=size, batch_size=batch_size
    )
    if offload == "model":
        pipeline.enable_model_cpu_offload(device=device)
    elif offload == "sequential":
        pipeline.enable_sequential_cpu_offload(device=device)
    else:
        pipeline.to(device)
    return editor


class DiffusersEditor:
    """A `diffusers` pipeline as image editor.

    All candidates of an image come from one call, each with a random generator of its own, so a candidate depends on its seed
    alone. Several images go into one call only where the pipeline pairs images with prompts, and only those of one size: to most
    pipelines a list of images is one scene seen several times, and others scale all to the size of the first.

    Args:
        pipeline: Takes `image` and `prompt`.
        name: What to call it in the records.
        steps: Denoising steps per image.
        size: Side of the square whose area the edited images have.
        batch_size: Images edited at once, where the pipeline can.
    """

    own_process = False
    # With num_images_per_prompt these would repeat images and prompts in different orders: both are repeated for them.
    PAIRS_REPEATED: ClassVar = {"StableDiffusionInstructPix2PixPipeline"}
    PAIRS: ClassVar = {"PairingFlux2Klein"}

    def __init__(self, pipeline: Any, name: str, *, steps: int = 8, size: int = 512, batch_size: int = 1) -> None:
        self.parameters = inspect.signature(type(pipeline).__call__).parameters
        if missing := {"image", "prompt", "generator"} - set(self.parameters):
            raise UserError(
                f"{name} is a {type(pipeline).__name__}, whose call takes no {' or '.join(sorted(missing))}: it cannot edit "
                "an image by instruction. Give a pipeline that can, such as black-forest-labs/FLUX.2-klein-9B."
            )
        if size < SMALLEST:
            raise UserError(f"`size` must be at least {SMALLEST} pixels, got {size}.")
        pipeline.set_progress_bar_config(disable=True)
        self.pipeline, self.steps, self.size = pipeline, steps, size
        self.id = f"{name}{'&' if '?' in name else '?'}steps={steps}&size={size}"
        self._kind = type(pipeline).__name__
        self._can_pair = self._kind in self.PAIRS_REPEATED | self.PAIRS
        self.batch_size = batch_size if self._can_pair else 1
        if batch_size > self.batch_size:
            logger.warning("A %s edits one image at a time; `editor_batch_size` has no effect.", self._kind)

    def edit(
        self, sources: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> Iterator[list[Image.Image | None]]:
        """One call of the pipeline per source, or per group of equal sizes; a blacked-out or misshapen image gives None."""
        kinds = [(_size(source, self.size), len(row)) for source, row in zip(sources, seeds, strict=True)]
        edited: dict[int, list[Image.Image | None]] = {}
        for place, (size, count) in enumerate(kinds):
            if size is None:
                logger.warning("An image of %d x %d is too narrow to edit; it is dropped.", *sources[place].size)
                edited[place] = [None] * count
            elif place not in edited:
                alike = [at for at, kind in enumerate(kinds) if kind == (size, count)]
                group = alike if self._can_pair else [place]
                images = [sources[at].resize(size, Image.Resampling.LANCZOS) for at in group]
                rows = self._edit_alike(images, [instructions[at] for at in group], [seeds[at] for at in group])
                edited |= dict(zip(group, rows, strict=True))
            yield edited.pop(place)

    def _edit_alike(
        self, images: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> list[list[Image.Image | None]]:
        """One call for images of one size with as many seeds each; as many calls as seeds where a call gives one image only."""
        import torch

        if len(seeds[0]) > 1 and "num_images_per_prompt" not in self.parameters:
            return [[self._edit_alike(images, instructions, [[seed]])[0][0] for seed in seeds[0]]]

        prompts, count = [image_prompt(instruction) for instruction in instructions], len(seeds[0])
        # on the CPU, so that they draw the same on any device
        generators = [torch.Generator("cpu").manual_seed(seed) for row in seeds for seed in row]
        try:
            output = self.pipeline(
                **self._pairs(images, prompts, count), **self._settings(images[0].size), generator=generators
            )
        except torch.OutOfMemoryError as error:
            raise RunStopped(
                f"The image editor needs more memory than the accelerator has ({len(generators)} images of {images[0].size} at once). "
                "Go on with a smaller --editor-batch-size, or with --editor-offload model."
            ) from error
        hidden = output.get("nsfw_content_detected") or [False] * len(generators)
        made = [None if is_hidden or not image.getbbox() else image for image, is_hidden in zip(output.images, hidden, strict=True)]  # fmt: skip
        return [made[start : start + count] for start in range(0, len(made), count)]

    def _pairs(self, images: list[Image.Image], prompts: list[str], count: int) -> dict[str, Any]:
        """Images and prompts so that the rows of the output come image by image."""
        if self._kind in self.PAIRS_REPEATED:
            return {
                "image": [image for image in images for _ in range(count)],
                "prompt": [prompt for prompt in prompts for _ in range(count)],
            }
        if self._kind in self.PAIRS:
            return {"image": images, "prompt": prompts, "num_images_per_prompt": count}
        one = {"image": images[0], "prompt": prompts[0]}
        return one if count == 1 else one | {"num_images_per_prompt": count}

    def _settings(self, size: tuple[int, int]) -> dict[str, Any]:
        width, height = size
        settings = {"num_inference_steps": self.steps, "width": width, "height": height}
        settings |= {
            "max_area": width * height,
            "_auto_resize": False,
        }  # FLUX Kontext works at a megapixel unless told
        if self.pipeline.config.get("is_distilled"):
            settings["guidance_scale"] = 1.0  # a distilled model has none, and warns at every call that asks for some
        if "true_cfg_scale" in self.parameters and self.parameters["true_cfg_scale"].default > 1:
            settings["negative_prompt"] = " "  # Qwen-Image-Edit guides by it, and without one not at all
        return {name: value for name, value in settings.items() if name in self.parameters}


def _size(image: Image.Image, side: int) -> tuple[int, int] | None:
    """At which size an image is edited; None if it is too narrow."""
    return None if max(image.size) > WIDEST * min(image.size) else fit(image.size, side)


def _torch_dtype(name: str) -> Any:
    import torch

    return {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[name]


def fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """The multiple-of-`GRID` size with the proportions of `size` and about the area of a square with this side."""
    scale = side / (size[0] * size[1]) ** 0.5
    return tuple(max(round(edge * scale / GRID), SMALLEST // GRID) * GRID for edge in size)


def _pairing(pipeline: Any) -> Any:
    """The same weights in a pipeline that pairs images with prompts, where we have one."""
    if type(pipeline).__name__ != "Flux2KleinPipeline":
        return pipeline
    from repair_hf.synthesis.pairing import PairingFlux2Klein

    return PairingFlux2Klein(**pipeline.components, is_distilled=pipeline.config.is_distilled)
