"""What is true by the scenes, one pair at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.truth import truth_of
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.captions import parse
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.scenes import holds
from repair_hf.toyworld.truth import scenes_of, true_pairs, with_scenes


def test_true_pairs_are_those_that_hold(tmp_path):
    pairs = load_pairs(build_world(tmp_path, splits={"train": 60}))  # 300 captions
    facts = [parse(text) for text in pairs.captions["caption"][:]]
    held = [(i, c) for i, scene in enumerate(scenes_of(pairs)) for c, said in enumerate(facts) if holds(said, scene)]
    images, captions = true_pairs(pairs)
    assert set(zip(images.tolist(), captions.tolist(), strict=True)) == set(held) and len(held) > 300
    assert set(zip(pairs.caption_image.tolist(), range(300), strict=True)) <= set(held)
    assert np.issubdtype(images.dtype, np.integer)
    known = with_scenes(truth_of(pairs)[0], pairs).known(torch.arange(60), torch.arange(300))
    assert set(map(tuple, known.nonzero().tolist())) == set(held)


def test_pictures_without_a_scene_are_refused(pairs_folder):
    with pytest.raises(UserError, match=r"\w+.png carries no scene"):
        list(scenes_of(load_pairs(pairs_folder, split="all")))
