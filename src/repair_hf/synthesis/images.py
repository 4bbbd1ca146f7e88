"""Edit images with any `diffusers` pipeline that takes an image and a prompt.

Which further arguments the pipeline gets follows from the signature of its call.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Protocol

from PIL import Image

from repair_hf.llm.prompts import SHIPPED, Prompts, draws
from repair_hf.runtime.hub_access import settle_hub
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import RunStopped, name_with_digest
from repair_hf.synthesis.options import SMALLEST_EDIT

logger = logging.getLogger(__name__)

WIDEST = 8  # FLUX.2 rejects images whose sides differ by a larger factor
GRID = 16  # pipelines crop sides to a multiple of this; we scale to a multiple instead

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Offload = Literal["none", "model", "sequential"]


class ImageEditor(Protocol):
    """An image editor on this machine."""

    id: str
    """Names the model and every setting that changes its images; part of records and of candidate file names."""
    batch_size: int
    """How many images to give to one call of `edit`."""
    own_process: bool
    """True if the editor can be pickled and keeps a CPU core busy; it runs in its own process, others in a thread."""

    def edit(
        self, sources: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> Iterable[list[Image.Image | None]]:
        """Edit a batch.

        Returns:
            One list per source, in order and as soon as it is there, with one image per seed: the same for the same
            arguments in every run. None where the editor gave no image.
        """
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
    prompts: Prompts = SHIPPED,
) -> ImageEditor:
    """Load an image editor by Hub id or folder.

    It is a `diffusers` pipeline that takes an image and a prompt, such as `black-forest-labs/FLUX.2-klein-4B`;
    `diffusers:` in front is allowed. The settings are those of `models.EditorOptions`. The device is this process's
    accelerator by default, if there is one.

    Raises:
        UserError: If there is no such pipeline, it cannot edit images, or it cannot be offloaded here.
    """
    import torch  # here and below: the process of a light editor imports this module too

    name = check_pipeline(id, offload=offload, device=device)
    place = torch.device(device) if device else processes().device
    if dtype == "auto":
        dtype = "float32" if place.type == "cpu" else "bfloat16"
    pipeline = _load_pipeline(name, dtype, is_batched=batch_size > 1)
    name = f"{name_with_digest(name)}?dtype={dtype}"
    editor = DiffusersEditor(pipeline, name, steps=steps, size=size, batch_size=batch_size, prompts=prompts)
    if offload == "model":
        pipeline.enable_model_cpu_offload(device=place)
    elif offload == "sequential":
        pipeline.enable_sequential_cpu_offload(device=place)
    else:
        pipeline.to(place)
    return editor


def check_pipeline(id: str, *, offload: Offload = "none", device: str | None = None, from_text: bool = False) -> str:
    """Check what can be checked without the weights, and return the pipeline's id or folder.

    Raises:
        UserError: If there is no such pipeline, it cannot be offloaded here, or `from_text` is set and it only edits.
    """
    import torch
    from diffusers import DiffusionPipeline
    from diffusers.pipelines.auto_pipeline import AUTO_TEXT2IMAGE_PIPELINES_MAPPING

    name = id.removeprefix("diffusers:")
    place = torch.device(device) if device else processes().device
    if offload != "none" and place.type == "cpu":
        raise UserError(f"`editor_offload` ({offload}) needs a GPU, but this runs on the CPU; leave it out.")
    settle_hub(name)
    with _explained(name), warnings.catch_warnings(action="ignore"):
        kind = DiffusionPipeline.load_config(name)["_class_name"]
    if from_text and kind not in {pipeline.__name__ for pipeline in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()}:
        raise UserError(
            f"--editor {id} is a {kind}: it edits images but cannot draw from text alone, as the methods stablerep "
            "and tripletclip do. Use black-forest-labs/FLUX.2-klein-4B, or leave these methods out."
        )
    return name


def _load_pipeline(name: str, dtype: Dtype, *, is_batched: bool) -> Any:
    import torch
    from diffusers import DiffusionPipeline

    with _explained(name):
        pipeline = DiffusionPipeline.from_pretrained(name, dtype=getattr(torch, dtype), use_safetensors=True)
    if not is_batched or type(pipeline).__name__ != "Flux2KleinPipeline":
        return pipeline
    from repair_hf.synthesis.flux_klein import BatchedFlux2Klein

    return BatchedFlux2Klein(**pipeline.components, is_distilled=pipeline.config.is_distilled)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(
            f"--editor {name}: no diffusers pipeline could be loaded: {' '.join(str(error).split())[:300]} "
            "Give a Hub id such as black-forest-labs/FLUX.2-klein-4B, or a folder with a model_index.json."
        ) from error


class DiffusersEditor:
    """A `diffusers` pipeline as image editor.

    All candidates of an image come from one call, each with its own random generator, so a candidate depends only on
    its seed. Several images share a call only if they have one size and the pipeline pairs images with prompts. Most
    pipelines treat a list of images as one scene seen several times, and others scale all to the size of the first.
    """

    own_process = False
    # With num_images_per_prompt these repeat images and prompts in different orders, so we repeat both ourselves.
    PAIRS_REPEATED: ClassVar = {"StableDiffusionInstructPix2PixPipeline"}
    PAIRS: ClassVar = {"BatchedFlux2Klein"}

    def __init__(
        self,
        pipeline: Any,
        name: str,
        *,
        steps: int = 8,
        size: int = 512,
        batch_size: int = 1,
        prompts: Prompts = SHIPPED,
    ) -> None:
        self.parameters = inspect.signature(type(pipeline).__call__).parameters
        if missing := {"image", "prompt", "generator"} - set(self.parameters):
            raise UserError(
                f"{name} is a {type(pipeline).__name__}, whose call takes no {' or '.join(sorted(missing))}: it "
                "cannot edit images by instruction. Give one that can, such as black-forest-labs/FLUX.2-klein-4B."
            )
        pipeline.set_progress_bar_config(disable=True)
        self.pipeline, self.steps, self.size, self.prompts = pipeline, steps, size, prompts
        self.id = f"{name}{'&' if '?' in name else '?'}steps={steps}&size={size}{prompts.mark}"
        self._kind = type(pipeline).__name__
        self._can_pair = self._kind in self.PAIRS_REPEATED | self.PAIRS
        self.batch_size = batch_size if self._can_pair else 1
        if batch_size > self.batch_size:
            logger.warning("A %s edits one image at a time; `editor_batch_size` has no effect.", self._kind)

    def edit(
        self, sources: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> Iterator[list[Image.Image | None]]:
        """Edit each source alone, or in groups of one size. Blacked-out and very narrow images give None.

        An instruction that draws takes the size of its source alone.
        """
        asked = zip(sources, instructions, seeds, strict=True)
        kinds = [(_size(source, self.size), draws(instruction), len(row)) for source, instruction, row in asked]
        edited: dict[int, list[Image.Image | None]] = {}
        for place, (size, is_drawn, count) in enumerate(kinds):
            if size is None:
                logger.warning("An image of %d x %d is too narrow to edit; it is left out.", *sources[place].size)
                edited[place] = [None] * count
            elif place not in edited:
                alike = [at for at, kind in enumerate(kinds) if kind == (size, is_drawn, count)]
                group = alike if self._can_pair else [place]
                images = [sources[at].resize(size, Image.Resampling.LANCZOS) for at in group]
                rows = self._edit_alike(images, [instructions[at] for at in group], [seeds[at] for at in group])
                edited |= dict(zip(group, rows, strict=True))
            yield edited.pop(place)

    def _edit_alike(
        self, images: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> list[list[Image.Image | None]]:
        """Edit images of one size with as many seeds each, in one call if the pipeline can make several images."""
        import torch

        if len(seeds[0]) > 1 and "num_images_per_prompt" not in self.parameters:
            return [[self._edit_alike(images, instructions, [[seed]])[0][0] for seed in seeds[0]]]

        prompts, count = [self.prompts.image(instruction) for instruction in instructions], len(seeds[0])
        # on the CPU, so that the draws are the same on any device
        generators = [torch.Generator("cpu").manual_seed(seed) for row in seeds for seed in row]
        pairs = self._pairs(images, prompts, count)
        if draws(instructions[0]):
            del pairs["image"]
        try:
            output = self.pipeline(**pairs, **self._settings(images[0].size), generator=generators)
        except torch.OutOfMemoryError as error:
            raise RunStopped(
                f"The image editor ran out of memory ({len(generators)} images of {images[0].size} at once). "
                "Continue with a smaller --editor-batch-size, or with --editor-offload model."
            ) from error
        hidden = output.get("nsfw_content_detected") or [False] * len(generators)
        made = [
            None if is_hidden or not image.getbbox() else image
            for image, is_hidden in zip(output.images, hidden, strict=True)
        ]
        return [made[start : start + count] for start in range(0, len(made), count)]

    def _pairs(self, images: list[Image.Image], prompts: list[str], count: int) -> dict[str, Any]:
        """Arrange images and prompts so that the output comes image by image."""
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
        settings: dict[str, Any] = {"num_inference_steps": self.steps, "width": width, "height": height}
        settings |= {"max_area": width * height, "_auto_resize": False}  # else FLUX Kontext works at a megapixel
        if self.pipeline.config.get("is_distilled"):
            settings["guidance_scale"] = 1.0  # a distilled model has no guidance, and warns if asked for it
        if "true_cfg_scale" in self.parameters and self.parameters["true_cfg_scale"].default > 1:
            settings["negative_prompt"] = " "  # without one, Qwen-Image-Edit applies no guidance
        return {name: value for name, value in settings.items() if name in self.parameters}


def _size(image: Image.Image, side: int) -> tuple[int, int] | None:
    """The size at which an image is edited; None if it is too narrow."""
    return None if max(image.size) > WIDEST * min(image.size) else fit(image.size, side)


def fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """The multiple-of-`GRID` size with the proportions of `size` and about the area of a square with this side."""
    scale = side / (size[0] * size[1]) ** 0.5
    width, height = (max(round(edge * scale / GRID), SMALLEST_EDIT // GRID) * GRID for edge in size)
    return width, height
