"""Candidate images of an editor on this machine: made once, whole or not at all, and beside those that fail."""

from __future__ import annotations

import asyncio
import io
import threading

import numpy as np
import pytest
from PIL import Image

from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.sources import open_picture
from tests.synthesis.painter import Painter, make


def test_makes_m_different_files_that_keep_their_scene(sources, tmp_path):
    (paths, others), images = make(Painter(), sources, tmp_path, [(0, "red"), (1, "blue")])
    assert (images.made, images.reused) == (6, 0) and len({*paths, *others}) == 6
    pictures = [open_picture(path.read_bytes()) for path in paths]
    assert len({picture.tobytes() for picture in pictures}) == 3
    assert all(picture.size == (48, 40) for picture in pictures)
    assert all(picture.info["scene"].startswith("a red surface — ") for picture in pictures)
    assert not list(tmp_path.rglob("*.tmp"))


class Waiting(Painter):
    """Begins an edit, and ends it when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def edit(self, source, instruction, seeds):
        self.has_begun.set()
        assert self.may_end.wait(300)
        return super().edit(source, instruction, seeds)


def test_the_edit_in_progress_is_kept_when_a_run_ends_and_those_that_wait_are_dropped(sources, tmp_path):
    editor = Waiting()

    async def work() -> None:
        candidates = Candidates(editor, sources, tmp_path, count=1, seed=0)
        edits = [asyncio.create_task(candidates.make(fp, "red")) for fp in range(6)]
        edits[-1].add_done_callback(lambda _: editor.may_end.set())
        await asyncio.to_thread(editor.has_begun.wait, 300)
        await candidates.close()
        assert edits[-1].cancelled()

    asyncio.run(work())
    assert len(editor.calls) == len(list(tmp_path.rglob("*.png"))) == 1


def test_makes_only_what_is_missing(sources, tmp_path):
    jobs = [(0, "red"), (1, "nothing")]  # the editor makes none for the second
    (paths, why), images = make(Painter(), sources, tmp_path, jobs)
    assert why == "no candidate: no image that can be read" and None not in paths and images.made == 3
    editor = Painter()
    again, images = make(editor, sources, tmp_path, jobs)
    assert again == [paths, why] and (images.made, images.reused) == (0, 3) and editor.calls == []
    before = paths[1].read_bytes()
    paths[1].unlink()
    (again, *_), images = make(Painter(), sources, tmp_path, jobs)
    assert again == paths and (images.made, images.reused) == (1, 2) and paths[1].read_bytes() == before
    (more,), images = make(Painter(), sources, tmp_path, jobs[:1], count=5)
    assert more[:3] == paths and images.made == 2


def test_equal_edits_are_made_once(sources, tmp_path):
    editor = Painter()
    (one, other), images = make(editor, sources, tmp_path, [(0, "red"), (0, "red")])
    assert one == other and (images.made, images.reused) == (3, 3) and editor.calls == ["red"]


@pytest.mark.parametrize(
    "change", [{"editor_of": Painter("other")}, {"seed": 1}, {"jobs": [(1, "red")]}, {"jobs": [(0, "blue")]}]
)
def test_a_file_stands_for_all_that_made_it(change, sources, tmp_path):
    first = {"editor_of": Painter(), "jobs": [(0, "red")], "seed": 0}
    (paths,), _ = make(sources=sources, folder=tmp_path, **first)
    (others,), _ = make(sources=sources, folder=tmp_path, **first | change)
    assert not set(paths) & set(others)


@pytest.mark.parametrize(("save_as", "suffix"), [("png", ".png"), ("webp", ".webp"), ("jpeg", ".jpg")])
def test_an_image_is_made_once_whatever_its_format(save_as, suffix, sources, tmp_path):
    (paths,), _ = make(Painter(), sources, tmp_path, [(0, "red")], save_as=save_as)
    for path in paths:
        painted = Painter().paint(sources.picture(0), "red", int(path.stem[:8], 16))
        off = np.abs(np.asarray(painted, int) - np.asarray(open_picture(path.read_bytes()), int))
        assert path.suffix == suffix and (off.mean() < 2 if save_as == "jpeg" else off.max() == 0)
    for other in ("png", "webp", "jpeg"):
        (again,), images = make(Painter(), sources, tmp_path, [(0, "red")], save_as=other)
        assert again == paths and (images.made, images.reused) == (0, 3)
    paths[0].unlink()
    (again,), images = make(Painter(), sources, tmp_path, [(0, "red")], save_as=save_as)
    assert images.made == 1 and again == paths and paths[0].is_file()


class Other(Painter):
    """Returns images of another mode or size."""

    def __init__(self, mode: str, size: tuple[int, int] = (48, 40), color: object = None) -> None:
        super().__init__()
        self.mode, self.size, self.color = mode, size, color

    def paint(self, source, color, seed):
        if self.color is not None:
            return Image.new(self.mode, self.size, self.color)
        image = super().paint(source, color, seed).resize(self.size)
        return image.convert("L").convert(self.mode) if self.mode == "F" else image.convert(self.mode)


class Cut(Painter):
    """Opens files that are cut off, and does not load them."""

    def paint(self, source, color, seed):
        file = io.BytesIO()
        super().paint(source, color, seed).save(file, "PNG")
        return Image.open(io.BytesIO(file.getvalue()[:-40]))


@pytest.mark.parametrize("mode", ["CMYK", "F", "LAB", "HSV", "RGBA", "L", "P", "I;16"])
@pytest.mark.parametrize("save_as", ["png", "jpeg"])
def test_an_image_of_any_mode_is_kept_in_rgb(mode, save_as, sources, tmp_path):
    editor = Other(mode, color={"I;16": 30_000, "LAB": (128, 200, 128)}.get(mode))
    (paths,), _ = make(editor, sources, tmp_path, [(0, "red")], save_as=save_as)
    for path in paths:
        with Image.open(path) as image:
            assert image.mode == "RGB" and image.size == (48, 40) and image.getbbox()


@pytest.mark.parametrize(
    ("editor", "reason"),
    [
        (Cut(), "no image that can be read"),
        (Other("RGB", (1, 1)), "an image of 1 x 1 pixels"),
        (Other("RGB", (900, 2)), "an image of 900 x 2 pixels"),
        (Other("RGB", color="black"), "a black image"),
    ],
    ids=["cut off", "a pixel", "a line", "black"],
)
def test_what_is_no_image_is_kept_as_a_reason_and_asked_for_once(editor, reason, sources, tmp_path):
    editor.calls.clear()
    for _ in range(2):
        (why,), _ = make(editor, sources, tmp_path, [(0, "red")])
        assert why.startswith(f"no candidate: {reason}") and len(editor.calls) == 1


class Dying(Painter):
    def edit(self, source, instruction, seeds):
        raise MemoryError("no memory for this image")


def test_a_broken_editor_ends_the_run(sources, tmp_path):
    with pytest.raises(MemoryError, match="no memory"):
        make(Dying(), sources, tmp_path, [(0, "red"), (1, "red")])
