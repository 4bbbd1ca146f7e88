"""A picture's look survives an edit, and its strokes and grain stay where they were."""

import random
from dataclasses import replace

import numpy as np
import pytest

from repair_hf.toyworld import renderer, scenes
from repair_hf.toyworld.looks import LOOKS


@pytest.mark.parametrize("look", LOOKS)
def test_an_edit_keeps_the_look_and_every_pixel_far_from_what_changed(look):
    scene = scenes.sample(random.Random(5), company=0.0, look=look)
    scene = replace(scene, subject=replace(scene.subject, count=1, color="red"))
    before, after = (
        renderer.render(replace(scene, subject=replace(scene.subject, color=color))) for color in ("red", "blue")
    )
    assert renderer.read_scene(renderer.to_png(after)).look == look
    changed = np.abs(np.asarray(before, int) - np.asarray(after, int)).max(axis=2) > 40
    assert changed.sum() > 30 and not changed[:20].any() and not changed[110:].any()
