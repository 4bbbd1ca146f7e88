"""Crops of cached images: where they lie, and what they show."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from repair_hf.encoder.augmentation import LEAST_AREA, MARGIN, boxes_of, cropped
from repair_hf.encoder.preprocessing import Preprocessor

PIXELS = torch.from_numpy(np.random.default_rng(0).integers(256, size=(70, 3, 20, 20), dtype=np.uint8))


def test_boxes_lie_inside_and_cover_nine_tenths_or_more():
    left, top, width, height = boxes_of(torch.rand(10_000, 4)).double().unbind(1)
    assert min(left.min(), top.min()) >= 0 and max((left + width).max(), (top + height).max()) <= 1 + 1e-6
    area, ratio = width * height, width / height
    assert area.min() >= LEAST_AREA - 1e-6 and abs(area.mean() - 0.95) < 0.002 and area.max() <= 1 + 1e-6
    assert abs(ratio.log().mean()) < 0.002 and 1.05 < ratio.max() <= 1 / LEAST_AREA + 1e-6


def test_a_crop_of_the_whole_or_of_whole_pixels_is_exact():
    whole = torch.tensor([[0.0, 0, 1, 1]]).expand(70, 4)
    assert torch.equal(cropped(PIXELS, whole, (20, 20)), PIXELS)  # more than are cropped at once
    part = torch.tensor([[0.1, 0.2, 0.7, 0.5]]).expand(70, 4)
    assert torch.equal(cropped(PIXELS, part, (10, 14)), PIXELS[:, :, 4:14, 2:16])


def test_a_crop_is_near_that_of_pillow():
    smooth = Image.effect_noise((64, 64), 60).resize((20, 20), Image.Resampling.BOX).convert("RGB")
    box = torch.tensor([[0.04, 0.02, 0.95, 0.97]])
    found = cropped(torch.from_numpy(np.array(smooth)).permute(2, 0, 1)[None], box, (20, 20))[0].permute(1, 2, 0)
    corners = tuple(20 * side for side in (0.04, 0.02, 0.99, 0.99))
    expected = np.array(smooth.resize((20, 20), Image.Resampling.BICUBIC, box=corners), int)
    assert np.abs(found.numpy() - expected).mean() < 3


def test_an_enlarged_preprocessor_keeps_the_content(clip, clip_processor):
    plain = Preprocessor(clip_processor, clip.config)
    large = plain.enlarged(MARGIN)
    side = round(MARGIN * plain.image_shape[1])
    assert large.image_shape == (3, side, side) and large.image_digest != plain.image_digest
    assert plain.image_shape == (3, 32, 32) and clip_processor.image_processor.crop_size["height"] == 32
    image = Image.linear_gradient("L").convert("RGB")
    small = Image.fromarray(large.images([image])[0].permute(1, 2, 0).numpy()).resize((32, 32))
    apart = np.array(small, int) - plain.images([image])[0].permute(1, 2, 0).numpy()
    assert np.abs(apart).max() <= 4
