"""The toy world's image editor: reads the scene from the picture, carries out the instruction, draws the picture anew.

In:  pictures of the toy world, one instruction each, seeds.
Out: one picture per seed. Candidates of one source differ by a small jitter, as a diffusion editor's seeds do.

A weak editor can be studied without paying for one: with `drift` a share of the candidates also re-draws what should have stayed (the
paper's "scaffold drift"); with `artifacts` every picture shows that an editor has made it.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

from PIL import Image, ImageFilter

from repair_hf.llm.prompts import DRAW, FIT
from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions, renderer, scenes, variations
from repair_hf.toyworld.instructions import apply_image_instruction

TINT = (128, 118, 104)  # what a picture with artifacts is drawn towards: paler and warmer
SOFTNESS = 3.0  # 128ths of the picture's side that artifacts of full strength blur it by


class WorldEditor:
    """Edits pictures of the toy world exactly, or with the faults of a weak editor.

    Args:
        drift: Share of candidates, from 0 to 1, in which the layout and one fact that the instruction left alone change too.
        artifacts: Strength, from 0 to 1, of the trace that editing leaves in every picture: softer, paler and warmer than a photograph
            of the world. What it shows stays true; only its look tells it from a picture that was never edited.
    """

    batch_size = 8
    own_process = True  # drawing keeps a core busy

    def __init__(self, *, drift: float = 0.0, artifacts: float = 0.0) -> None:
        faults = {"drift": drift, "artifacts": artifacts}
        for name, value in faults.items():
            if not 0 <= value <= 1:
                raise UserError(f"`{name}` is a share between 0 and 1, got {value}.")
        self.drift = drift
        self.artifacts = artifacts
        told = "&".join(f"{name}={value:g}" for name, value in faults.items() if value)
        self.id = f"world?{told}" if told else "world"

    def edit(
        self, sources: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> list[list[Image.Image | None]]:
        """One list per source, one picture per seed, of the source's size."""
        return [
            [self._draw(picture, instruction, seed) for seed in row]
            for picture, instruction, row in zip(sources, instructions, seeds, strict=True)
        ]

    def _draw(self, picture: Image.Image, instruction: str, seed: int) -> Image.Image:
        if instruction.startswith(DRAW):
            rng = random.Random(f"{instruction}/{seed}")
            scene = variations.imagine(json.loads(instruction.removeprefix(DRAW)), rng)
            return self._traced(renderer.render(scene, size=picture.width))
        before = renderer.read_scene(picture)
        if instruction.startswith(FIT):
            scene = scenes.satisfy(captions.parse(json.loads(instruction.removeprefix(FIT))), before)
        else:
            scene = apply_image_instruction(before, instruction)
        if scene == before:
            return picture.copy()  # nothing understood, nothing changed: the no-op rule will drop it
        rng = random.Random(f"{before.to_json()}/{instruction}/{seed}")
        if rng.random() < self.drift:
            scene = _drifted(scene, before, rng)
        return self._traced(renderer.render(scene, size=picture.width, jitter=rng.randrange(1, 2**31)))

    def _traced(self, picture: Image.Image) -> Image.Image:
        """The picture with its artifacts; `info` stays with it."""
        if self.artifacts == 0:
            return picture
        softer = picture.filter(ImageFilter.GaussianBlur(SOFTNESS * self.artifacts * picture.width / renderer.SIDE))
        traced = Image.blend(softer, Image.new("RGB", picture.size, TINT), self.artifacts / 2)
        traced.info |= picture.info
        return traced


def _drifted(scene: scenes.Scene, before: scenes.Scene, rng: random.Random) -> scenes.Scene:
    """A new layout, and one fact changed that the instruction had left alone."""
    kept = [
        name for name in ("color", "size", "action") if getattr(scene.subject, name) == getattr(before.subject, name)
    ]
    choices = {"color": scenes.COLORS, "size": scenes.SIZES, "action": scenes.ACTIONS}
    scene = replace(scene, layout=rng.randrange(2**31))
    if kept:
        name = rng.choice(kept)
        value = rng.choice([choice for choice in choices[name] if choice != getattr(scene.subject, name)])
        return replace(scene, subject=replace(scene.subject, **{name: value}))
    return replace(scene, background="night" if scene.background == "day" else "day")
