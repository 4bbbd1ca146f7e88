"""FLUX.2-klein with one image per prompt, so that several images are edited in one call.

Import it only after such a pipeline is loaded: it needs diffusers.
"""

from __future__ import annotations

import torch
from diffusers import Flux2KleinPipeline


class BatchedFlux2Klein(Flux2KleinPipeline):
    """FLUX.2-klein whose n-th image belongs to the n-th prompt; the original shows all images to every prompt."""

    def prepare_image_latents(self, images, batch_size, generator, device, dtype):
        """Encode the images, which must have one size, each for the rows of its own prompt.

        Shape:
            images: P tensors of (1, 3, H, W). Returns (B, L, C) and (B, L, 4), with the rows of one prompt together.
        """
        encode = super().prepare_image_latents  # type: ignore[misc]
        rows = batch_size // len(images)
        encoded = [encode([image], rows, generator, device, dtype) for image in images]
        latents, positions = zip(*encoded, strict=True)
        return torch.cat(latents), torch.cat(positions)
