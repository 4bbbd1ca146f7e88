"""Selection: the candidate nearest to the false positive, unless it is the false positive itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.runtime.options import UserError
from repair_hf.synthesis import selection
from repair_hf.synthesis.selection import Selection, select_candidate, select_captions, select_images
from repair_hf.synthesis.sources import open_picture


@pytest.mark.parametrize(
    ("similarities", "best"),
    [([0.1, 0.9, 0.5], 1), ([0.5, 0.5], 0), ([None, -0.2, None], 1), ([None, None], None), ([], None), ([0.0], 0)],
)
def test_the_highest_wins_and_of_equals_the_first(similarities, best):
    choice = select_candidate(similarities)
    assert choice == Selection(best, tuple(similarities))
    assert choice.similarity == (None if best is None else similarities[best])


def test_after_the_selected_candidate_come_the_others_the_nearest_first():
    assert select_candidate([0.2, None, 0.9, 0.5]).order == [2, 3, 0]
    assert select_candidate([0.2, None, 0.9, 0.5], "first").order == [0, 2, 3]


def test_captions_are_compared_with_their_own_false_positive(encoder):
    fps = ["a red circle on grey paper", "one blue square"]
    candidates = [
        ["a green circle on grey paper", "green", "a red square on grey paper"],
        ["two blue squares", "one", "a"],
    ]
    choices = select_captions(encoder, zip(fps, candidates, strict=True))
    for fp, texts, choice in zip(fps, candidates, choices, strict=True):
        cosines = encoder.embed_texts(texts) @ encoder.embed_texts([fp])[0]
        np.testing.assert_allclose(choice.similarities, cosines, atol=1e-5)
        assert choice.candidate == int(np.argmax(cosines))


@pytest.mark.parametrize(
    "copy", ["A red circle", "a  red circle", "a red circle.", "a red circle !", " a red\tcircle"]
)
def test_an_unchanged_caption_loses(copy, encoder):
    (choice,) = select_captions(encoder, [("a red circle", [copy, "something else entirely", None])])
    assert choice.candidate == 1 and choice.similarities[0] is None and choice.similarities[2] is None
    (nothing,) = select_captions(encoder, [("a red circle", [copy, copy])])
    assert nothing == Selection(None, (None, None))


def candidates_of(image: Image.Image, folder: Path) -> list[Path]:
    """A turned image, a copy in another file, a slightly changed one."""
    nudged = image.copy()
    nudged.putpixel((0, 0), (1, 2, 3))
    paths = [folder / f"{name}.png" for name in ("turned", "copy", "nudged")]
    for path, picture in zip(paths, (image.transpose(Image.Transpose.ROTATE_180), image, nudged), strict=True):
        picture.save(path)
    return paths


def test_an_image_with_the_same_pixels_loses(encoder, sources, tmp_path):
    paths = candidates_of(sources.picture(8), tmp_path)
    (choice,) = select_images(encoder, sources, [(8, [*paths, None])])
    vectors = encoder.embed_images([open_picture(path.read_bytes()) for path in paths])
    cosines = vectors @ encoder.embed_images([sources.picture(8)])[0]
    assert choice.candidate == 2 and choice.similarities[1] is None and choice.similarities[3] is None
    np.testing.assert_allclose([choice.similarities[0], choice.similarities[2]], [cosines[0], cosines[2]], atol=1e-5)


def test_images_are_embedded_once_in_any_number_of_batches(clip_folder, sources, tmp_path):
    paths = candidates_of(sources.picture(8), tmp_path)
    encoder = DualEncoder.from_pretrained(str(clip_folder), batch_size=2)
    embedded, embed = [], encoder.embed_images
    encoder.embed_images = lambda images, **kw: embedded.append(len(images)) or embed(images, **kw)
    rows = [(8, paths), (3, paths), (8, [paths[0]])]
    choices = list(select_images(encoder, sources, rows))
    assert sum(embedded) == 5 and max(embedded) == 2  # two sources and three files
    for choice, row in zip(choices, rows, strict=True):
        (single,) = select_images(encoder, sources, [row])
        assert choice.candidate == single.candidate
        scores, alone = ([score or 0 for score in one.similarities] for one in (choice, single))
        np.testing.assert_allclose(scores, alone, atol=1e-5)


def test_few_rows_are_in_memory_and_those_of_one_false_positive_share_its_vector(encoder, monkeypatch):
    monkeypatch.setattr(selection, "TOGETHER", 3)
    read, embedded, embed = [], [], encoder.embed_texts
    monkeypatch.setattr(encoder, "embed_texts", lambda texts, **kw: embedded.append(list(texts)) or embed(texts, **kw))

    def rows():
        for number in range(12):
            read.append(number)
            yield f"{number // 3} red circles", [f"{number} blue squares", None]

    choices = select_captions(encoder, rows())
    assert next(choices).candidate == 0 and len(read) == 3
    assert [choice.candidate for choice in choices] == [0] * 11
    assert [len(texts) for texts in embedded] == [1 + 3] * 4


def test_nothing_to_choose_from(encoder, sources):
    assert list(select_captions(encoder, [])) == []
    assert list(select_images(encoder, sources, [(1, [None, None])])) == [Selection(None, (None, None))]


def test_a_broken_candidate_file_is_named(encoder, sources, tmp_path):
    path = tmp_path / "broken.png"
    path.write_bytes(b"")
    with pytest.raises(UserError, match="broken.png is damaged.*Delete it"):
        list(select_images(encoder, sources, [(1, [path])]))
