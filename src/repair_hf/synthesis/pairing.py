"""FLUX.2-klein, taught to edit several images at once.

In:  a `Flux2KleinPipeline`, for which a list of images is one scene seen several times: every prompt would be shown all of them.
Out: the same pipeline, for which the n-th image belongs to the n-th prompt. The images must be of one size.

Not imported before such a pipeline is loaded: it needs diffusers.
"""

from __future__ import annotations

import torch
from diffusers import Flux2KleinPipeline


class PairingFlux2Klein(Flux2KleinPipeline):
    """FLUX.2-klein whose images and prompts come in pairs."""

    def prepare_image_latents(self, images, batch_size, generator, device, dtype):
        """Latents and positions of the images, each for the rows of its own prompt alone.

        Shape:
            images: P tensors of (1, 3, H, W). Returns (B, L, C) and (B, L, 4), the rows of one image together, as those of one prompt are.
        """
        encode = super().prepare_image_latents
        rows = batch_size // len(images)
        encoded = [encode([image], rows, generator, device, dtype) for image in images]
        latents, positions = zip(*encoded, strict=True)
        return torch.cat(latents), torch.cat(positions)
