"""Random resized crops of images that are decoded and resized already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_AREA = 0.9  # of a crop, as open_clip's default; none is mirrored, because captions say left and right
MARGIN = LEAST_AREA**-0.5  # images are kept larger by it, so that few crops are enlarged
AT_ONCE = 64


def boxes_of(draws: Tensor) -> Tensor:
    """Turn uniform draws, (n, 4), into crops of square images: (n, 4) left, top, width and height, as fractions.

    Area and place are uniform, and the logarithm of the aspect ratio is, as far as the crop fits.
    """
    area = LEAST_AREA + (1 - LEAST_AREA) * draws[:, 0]
    ratio = area ** (1 - 2 * draws[:, 1])  # from the area to its inverse
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1)  # (n, 2) width, height
    return torch.cat([draws[:, 2:] * (1 - sides), sides], 1)


def cropped(pixels: Tensor, boxes: Tensor, size: Sequence[int]) -> Tensor:
    """Crop images and resize the crops, with bicubic interpolation.

    Shape:
        pixels: (n, 3, H, W) uint8, on any device. boxes: (n, 4) left, top, width and height, as fractions.
        Returns (n, 3, *size) uint8.
    """
    found = []
    for images, some in zip(pixels.split(AT_ONCE), boxes.split(AT_ONCE), strict=True):
        corners, sides = some.chunk(2, 1)
        matrix = torch.cat([sides.diag_embed(), (2 * corners + sides - 1)[..., None]], 2)  # (n, 2, 3)
        grid = F.affine_grid(matrix, [len(images), 3, *size], align_corners=False)
        values = F.grid_sample(images.float(), grid, "bicubic", padding_mode="border", align_corners=False)
        found.append(values.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(found)
