"""Draw a scene with Pillow, and read the scene back from the picture.

`info["scene"]` of a picture holds the scene; a PNG holds it in a text chunk, which survives files, `datasets` and
base64. The scene's `layout` seeds all positions. `jitter` shifts them slightly, like the seeds of an image editor.
"""

from __future__ import annotations

import io
import math
import random
from typing import Any

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from repair_hf.toyworld.looks import LOOKS, Color, Look, colors_of, develop, scribble
from repair_hf.toyworld.scenes import Scene, Thing

RADIUS = {"large": 18.0, "small": 11.0, None: 15.0}  # in 128ths of the picture's side; the other thing has no size
CROSS = [(0.45, 1.05), (0.45, 0.45), (1.05, 0.45)]  # corners of a quarter
STAR = [(k * math.pi / 5 - math.pi / 2, 0.55 if k % 2 else 1.15) for k in range(10)]  # angle and distance
TURN = [2 * math.pi * k / 24 for k in range(24)]
OUTLINES = {  # corners in radii
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "triangle": [(0, -1.05), (1.05, 0.85), (-1.05, 0.85)],
    "diamond": [(0, -1.15), (0.8, 0), (0, 1.15), (-0.8, 0)],
    "cross": [(a, -b) for a, b in CROSS] + [(a, b) for a, b in reversed(CROSS)]
    + [(-a, b) for a, b in CROSS] + [(-a, -b) for a, b in reversed(CROSS)],
    "star": [(far * math.cos(angle), far * math.sin(angle)) for angle, far in STAR],
    "heart": [(math.sin(t) ** 3 * 1.05,
               -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 15)
              for t in TURN],
}  # fmt: skip
SIDE, SCALE = 128, 2  # drawn at twice the size, then averaged down: smooth edges at little cost


def render(scene: Scene, *, size: int = SIDE, jitter: int = 0) -> Image.Image:
    """Draw a square RGB picture of the scene, `size` pixels wide."""
    rng = random.Random(f"{scene.layout}/{jitter}")
    look, camera = LOOKS[scene.look], random.Random(f"{scene.layout}/camera")
    colors = colors_of(look, camera)
    unit = SCALE * size / SIDE
    picture = Image.new("RGB", (size * SCALE, size * SCALE), look.sky[scene.background])
    pen = ImageDraw.Draw(picture)
    _background(pen, look, scene.background, unit, random.Random(scene.layout))
    for thing, x, y in _places(scene, jitter, rng):
        radius = RADIUS[thing.size] * unit
        _figure(pen, thing, x * unit, y * unit, radius, unit, scene.background, colors[thing.color])
    scribble(pen, look, unit, camera)
    picture = develop(picture.reduce(SCALE), look, camera)
    picture.info["scene"] = scene.to_json()
    return picture


def to_png(picture: Image.Image) -> bytes:
    notes = PngInfo()
    notes.add_text("scene", picture.info["scene"])
    file = io.BytesIO()
    picture.save(file, "PNG", pnginfo=notes, compress_level=1)
    return file.getvalue()


def read_scene(picture: Image.Image | bytes) -> Scene:
    """Read the scene of a picture without decoding pixels.

    Raises:
        ValueError: If the picture has none.
    """
    if isinstance(picture, bytes):
        picture = Image.open(io.BytesIO(picture))
    if "scene" not in picture.info:
        raise ValueError(
            f"This {picture.format or 'picture'} carries no scene: the toy world's oracle and editor read its own "
            "pictures only. Use a real model for real pictures, such as --llm gemini/gemini-3.5-flash-lite."
        )
    return Scene.from_json(picture.info["scene"])


