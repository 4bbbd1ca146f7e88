"""Candidate images: made once, whole or not at all, and beside those that fail."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from ledgers import ledger_in

from repair_hf.runtime.options import UserError
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.sources import open_picture
from tests.synthesis.painter import Painter, make


def test_makes_m_different_files_that_keep_their_notes(sources, tmp_path):
    ((paths, others), made, found) = make(Painter(), sources, tmp_path, [(0, "red"), (1, "blue")])
    assert (made, found) == (6, 0) and len({*paths, *others}) == 6
    images = [open_picture(path.read_bytes()) for path in paths]
    assert len({image.tobytes() for image in images}) == 3
    assert all(image.size == (48, 40) and image.info["scene"].startswith("a red surface — ") for image in images)
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
        with ledger_in(tmp_path) as ledger:
            candidates = Candidates(editor, sources, ledger, count=1, seed=0)
            async with candidates.open():
                edits = [asyncio.create_task(candidates.make(fp, "red")) for fp in range(6)]
                edits[-1].add_done_callback(lambda _: editor.may_end.set())
                await asyncio.to_thread(editor.has_begun.wait, 300)
            assert edits[-1].cancelled()

    asyncio.run(work())
    assert len(editor.calls) == len(list(tmp_path.rglob("*.png"))) == 1


def test_a_budget_needs_a_price(sources, tmp_path):
    editor = HostedEditor("openai/mine", base_url="http://127.0.0.1:1")
    with (
        ledger_in(tmp_path, max_usd=1) as ledger,
        pytest.raises(UserError, match="no list price is known for 'openai/mine'"),
    ):
        Candidates(editor, sources, ledger, count=1, seed=0)


def test_makes_only_what_is_missing(sources, tmp_path):
    jobs = [(0, "red"), (1, "nothing")]  # the editor makes none for the second
    first, made, _ = make(Painter(), sources, tmp_path, jobs)
    assert first[1] == [None] * 3 and None not in first[0] and made == 3
    editor = Painter()
    again, made, found = make(editor, sources, tmp_path, jobs)
    assert again == first and (made, found) == (0, 3) and editor.calls == []
    (paths, _), before = first, first[0][1].read_bytes()
    paths[1].unlink()
    (again, *_), made, found = make(Painter(), sources, tmp_path, jobs)
    assert again == paths and (made, found) == (1, 2) and paths[1].read_bytes() == before
    ((more,), made, _) = make(Painter(), sources, tmp_path, jobs[:1], count=5)
    assert more[:3] == paths and made == 2


@pytest.mark.parametrize(
    "change", [{"editor": Painter("other")}, {"seed": 1}, {"jobs": [(1, "red")]}, {"jobs": [(0, "blue")]}]
)
def test_a_file_stands_for_all_that_made_it(change, sources, tmp_path):
    given = {"editor": Painter(), "jobs": [(0, "red")], "seed": 0}
    ((paths,), *_) = make(sources=sources, folder=tmp_path, **given)
    ((others,), *_) = make(sources=sources, folder=tmp_path, **given | change)
    assert not set(paths) & set(others)


@pytest.mark.parametrize(("save_as", "suffix"), [("png", ".png"), ("webp", ".webp"), ("jpeg", ".jpg")])
def test_an_image_is_made_once_whatever_its_format(save_as, suffix, sources, tmp_path):
    ((paths,), *_) = make(Painter(), sources, tmp_path, [(0, "red")], save_as=save_as)
    for path in paths:
        made, file = (
            Painter()._paint(sources.picture(0), "red", int(path.stem[:8], 16)),
            open_picture(path.read_bytes()),
        )
        off = np.abs(np.asarray(made, int) - np.asarray(file, int))
        assert path.suffix == suffix and (off.mean() < 2 if save_as == "jpeg" else off.max() == 0)
    for other in ("png", "webp", "jpeg"):
        ((again,), made, found) = make(Painter(), sources, tmp_path, [(0, "red")], save_as=other)
        assert again == paths and (made, found) == (0, 3)
    paths[0].write_bytes(paths[0].read_bytes()[:-9])  # a disk lost its end
    ((again,), made, _) = make(Painter(), sources, tmp_path, [(0, "red")], save_as=save_as)
    assert made == 1 and again == paths and paths[0].with_suffix(".broken").is_file()


class Small(Painter):
    def _paint(self, source, colour, seed):
        return super()._paint(source, colour, seed).resize((1, 1))


def test_why_there_is_no_candidate_is_kept(sources, tmp_path):
    async def why(words: str) -> str:
        with ledger_in(tmp_path) as ledger:
            candidates = Candidates(Small(), sources, ledger, count=2, seed=0)
            async with candidates.open():
                assert await candidates.make(0, words) == [None, None]
            return candidates.why_none(0, words)

    for words, reason in (("red", "an image of 1 x 1 pixels"), ("nothing", "no image that can be read")):
        for _ in range(2):
            assert asyncio.run(why(words)) == f"no candidate could be made: {reason}"


class Dying(Painter):
    def edit(self, source, instruction, seeds):
        raise MemoryError("no memory for this image")


def test_a_broken_editor_ends_the_run(sources, tmp_path):
    with pytest.raises(MemoryError, match="no memory"):
        make(Dying(), sources, tmp_path, [(0, "red"), (1, "red")])
