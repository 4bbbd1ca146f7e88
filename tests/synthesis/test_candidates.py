"""Candidate images: made once, whole or not at all, in a thread or in a process of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from ledgers import ledger_in
from PIL import Image
from small_world import sources_of

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.sources import open_picture
from tests.synthesis.painter import Painter, make


@pytest.mark.parametrize("own_process", [False, True])
def test_makes_m_different_files_that_keep_their_notes(own_process, sources, tmp_path):
    editor = Painter(own_process=own_process)
    ((paths, others), made, found) = make(editor, sources, tmp_path, [(0, "red"), (1, "blue")])
    assert (made, found) == (6, 0) and len({*paths, *others}) == 6
    images = [open_picture(path.read_bytes()) for path in paths]
    assert len({image.tobytes() for image in images}) == 3
    assert all(image.size == (48, 40) and image.info["scene"].startswith("a red surface — ") for image in images)
    assert not list(tmp_path.rglob("*.tmp"))


def test_nobody_is_forgotten_between_two_batches(sources, tmp_path):
    async def one_after_another(candidates, start: int) -> None:
        for step in range(6):
            assert None not in await candidates.make((start + step) % 12, f"#{start:02x}00{step:02x}")

    async def work() -> None:
        with ledger_in(tmp_path) as ledger:
            candidates = Candidates(Painter(batch_size=1), sources, ledger, count=1, seed=0)
            async with candidates.open():
                work = (one_after_another(candidates, start) for start in range(5))
                await asyncio.wait_for(asyncio.gather(*work), 300)

    asyncio.run(work())


def test_batches_hold_images_of_one_shape(tmp_path):
    for at in range(8):
        Image.new("RGB", (64, 48) if at % 2 else (48, 64), (at, 0, 0)).save(tmp_path / f"{at}.png")
    sources = sources_of(*sorted(tmp_path.glob("*.png")))
    editor, shapes = Painter(batch_size=4), []
    paint = editor.edit
    editor.edit = lambda images, *rest: shapes.append({image.size for image in images}) or paint(images, *rest)
    make(editor, sources, tmp_path / "c", [(at, "red") for at in range(8)])
    assert all(len(sizes) == 1 for sizes in shapes)
    assert sum(map(len, editor.calls)) == 8 and 1 < max(map(len, editor.calls)) <= 4


def test_a_budget_needs_a_price(sources, tmp_path):
    editor = HostedEditor("openai/mine", base_url="http://127.0.0.1:1")
    with (
        ledger_in(tmp_path, max_usd=1) as ledger,
        pytest.raises(UserError, match="no list price is known for the editor 'openai/mine'"),
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


class Dying(Painter):
    def edit(self, sources, instructions, seeds):
        if self.own_process:
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError("no memory for this image")


@pytest.mark.parametrize(
    ("own_process", "error", "complaint"), [(False, MemoryError, "no memory"), (True, RunStopped, "process ended")]
)
def test_a_broken_editor_ends_the_run(own_process, error, complaint, sources, tmp_path):
    with pytest.raises(error, match=complaint):
        make(Dying(own_process=own_process), sources, tmp_path, [(0, "red"), (1, "red")])


def test_the_process_ends_with_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, sys
        from types import SimpleNamespace
        from repair_hf.synthesis.editor_queue import start_executor

        if __name__ == "__main__":
            executor = start_executor(SimpleNamespace(own_process=True))
            print(executor.submit(os.getpid).result(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    parent = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, timeout=600)
    child = Path(f"/proc/{int(parent.stdout)}")
    deadline = time.monotonic() + 60
    while child.exists() and "Z" not in (child / "stat").read_text().split()[2] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2]
