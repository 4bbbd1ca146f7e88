"""Loaded images, digests, and captions of equal text."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs, load_pairs, load_wanted, loading_once
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.options import PairsOptions
from tests.pairs.made_sources import rows_of, write


def test_images_are_upright_rgb_and_transparent_ones_get_a_white_background(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (8, 12, 4), dtype=np.uint8)
    clear = PIL.Image.fromarray(noise, "RGBA")
    clear.save(tmp_path / "rgba.png")
    exif = PIL.Image.Exif()
    exif[PIL.Image.ExifTags.Base.Orientation] = 6
    PIL.Image.fromarray(noise[..., :3]).save(tmp_path / "turned.png", exif=exif)
    PIL.Image.fromarray(noise[..., 0]).save(tmp_path / "grey.png")
    write(tmp_path, [{"image": name, "captions": ["a"]} for name in ("turned.png", "rgba.png", "grey.png")])
    turned, rgba, grey = load_pairs(tmp_path, split="all").images["image"]
    assert {image.mode for image in (turned, rgba, grey)} == {"RGB"}
    assert (turned.size, grey.size) == ((8, 12), (12, 8))
    white = PIL.Image.new("RGBA", clear.size, "white")
    np.testing.assert_array_equal(np.asarray(rgba), np.asarray(PIL.Image.alpha_composite(white, clear).convert("RGB")))


def test_fingerprint_is_of_the_content_wherever_it_lies(folder, tmp_path, monkeypatch):
    before = load_pairs(folder, split="all").fingerprint
    os.utime(folder / "red_circle.png", (1, 1))
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "renamed")
    monkeypatch.chdir(tmp_path)
    for source in (folder, tmp_path / "renamed", "renamed"):
        assert load_pairs(source, split="all").fingerprint == before
    rows = rows_of(folder)
    rows[0]["captions"][0] += "!"
    of_captions = load_pairs(write(folder, rows), split="all").fingerprint
    (folder / "red_circle.png").write_bytes((folder / "blue_square.png").read_bytes())
    assert len({before, of_captions, load_pairs(folder, split="all").fingerprint}) == 3


def test_commands_that_follow_each_other_load_equal_pairs_once(folder):
    whole, part = (PairsOptions(str(folder), split="all", max_captions=most) for most in (None, 1))
    with loading_once():
        pairs = load_wanted(whole)
        assert load_wanted(part, "all") is not pairs is load_wanted(replace(part, max_captions=None))
    assert load_wanted(whole) is not pairs
    assert load_wanted(whole).fingerprint == pairs.fingerprint


def test_fingerprint_of_embedded_images_goes_by_their_bytes(tmp_path):
    def pairs(name: str, colour: str) -> Pairs:
        images = [PIL.Image.new("RGB", (8, 8), colour)]
        Dataset.from_dict({"image": images, "caption": ["a"]}).save_to_disk(tmp_path / name)
        return load_pairs(tmp_path / name, split="all")

    assert pairs("one", "red").fingerprint == pairs("two", "red").fingerprint != pairs("three", "blue").fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A  red circle.", "a red circle"),
        ("Straße!?", "STRASSE"),
        (" a\tb ", "a b"),
        ("两只狗在跑。", "两只狗在跑"),
        ("a cafe\u0301", "a café"),
        ("a man’s hat", "a man's hat"),
    ],
)
def test_captions_of_equal_text(one, other):
    assert bare_caption(one) == bare_caption(other)
    assert bare_caption("a red, circle") != bare_caption("a red circle")
