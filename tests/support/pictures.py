"""Twelve small pictures with two captions each."""

from pathlib import Path

from PIL import Image, ImageDraw

COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("circle", "square", "triangle")


def pictures() -> list[tuple[str, list[str]]]:
    """Return the file name and the captions of each picture."""
    return [
        (
            f"{colour}_{shape}.png",
            [f"a {colour} {shape} on grey paper", f"the picture shows one {shape}, painted {colour}"],
        )
        for colour in COLOURS
        for shape in SHAPES
    ]


def draw(name: str) -> Image.Image:
    """Draw the picture of a file name, 48x40 pixels."""
    colour, shape = Path(name).stem.split("_")
    image = Image.new("RGB", (48, 40), "lightgrey")
    pen = ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse((14, 10, 34, 30), fill=colour)
    elif shape == "square":
        pen.rectangle((14, 10, 34, 30), fill=colour)
    else:
        pen.polygon([(24, 10), (14, 30), (34, 30)], fill=colour)
    return image