def _places(scene: Scene, jitter: int, rng: random.Random) -> list[tuple[Thing, float, float]]:
    """Return the center of each figure in 128ths: the group on its side of the picture, the other thing opposite."""
    base = random.Random(scene.layout)
    group, other = (64.0, 68.0), (64.0, 68.0)
    if scene.other:
        shifts: dict[Any, tuple[int, int]] = {"left": (-34, 0), "right": (34, 0), "above": (0, -32), "below": (0, 32)}
        shift = shifts[scene.relation]
        group, other = (64 + shift[0], 66 + shift[1]), (64 - shift[0], 66 - shift[1])
    upright = scene.relation in ("left", "right")  # a column beside the other thing, else a row
    step = 2 * RADIUS[scene.subject.size] + (4 if scene.subject.size == "large" else 9)
    offsets = [(k - (scene.subject.count - 1) / 2) * step for k in range(scene.subject.count)]
    places = [(scene.subject, group[0] + (0 if upright else at), group[1] + (at if upright else 0)) for at in offsets]
    if scene.other:
        places.append((scene.other, *other))
    moved = []
    for thing, x, y in places:
        dx, dy = base.uniform(-2, 2), base.uniform(-2, 2)
        if jitter:
            dx, dy = dx + rng.uniform(-1, 1), dy + rng.uniform(-1, 1)
        edge = RADIUS[thing.size] + 2
        moved.append((thing, min(max(x + dx, edge), SIDE - edge), min(max(y + dy, edge), SIDE - edge)))
    return moved


def _background(pen: ImageDraw.ImageDraw, look: Look, background: str, unit: float, rng: random.Random) -> None:
    pen.rectangle((0, 104 * unit, SIDE * unit, SIDE * unit), fill=look.ground[background])
    if background == "day":
        pen.ellipse((108 * unit, 4 * unit, 124 * unit, 20 * unit), fill=(255, 236, 140))
    else:
        pen.ellipse((108 * unit, 4 * unit, 122 * unit, 18 * unit), fill=(236, 236, 220))
        pen.ellipse((104 * unit, 3 * unit, 117 * unit, 16 * unit), fill=look.sky["night"])
        for _ in range(14):
            x, y = rng.uniform(2, 126) * unit, rng.uniform(2, 98) * unit
            pen.ellipse((x, y, x + 1.4 * unit, y + 1.4 * unit), fill=(250, 250, 220))


def _figure(
    pen: ImageDraw.ImageDraw, thing: Thing, x: float, y: float, r: float, unit: float, background: str, color: Color
) -> None:
    """Draw one shape with a face; eyes, marks and limbs show its action."""
    line = (20, 20, 30) if background == "day" else (245, 245, 245)
    width = max(round(1.6 * unit), 1)
    if thing.action == "running":
        for k in (-0.5, 0.0, 0.5):  # streaks trail behind
            pen.line((x - 1.75 * r, y + k * r, x - 1.15 * r, y + k * r), fill=line, width=width)
    elif thing.action == "jumping":
        pen.ellipse((x - 0.7 * r, y + 1.15 * r, x + 0.7 * r, y + 1.4 * r), fill=(90, 90, 100))
        for side in (-1, 1):  # arms thrown up
            pen.line((x + side * 0.7 * r, y - 0.3 * r, x + side * 1.2 * r, y - 1.05 * r), fill=line, width=width)
    _shape(pen, thing.shape, x, y, r, color, line, width)
    ink = (
        (20, 20, 30)
        if thing.color in ("yellow", "green", "red", "orange") or thing.shape == "ring" and background == "day"
        else (250, 250, 250)
    )
    top = y + (0.15 * r if thing.shape == "triangle" else -0.1 * r)
    for side in (-1, 1):
        eye = x + side * 0.28 * r
        if thing.action == "sleeping":
            pen.line((eye - 0.16 * r, top, eye + 0.16 * r, top), fill=ink, width=width)
        else:
            pen.ellipse((eye - 0.12 * r, top - 0.15 * r, eye + 0.12 * r, top + 0.15 * r), fill=ink)
    if thing.action == "sleeping":
        for k, at in ((0.3, 0.95), (0.42, 1.35)):  # z z
            zx, zy, half = x + at * r, y - at * r, k * r * 0.7
            pen.line([(zx - half, zy - half), (zx + half, zy - half), (zx - half, zy + half), (zx + half, zy + half)],
                     fill=line, width=width)  # fmt: skip
    else:
        pen.arc((x - 0.25 * r, top + 0.1 * r, x + 0.25 * r, top + 0.5 * r), 20, 160, fill=ink, width=width)


def _shape(pen: ImageDraw.ImageDraw, shape: str, x: float, y: float, r: float, fill, line, width: int) -> None:
    if shape == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=line, width=width)
    elif shape == "ring":
        pen.ellipse((x - r, y - r, x + r, y + r), outline=fill, width=max(round(0.3 * r), 1))
    else:
        points = [(x + a * r, y + b * r) for a, b in OUTLINES[shape]]
        pen.polygon(points, fill=fill, outline=line, width=width)
