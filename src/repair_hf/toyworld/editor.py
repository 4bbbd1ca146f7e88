"""The toy world's image editor: it reads a picture's scene, follows the instruction and draws the picture anew.

Candidates of one source differ by a small jitter, like the seeds of a diffusion editor. It can imitate a weak editor:
with `drift`, some candidates also change what should stay (the paper's "scaffold drift"); with `artifacts`, every
picture shows that it was edited.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from PIL import Image, ImageFilter

from repair_hf.llm.prompts import DRAW, FIT
from repair_hf.toyworld import captions, renderer, scenes, variations
from repair_hf.toyworld.instructions import apply_image_instruction

TINT = (128, 118, 104)  # color that artifacts blend in: paler and warmer
SOFTNESS = 3.0  # blur of full artifacts, in 128ths of the picture's side


class WorldEditor:
    """Edits pictures of the toy world exactly, or with the faults of a weak editor.

    Args:
        drift: Share of candidates, from 0 to 1, in which the layout and an unmentioned fact change, too.
        artifacts: Strength, from 0 to 1, of the trace of editing: softer, paler and warmer pictures with true content.
    """

    batch_size = 8
    own_process = True  # drawing keeps a core busy

    def __init__(self, *, drift: float = 0.0, artifacts: float = 0.0) -> None:
        self.drift, self.artifacts = drift, artifacts
        query = "&".join(f"{name}={value:g}" for name, value in vars(self).items() if value)
        self.id = f"world?{query}" if query else "world"

    def edit(
        self, sources: list[Image.Image], instructions: list[str], seeds: list[list[int]]
    ) -> list[list[Image.Image | None]]:
        """Edit each source with each of its seeds; pictures keep the source's size."""
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
            return picture.copy()  # nothing was understood; the no-op rule drops it
        rng = random.Random(f"{before.to_json()}/{instruction}/{seed}")
        if rng.random() < self.drift:
            scene = _drifted(scene, before, rng)
        return self._traced(renderer.render(scene, size=picture.width, jitter=rng.randrange(1, 2**31)))

    def _traced(self, picture: Image.Image) -> Image.Image:
        """Add the artifacts; `info` stays."""
        if self.artifacts == 0:
            return picture
        softer = picture.filter(ImageFilter.GaussianBlur(SOFTNESS * self.artifacts * picture.width / renderer.SIDE))
        traced = Image.blend(softer, Image.new("RGB", picture.size, TINT), self.artifacts / 2)
        traced.info |= picture.info
        return traced


def _drifted(scene: scenes.Scene, before: scenes.Scene, rng: random.Random) -> scenes.Scene:
    """Change the layout and one fact that the instruction left alone."""
    kept = [
        name for name in ("color", "size", "action") if getattr(scene.subject, name) == getattr(before.subject, name)
    ]
    values = {"color": scenes.COLORS, "size": scenes.SIZES, "action": scenes.ACTIONS}
    scene = replace(scene, layout=rng.randrange(2**31))
    if kept:
        name = rng.choice(kept)
        others = [value for value in values[name] if value != getattr(scene.subject, name)]
        change: dict[str, Any] = {name: rng.choice(others)}
        return replace(scene, subject=replace(scene.subject, **change))
    return replace(scene, background="night" if scene.background == "day" else "day")
