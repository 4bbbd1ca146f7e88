"""Edit images with any `diffusers` pipeline that takes an image and a prompt.

Which further arguments the pipeline gets follows from the signature of its call.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from PIL import Image

from repair_hf.llm.prompts import SHIPPED, Prompts, draws
from repair_hf.runtime.hub_access import settle_hub
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import RunStopped, name_with_digest
from repair_hf.synthesis.options import SMALLEST_EDIT, EditorOptions

logger = logging.getLogger(__name__)

WIDEST = 8  # FLUX.2 rejects images whose sides differ by a larger factor
# Pipelines that take an image for each result; others read a list of images as one scene seen several times.
IMAGE_PER_RESULT = {"StableDiffusionInstructPix2PixPipeline"}
GRID = 16  # pipelines crop sides to a multiple of this; we scale to a multiple instead


class ImageEditor(Protocol):
    """An image editor on this machine."""

    id: str
    """Names the model and every setting that changes its images; part of records and of candidate file names."""

    def edit(self, source: Image.Image, instruction: str, seeds: list[int]) -> list[Image.Image | None]:
        """Edit an image.

        Returns:
            One image per seed: the same for the same arguments in every run. None where the editor gave no image.
        """
        ...


def load_editor(options: EditorOptions, prompts: Prompts = SHIPPED, *, device: str | None = None) -> ImageEditor:
    """Load a `diffusers` pipeline that takes an image and a prompt, by Hub id or folder.

    The device is this process's accelerator by default, if there is one.

    Raises:
        UserError: If there is no such pipeline, it cannot edit images, or it cannot be offloaded here.
    """
    import torch  # here and below: other editors need this module, too, but not torch
    from diffusers import DiffusionPipeline

    name = check_pipeline(options, device=device)
    place, dtype = torch.device(device) if device else processes().device, options.editor_dtype
    if dtype == "auto":
        dtype = "float32" if place.type == "cpu" else "bfloat16"
    with _explained(name):
        pipeline = DiffusionPipeline.from_pretrained(
            name, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
        )
    editor = DiffusersEditor(pipeline, f"{name_with_digest(name)}?dtype={dtype}", options, prompts)
    if options.editor_offload == "model":
        pipeline.enable_model_cpu_offload(device=place)
    elif options.editor_offload == "sequential":
        pipeline.enable_sequential_cpu_offload(device=place)
    else:
        pipeline.to(place)
    return editor


def check_pipeline(options: EditorOptions, *, device: str | None = None, from_text: bool = False) -> str:
    """Check what can be checked without the weights, and return the pipeline's id or folder.

    Raises:
        UserError: If there is no such pipeline, it cannot be offloaded here, or `from_text` is set and it only edits.
    """
    import torch
    from diffusers import DiffusionPipeline
    from diffusers.pipelines.auto_pipeline import AUTO_TEXT2IMAGE_PIPELINES_MAPPING  # seen with diffusers 0.42

    name, offload = options.editor, options.editor_offload
    place = torch.device(device) if device else processes().device
    if offload != "none" and place.type == "cpu":
        raise UserError(f"`editor_offload` ({offload}) needs a GPU, but this runs on the CPU; leave it out.")
    settle_hub(name)
    with _explained(name), warnings.catch_warnings(action="ignore"):
        kind = DiffusionPipeline.load_config(name)["_class_name"]  # of model_index.json; seen with diffusers 0.42
    if from_text and kind not in {pipeline.__name__ for pipeline in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()}:
        raise UserError(
            f"--editor {name} is a {kind}: it edits images but cannot draw from text alone, as the methods stablerep "
            "and tripletclip do. Use black-forest-labs/FLUX.2-klein-4B, or leave these methods out."
        )
    return name


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

    All candidates of an image come from one call, if the pipeline can make several images. Each has its own random
    generator, so a candidate depends only on its seed.
    """

    def __init__(self, pipeline: Any, name: str, options: EditorOptions, prompts: Prompts = SHIPPED) -> None:
        self.parameters = inspect.signature(type(pipeline).__call__).parameters
        if missing := {"image", "prompt", "generator"} - set(self.parameters):
            raise UserError(
                f"{name} is a {type(pipeline).__name__}, whose call takes no {' or '.join(sorted(missing))}: it "
                "cannot edit images by instruction. Give one that can, such as black-forest-labs/FLUX.2-klein-4B."
            )
        pipeline.set_progress_bar_config(disable=True)
        self.pipeline, self.prompts = pipeline, prompts
        self.steps, self.size = options.editor_steps, options.editor_size
        self.id = f"{name}{'&' if '?' in name else '?'}steps={self.steps}&size={self.size}{prompts.mark}"

    def edit(self, source: Image.Image, instruction: str, seeds: list[int]) -> list[Image.Image | None]:
        """Edit an image. A very narrow or hidden image gives None. A `Drawing` takes the size of its source."""
        import torch

        if max(source.size) > WIDEST * min(source.size):
            logger.warning("An image of %d x %d is too narrow to edit; it is left out.", *source.size)
            return [None] * len(seeds)
        if len(seeds) > 1 and "num_images_per_prompt" not in self.parameters:
            return [self.edit(source, instruction, [seed])[0] for seed in seeds]
        size = fit(source.size, self.size)
        settings = self._settings(size, len(seeds)) | {"prompt": self.prompts.image(instruction)}
        if not draws(instruction):
            image = source.resize(size, Image.Resampling.LANCZOS)
            settings["image"] = [image] * len(seeds) if type(self.pipeline).__name__ in IMAGE_PER_RESULT else image
        # on the CPU, so that the draws are the same on any device
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        try:
            output = self.pipeline(**settings, generator=generators)
        except torch.OutOfMemoryError as error:
            raise RunStopped(
                f"The image editor ran out of memory ({len(seeds)} images of {size} at once). Continue with "
                "--editor-offload model."
            ) from error
        hidden = output.get("nsfw_content_detected") or [False] * len(seeds)
        return [None if is_hidden else image for image, is_hidden in zip(output.images, hidden, strict=True)]

    def _settings(self, size: tuple[int, int], count: int) -> dict[str, Any]:
        width, height = size
        settings: dict[str, Any] = {"num_inference_steps": self.steps, "num_images_per_prompt": count}
        settings |= {"width": width, "height": height}
        # Without these FLUX Kontext works at a megapixel. diffusers documents both, the second despite its name. Seen
        # with diffusers 0.42.
        settings |= {"max_area": width * height, "_auto_resize": False}
        if self.pipeline.config.get("is_distilled"):
            settings["guidance_scale"] = 1.0  # a distilled model has no guidance, and warns if asked for it
        if "true_cfg_scale" in self.parameters and self.parameters["true_cfg_scale"].default > 1:
            settings["negative_prompt"] = " "  # without one, Qwen-Image-Edit applies no guidance
        return {name: value for name, value in settings.items() if name in self.parameters}


def fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """The multiple-of-`GRID` size with the proportions of `size` and about the area of a square with this side."""
    scale = side / (size[0] * size[1]) ** 0.5
    width, height = (max(round(edge * scale / GRID), SMALLEST_EDIT // GRID) * GRID for edge in size)
    return width, height
