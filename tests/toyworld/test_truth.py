"""True answers: by the scenes, one query at a time."""

from __future__ import annotations

import numpy as np
import pytest

from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.captions import parse
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.scenes import holds
from repair_hf.toyworld.truth import Truth, scenes_of


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return load_pairs(build_world(tmp_path_factory.mktemp("world"), splits={"train": 60}))  # 300 captions


def test_shares_are_those_of_each_query_by_itself(pairs):
    draw = np.random.default_rng(0)
    images = np.eye(60) + draw.normal(size=(60, 60), scale=0.4)
    texts = np.eye(60)[pairs.caption_image] + draw.normal(size=(300, 60), scale=0.4)
    images, texts = images.astype(np.float32), texts.astype(np.float32)
    scenes, facts = list(scenes_of(pairs)), [parse(text) for text in pairs.captions["caption"][:]]
    found = Truth(pairs).shares(images, texts)
    for k in (1, 5):
        of_images = [holds(facts[c], scenes[i]) for i in range(60) for c in np.argsort(-(texts @ images[i]))[:k]]
        of_texts = [holds(facts[c], scenes[i]) for c in range(300) for i in np.argsort(-(images @ texts[c]))[:k]]
        assert found[f"i2t_true@{k}"] == pytest.approx(np.mean(of_images)) and 0 < np.mean(of_images) < 1
        assert found[f"t2i_true@{k}"] == pytest.approx(np.mean(of_texts)) and 0 < np.mean(of_texts) < 1


def test_pictures_without_a_scene_are_refused(pairs_folder):
    with pytest.raises(UserError, match=r"\w+.png carries no scene"):
        Truth(load_pairs(pairs_folder, split="all"))
