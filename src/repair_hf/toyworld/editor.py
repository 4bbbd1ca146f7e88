"""The toy world's image editor: reads the scene from the picture, carries out the instruction, draws the picture anew.

In:  pictures of the toy world, one instruction each, seeds.
Out: one picture per seed. Candidates of one source differ by a small jitter, as a diffusion editor's seeds do; with `drift` a
     share of them also re-draws what should have stayed (the paper's "scaffold drift"), to study a weak editor without paying for one.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

from PIL import Image

from repair_hf.options import UserError
from repair_hf.synthesis.prompts import DRAW, FIT
from repair_hf.toyworld import captions, renderer, scenes, variations
from repair_hf.toyworld.instructions import apply_image_instruction


class WorldEditor:
    """Edits pictures of the toy world exactly, or with scaffold drift at a given rate.

    Args:
        drift: Share of candidates, from 0 to 1, in which the layout and one fact that the instruction left alone change too.
    """

    batch_size = 8
    own_process = True  # drawing keeps a core busy

    def __init__(self, *, drift: float = 0.0) -> None:
        if not 0 <= drift <= 1:
            raise UserError(f"`drift` is a share between 0 and 1, got {drift}.")
        self.drift = drift
        self.id = "world" if drift == 0 else f"world?drift={drift:g}"

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
            return renderer.render(
                variations.imagine(json.loads(instruction.removeprefix(DRAW)), rng), size=picture.width
            )
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
        return renderer.render(scene, size=picture.width, jitter=rng.randrange(1, 2**31))


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
