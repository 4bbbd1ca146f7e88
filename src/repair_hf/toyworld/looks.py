"""How the toy world's pictures look: colors, clutter, and what a camera adds.

A scene names its look, so an edited picture keeps the look of its source. What varies from picture to picture is drawn
from the scene's layout: an edit of a picture has the same strokes and the same grain in the same places.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

Color = tuple[int, int, int]


@dataclass(frozen=True)
class Look:
    """How pictures are drawn. Lengths are in 128ths of a picture's side, shares from 0 to 1.

    Attributes:
        colors: Color of each color word.
        sky, ground: Colors of the background, by day and at night.
        clutter: Number of strokes that show nothing.
        grain: Standard deviation of the pixels' noise, in levels of 255.
        blur: Largest radius of a blur.
        contrast: Range of the contrast; 1 leaves it.
        gray: Share of pictures without color.
        swapped: Share of pictures with their color channels in another order.
        shade: Largest shift of each channel of each color, in levels of 255.
    """

    colors: dict[Any, Color]
    sky: dict[str, Color]
    ground: dict[str, Color]
    clutter: int = 0
    grain: float = 0.0
    blur: float = 0.0
    contrast: tuple[float, float] = (1.0, 1.0)
    gray: float = 0.0
    swapped: float = 0.0
    shade: int = 0


PLAIN = Look(
    colors={
        "red": (222, 45, 38),
        "blue": (38, 98, 217),
        "green": (35, 150, 70),
        "yellow": (250, 205, 40),
        "purple": (142, 60, 170),
        "orange": (242, 140, 30),
    },
    sky={"day": (190, 226, 250), "night": (24, 28, 66)},
    ground={"day": (226, 208, 160), "night": (72, 66, 84)},
)
LOOKS = {
    "plain": PLAIN,
    "web": Look(
        PLAIN.colors, PLAIN.sky, PLAIN.ground,
        clutter=18, grain=24.0, blur=2.0, contrast=(0.6, 1.3), gray=0.08, swapped=0.1, shade=30,
    ),
    "target": Look(
        colors={
            "red": (200, 62, 52),
            "blue": (58, 104, 190),
            "green": (66, 144, 78),
            "yellow": (230, 192, 66),
            "purple": (136, 74, 156),
            "orange": (224, 134, 50),
        },
        sky={"day": (214, 210, 196), "night": (62, 62, 78)},
        ground={"day": (184, 172, 150), "night": (92, 84, 80)},
        clutter=46, grain=46.0, blur=2.5, contrast=(0.8, 1.1), shade=14,
    ),
}  # fmt: skip


def colors_of(look: Look, rng: random.Random) -> dict[Any, Color]:
    """Return the colors of one picture: those of its look, each channel shifted by at most `shade`."""
    if not look.shade:
        return look.colors
    shifted: dict[Any, Any] = {}
    for name, color in look.colors.items():
        shifted[name] = tuple(min(max(level + rng.randint(-look.shade, look.shade), 0), 255) for level in color)
    return shifted


def scribble(pen: ImageDraw.ImageDraw, look: Look, unit: float, rng: random.Random) -> None:
    """Draw the clutter: short strokes in the look's own colors."""
    palette = [*look.colors.values(), *look.sky.values(), *look.ground.values()]
    for _ in range(look.clutter):
        x, y = rng.uniform(0, 128), rng.uniform(0, 128)
        dx, dy = rng.uniform(-22, 22), rng.uniform(-22, 22)
        ends = (x * unit, y * unit, (x + dx) * unit, (y + dy) * unit)
        pen.line(ends, fill=rng.choice(palette), width=max(round(rng.uniform(1, 4) * unit), 1))


def develop(picture: Image.Image, look: Look, rng: random.Random) -> Image.Image:
    """Add what a camera adds: blur, contrast, faults of color, grain."""
    if look.blur:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0, look.blur) * picture.width / 128))
    if look.contrast != (1.0, 1.0):
        picture = ImageEnhance.Contrast(picture).enhance(rng.uniform(*look.contrast))
    fault = rng.random()
    if fault < look.gray:
        picture = picture.convert("L").convert("RGB")
    elif fault < look.gray + look.swapped:
        channels = list(picture.split())
        rng.shuffle(channels)
        picture = Image.merge("RGB", channels)
    if look.grain:
        noise = _grain(rng.randrange(2**32), look.grain, (picture.height, picture.width, 3))
        picture = Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))
    return picture


@lru_cache(8)  # the candidates of an edit have the grain of their source
def _grain(seed: int, deviation: float, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, deviation, shape)
