"""The toy world's image editor: it reads a picture's scene, follows the instruction and draws the picture anew.

Candidates of one source differ by a small jitter, like the seeds of a diffusion editor. `world` never errs. Another id
sets rates of errors (`errors`): a change is not made; the layout and another fact change, too (the paper's "scaffold
drift"); a smear shows that the picture was edited.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

from PIL import Image, ImageFilter

from repair_hf.llm.prompts import FIT, Drawing, draws
from repair_hf.toyworld import captions, renderer, variations
from repair_hf.toyworld.domains import DOMAINS
from repair_hf.toyworld.errors import ALIKE, EDITORS, errors_of, name_of
from repair_hf.toyworld.instructions import apply_image_instruction
from repair_hf.toyworld.scenes import Scene, facts_of, satisfy, true_facts

PATCH = 0.4  # side of a smear, as a share of the picture's
SOFTNESS, GRAIN = 2.0, 4.0  # blur and grain of a smear, in 128ths of the picture's side
NOISE = 0.4  # share of noise in a smear of strength 1


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
        edit = f"{before.to_json()}/{instruction}"
        return [self._candidate(source, before, goal, edit, seed) for seed in seeds]

    def _candidate(self, picture: Image.Image, before: Scene, goal: Scene, edit: str, seed: int) -> Image.Image:
        rng, scene = random.Random(f"{edit}/{seed}"), goal
        drifts = _errs(self.errors.drift, "drift", edit, rng.random())
        jitter = rng.randrange(1, 2**31)
        if _errs(self.errors.missed, "missed", edit, rng.random()):
            hard = random.Random(f"hard/{edit}")  # what is hard in an edit is hard for all candidates
            scene = variations.miss(before, goal, hard)
        if drifts:
            scene = variations.slip(scene, variations.unchanged(before, goal), rng)
            scene = replace(scene, layout=rng.randrange(2**31))
        return self._smeared(renderer.render(scene, size=picture.width, jitter=jitter), rng)

    def _imagine(self, canvas: Image.Image, instruction: Drawing, seed: int) -> Image.Image:
        """Draw a picture for a caption, in the domain of `canvas`. Facts are wrong as often as in edits."""
        caption, rng = instruction.caption, random.Random(f"{instruction}/{seed}")
        scene = variations.imagine(caption, rng, DOMAINS[renderer.read_scene(canvas).look])
        if _errs(self.errors.missed, "missed", instruction, rng.random()):
            scene = variations.slip(scene, true_facts(captions.parse(caption), scene), rng)
        if _errs(self.errors.drift, "drift", instruction, rng.random()):
            scene = variations.slip(scene, facts_of(scene), rng)
        return self._smeared(renderer.render(scene, size=canvas.width), rng)

    def _smeared(self, drawn: Image.Image, rng: random.Random) -> Image.Image:
        """Blur and roughen a random patch of an edited picture; `info` stays."""
        if not self.errors.smear:
            return drawn
        side, unit = round(PATCH * drawn.width), drawn.width / renderer.SIDE
        left, top = (rng.randint(0, drawn.width - side) for _ in range(2))
        box = (left, top, left + side, top + side)
        part, grains = drawn.crop(box), max(round(side / (GRAIN * unit)), 1)
        grain = Image.frombytes("RGB", (grains, grains), rng.randbytes(3 * grains * grains)).resize(part.size)
        trace = Image.blend(part.filter(ImageFilter.GaussianBlur(SOFTNESS * unit)), grain, NOISE)
        drawn.paste(Image.blend(part, trace, self.errors.smear), box)
        return drawn


def _errs(rate: float, kind: str, edit: str, own: float) -> bool:
    """Return whether a candidate errs at a rate. In a share `ALIKE` of the errors, all candidates of the edit err."""
    alike = rate * ALIKE
    if random.Random(f"{kind}/{edit}").random() < alike:
        return True
    return own < (rate - alike) / (1 - alike)
