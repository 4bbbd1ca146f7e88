"""Edit images: carry out an edit instruction on a false-positive image.

In:  images, one instruction each, and for each the seeds of its M candidates.
Out: for each image one edited image per seed. Any `diffusers` pipeline that takes an image and a prompt will do; what else it is given
     is read from the signature of its call.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, ClassVar, Protocol

from PIL import Image

from repair_hf.options import UserError
from repair_hf.synthesis.prompts import image_prompt

logger = logging.getLogger(__name__)

WIDEST = 8  # FLUX.2 refuses images whose sides differ by more
GRID = 16  # pipelines cut sides down to a multiple of this, cropping; we scale to one instead


class ImageEditor(Protocol):
    """What the synthesis asks of an image editor."""

    id: str
    """Names the model and every setting that changes its images. Goes into the records and into the names of the candidate files."""
    batch_size: int
    """How many images to hand to one call of `edit`; its candidates are on disk only when the call returns."""
    own_process: bool
    """True for an editor that can be pickled and keeps a CPU core busy: it then runs in a process of its own. A model stays here, in a thread."""

    def edit(
        self, sources: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> list[list[Image.Image | None]]:
        """Edit a batch: one list per source, in it one image per seed, the same for the same arguments in every run; None
        where the editor would or could not."""
        ...


def load_editor(id: str, *, steps: int = 8, size: int = 512, device: str | None = None) -> ImageEditor:
    """Load an image editor by Hub id or folder.

    Args:
        id: A `diffusers` pipeline that takes an image and a prompt, such as `black-forest-labs/FLUX.2-klein-9B` or
            `timbrooks/instruct-pix2pix`. `diffusers:` in front is allowed.
        steps: Denoising steps per image.
        size: Images are edited at the area of a square with this side, in their own proportions.
        device: Default: the GPU if there is one.

    Raises:
        UserError: If there is no such pipeline, or it is not an image editor.
    """
    import torch  # here and below: the process in which a light editor runs imports this module too
    from diffusers import DiffusionPipeline

    name = id.removeprefix("diffusers:")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        pipeline = DiffusionPipeline.from_pretrained(name, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--editor {id}: no diffusers pipeline could be loaded: {' '.join(str(error).split())[:300]} "
            "Give a Hub id such as black-forest-labs/FLUX.2-klein-9B, or a folder with a model_index.json."
        ) from error
    return DiffusersEditor(pipeline.to(device), name, steps=steps, size=size)


class DiffusersEditor:
    """A `diffusers` pipeline as image editor.

    All candidates of an image come from one call, each with a random generator of its own, so a candidate depends on its seed
    alone. One image per call: a list of images is one scene seen several times to FLUX.2 and Qwen-Image-Edit, and only to
    InstructPix2Pix a batch.

    Args:
        pipeline: Takes `image` and `prompt`.
        name: What to call it in the records.
        steps: Denoising steps per image.
        size: Side of the square whose area the edited images have.
    """

    own_process = False
    batch_size = 1
    PAIRS_IMAGES_WITH_PROMPTS: ClassVar = {"StableDiffusionInstructPix2PixPipeline"}

    def __init__(self, pipeline: Any, name: str, *, steps: int = 8, size: int = 512) -> None:
        self.parameters = inspect.signature(type(pipeline).__call__).parameters
        if missing := {"image", "prompt", "generator"} - set(self.parameters):
            raise UserError(
                f"{name} is a {type(pipeline).__name__}, whose call takes no {' or '.join(sorted(missing))}: it cannot edit "
                "an image by instruction. Give a pipeline that can, such as black-forest-labs/FLUX.2-klein-9B."
            )
        if size < 64:
            raise UserError(f"`size` must be at least 64 pixels, got {size}.")
        pipeline.set_progress_bar_config(disable=True)
        self.pipeline, self.steps, self.size = pipeline, steps, size
        self.id = f"{name}?steps={steps}&size={size}"

    def edit(
        self, sources: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> list[list[Image.Image | None]]:
        """One call of the pipeline per source; a blacked-out or misshapen image gives None."""
        return [self._edit_one(*one) for one in zip(sources, instructions, seeds, strict=True)]

    def _edit_one(self, source: Image.Image, instruction: str, seeds: list[int]) -> list[Image.Image | None]:
        import torch

        if max(source.size) > WIDEST * min(source.size):
            logger.warning("An image of %d x %d is too narrow to edit; it is dropped.", *source.size)
            return [None] * len(seeds)
        width, height = _fit(source.size, self.size)
        image = source.resize((width, height), Image.Resampling.LANCZOS)
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]  # the same draws on any device
        output = self.pipeline(
            **self._image_and_prompt(image, instruction, len(seeds)),
            **self._settings(width, height),
            generator=generators,
        )
        blacked_out = output.get("nsfw_content_detected") or [False] * len(seeds)
        return [None if hidden else image for image, hidden in zip(output.images, blacked_out, strict=True)]

    def _image_and_prompt(self, image: Image.Image, instruction: str, count: int) -> dict[str, Any]:
        prompt = image_prompt(instruction)
        if type(self.pipeline).__name__ in self.PAIRS_IMAGES_WITH_PROMPTS:
            # with num_images_per_prompt, it would repeat prompts and images in different orders
            return {"image": [image] * count, "prompt": [prompt] * count}
        return {"image": image, "prompt": prompt, "num_images_per_prompt": count}

    def _settings(self, width: int, height: int) -> dict[str, Any]:
        settings = {"num_inference_steps": self.steps, "width": width, "height": height}
        if self.pipeline.config.get("is_distilled"):
            settings["guidance_scale"] = 1.0  # a distilled model has none, and warns at every call that asks for some
        return {name: value for name, value in settings.items() if name in self.parameters}


def _fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """The multiple-of-`GRID` size with the proportions of `size` and about the area of a square with this side."""
    scale = side / (size[0] * size[1]) ** 0.5
    return tuple(max(round(edge * scale / GRID), 64 // GRID) * GRID for edge in size)
