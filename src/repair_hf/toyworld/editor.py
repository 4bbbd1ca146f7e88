"""The toy world's image editor: it reads a picture's scene, follows the instruction and draws the picture anew.

Candidates of one source differ by a small jitter, like the seeds of a diffusion editor. `world` never errs. Another id
sets rates of errors (`errors`): a change is not made; the layout and another fact change, too (the paper's "scaffold
drift"); a smear shows where the picture was edited.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

from PIL import Image, ImageChops, ImageFilter

from repair_hf.llm.prompts import FIT, Drawing, draws
from repair_hf.toyworld import captions, mistakes, renderer, variations
from repair_hf.toyworld.errors import ALIKE, EDITORS, errors_of, name_of
from repair_hf.toyworld.instructions import apply_image_instruction
from repair_hf.toyworld.scenes import Scene, satisfy

PATCH = 0.4  # largest side of a smear, as a share of the picture's
SOFTNESS, GRAIN = 2.0, 4.0  # blur and grain of a smear, in 128ths of the picture's side
NOISE = 0.4  # share of noise in a smear of strength 1
CHANGED = 40  # difference of pixels, of 255, that is an edit

Box = tuple[int, int, int, int]  # left, top, right and bottom edge


class WorldEditor:
    """Edits pictures of the toy world: exactly, or with the errors of its id."""

    def __init__(self, id: str = "world") -> None:
        self.errors, self.id = errors_of(id, EDITORS), name_of(id, EDITORS)

    def edit(self, source: Image.Image, instruction: str, seeds: list[int]) -> list[Image.Image | None]:
        """Edit a picture with each seed; the results keep its size."""
        if draws(instruction):
            return [self._imagine(source, instruction, seed) for seed in seeds]
        before = renderer.read_scene(source)
        if instruction.startswith(FIT):
            goal = satisfy(captions.parse(json.loads(instruction.removeprefix(FIT))), before)
        else:
            goal = apply_image_instruction(before, instruction)
        if goal == before:
            return [source.copy() for _ in seeds]  # nothing was understood; the no-op rule drops it
        place = self._place(source, goal)
        edit = f"{before.to_json()}/{instruction}"
        return [self._candidate(source, before, goal, place, edit, seed) for seed in seeds]

    def _candidate(
        self, picture: Image.Image, before: Scene, goal: Scene, place: Box | None, edit: str, seed: int
    ) -> Image.Image:
        rng, scene = random.Random(f"{edit}/{seed}"), goal
        drifts = _errs(self.errors.drift, "drift", edit, rng.random())
        jitter = rng.randrange(1, 2**31)
        if _errs(self.errors.missed, "missed", edit, rng.random()):
            hard = random.Random(f"hard/{edit}")  # what is hard in an edit is hard for all candidates
            scene = mistakes.miss(before, goal, hard)
        if drifts:
            scene = mistakes.slip(scene, mistakes.unchanged(before, goal), rng)
            scene = replace(scene, layout=rng.randrange(2**31))
        return self._smeared(renderer.render(scene, size=picture.width, jitter=jitter), place, rng)

    def _imagine(self, canvas: Image.Image, instruction: Drawing, seed: int) -> Image.Image:
        """Draw a picture for a caption. Errors are as frequent as in edits: a stated fact is wrong, or any fact."""
        caption, rng = instruction.caption, random.Random(f"{instruction}/{seed}")
        scene = variations.imagine(caption, rng)
        if _errs(self.errors.missed, "missed", instruction, rng.random()):
            scene = mistakes.slip(scene, mistakes.true_facts(captions.parse(caption), scene), rng)
        if _errs(self.errors.drift, "drift", instruction, rng.random()):
            scene = mistakes.slip(scene, mistakes.facts_of(scene), rng)
        return self._smeared(renderer.render(scene, size=canvas.width), self._place(canvas, scene), rng)

    def _place(self, source: Image.Image, goal: Scene) -> Box | None:
        """Return where an edit changes a picture, which shows if edits leave a smear."""
        return _changed(source, renderer.render(goal, size=source.width)) if self.errors.smear else None

    def _smeared(self, drawn: Image.Image, place: Box | None, rng: random.Random) -> Image.Image:
        """Blur and roughen the place of the edit, where a missed change should be, too. `info` stays."""
        if place is None:
            return drawn
        box = _within(place, drawn.width, rng)
        part, unit = drawn.crop(box), drawn.width / renderer.SIDE
        size = [max(round(side / (GRAIN * unit)), 1) for side in part.size]
        grain = Image.frombytes("RGB", (size[0], size[1]), rng.randbytes(3 * size[0] * size[1])).resize(part.size)
        trace = Image.blend(part.filter(ImageFilter.GaussianBlur(SOFTNESS * unit)), grain, NOISE)
        drawn.paste(Image.blend(part, trace, self.errors.smear), box)
        return drawn


def _errs(rate: float, kind: str, edit: str, own: float) -> bool:
    """Return whether a candidate errs at a rate. In a share `ALIKE` of the errors, all candidates of the edit err."""
    alike = rate * ALIKE
    if random.Random(f"{kind}/{edit}").random() < alike:
        return True
    return own < (rate - alike) / (1 - alike)


def _changed(before: Image.Image, after: Image.Image) -> Box:
    """Return the bounding box of what differs clearly between two pictures; all of them if nothing does."""
    channels = ImageChops.difference(before.convert("RGB"), after.convert("RGB")).split()
    largest = ImageChops.lighter(ImageChops.lighter(channels[0], channels[1]), channels[2])
    return largest.point(lambda value: 255 * (value > CHANGED)).getbbox() or (0, 0, *before.size)


def _within(box: Box, side: int, rng: random.Random) -> Box:
    """Return the box, or a random patch in it where it is larger than a patch."""
    most = round(PATCH * side)
    left, top = (start + rng.randint(0, max(end - start - most, 0)) for start, end in (box[::2], box[1::2]))
    return left, top, min(left + most, box[2]), min(top + most, box[3])
