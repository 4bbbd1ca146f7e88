"""The loop that works through items: few items at a time, equal work once, and a short way to the provider."""

from __future__ import annotations

import asyncio
import gc
import json
import traceback
import weakref
from pathlib import Path
from types import CoroutineType

import pytest
from datasets import Dataset
from ledgers import ledger_in, rows
from scripted import Scripted, synthesize

import repair_hf
from repair_hf.llm.asker import Asker, Deferred
from repair_hf.llm.ledger import Reply
from repair_hf.llm.options import RequestOptions
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.finished import TaskFile
from repair_hf.synthesis.loop import WORKERS, run_to_end, work_through
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.schemas import Verdict

PACKAGE = Path(repair_hf.__file__).parent


async def answer(request) -> Reply:
    return Reply("yes", dollars=0.0)


class Item:
    """What can be counted while it is alive."""


def test_items_are_made_when_a_worker_is_free_and_freed_when_they_are_done(tmp_path):
    alive, most = weakref.WeakSet(), 0

    def items(count: int):
        nonlocal most
        for _ in range(count):
            item = Item()
            alive.add(item)
            most = max(most, len(alive))
            yield item
            del item

    async def work(item: Item) -> None:
        await asyncio.sleep(0)

    with ledger_in(tmp_path) as ledger:
        run_to_end(work_through(Asker("m", ledger, provider=answer), [items(2000), items(2000)], work))
    gc.collect()
    assert most <= 2 * WORKERS + 2 and not alive


def test_failures_become_tasks_when_a_worker_is_free(world, tmp_path, monkeypatch):
    made, at_first, make_task = [], [], RecordBuilder.task
    monkeypatch.setattr(RecordBuilder, "task", lambda *row: made.append(row) or make_task(*row))

    class Looking(Scripted):
        async def __call__(self, request):
            at_first.append(len(made))
            return await super().__call__(request)

    failures = Dataset.from_list([row for row in world.failures for _ in range(10)])
    synthesize(world, tmp_path, Looking(), failures=failures, check_edits=0)
    assert at_first[0] <= 2 * WORKERS < len(made) == len(failures)


def test_slow_items_of_one_queue_do_not_delay_the_other(tmp_path):
    done, is_free = [], asyncio.Event()

    async def work(item: str) -> None:
        if item == "slow":
            await is_free.wait()
        done.append(item)
        if done.count("quick") == 300:
            is_free.set()

    with ledger_in(tmp_path) as ledger:
        asker = Asker("m", ledger, provider=answer)
        run_to_end(work_through(asker, [["slow"] * 200, ["quick"] * 300], work))
    assert done[:300] == ["quick"] * 300 and len(done) == 500


def test_an_item_that_waits_for_a_batch_stays_and_others_go_on(tmp_path):
    done = []

    async def work(item: int) -> None:
        if item % 2:
            raise Deferred
        done.append(item)

    with ledger_in(tmp_path) as ledger:
        run_to_end(work_through(Asker("m", ledger, provider=answer), [range(10)], work))
    assert done == [0, 2, 4, 6, 8]


def test_after_an_error_nothing_new_is_sent_and_answers_on_their_way_arrive(tmp_path):
    sent, has_failed = [], asyncio.Event()

    async def reply(request) -> Reply:
        sent.append(request)
        await has_failed.wait()
        for _ in range(50):  # turns of the event loop, in which others could be sent
            await asyncio.sleep(0)
        return Reply("yes", dollars=0.0)

    async def work(item: int) -> None:
        if item == 50:
            while len(sent) < 4:
                await asyncio.sleep(0)
            has_failed.set()
            raise RunStopped("the disk is full")
        await asker.ask([{"role": "user", "content": f"question {item}"}], stage="x", direction="i2t")

    with ledger_in(tmp_path) as ledger:
        asker = Asker("m", ledger, provider=reply, options=RequestOptions(concurrency=4))
        with pytest.raises(RunStopped, match="the disk is full"):
            run_to_end(work_through(asker, [range(1000)], work))
    assert len(sent) == 4 == len(rows(tmp_path)) and not rows(tmp_path, "lost")


def test_tasks_that_wait_in_a_file_come_back_as_they_were(tmp_path):
    ways = ("i2t", "i2t", "t2i")
    tasks = [
        RepairTask(n, {"direction": way, "gt_rank": 2}, {"q": 0, "gt": 1, "fp": 7 - n}) for n, way in enumerate(ways)
    ]
    tasks[0].candidates, tasks[0].error_types = ["a dog\non a \u2028 hill", None], ["Object"]
    tasks[0].verdict = Verdict(gt_reason="", gt_valid=True, fp_reason='No "dog".', fp_too_similar=False)
    tasks[1].drop("no_op", "it is right")
    tasks[2].candidates = [tmp_path / "a.png", None]
    file = TaskFile(tmp_path / "finished", 5)
    for task in tasks[::-1]:
        file.add(task)
    assert [file.read(n) for n in range(3)] == tasks
    assert (file.offsets >= 0).tolist() == [True] * 3 + [False] * 2
    assert file.fps["i2t"].tolist() == [7, -1, -1, -1, -1] and file.fps["t2i"].tolist() == [-1, -1, 5, -1, -1]
    assert [json.loads(line)["number"] for line in file.path.read_text().rstrip().split("\n")] == [2, 1, 0]


def ours(code) -> str | None:
    """The file and function of a frame of ours."""
    path = Path(code.co_filename)
    return f"{path.relative_to(PACKAGE)} {code.co_name}" if path.is_relative_to(PACKAGE) else None


def frames_below(task: asyncio.Task) -> list[str]:
    """The frames of ours that a task is suspended in."""
    names, coroutine = [], task.get_coro()
    while isinstance(coroutine, CoroutineType):
        names.append(ours(coroutine.cr_code))
        coroutine = coroutine.cr_await
    return [name for name in names if name]


def test_a_question_passes_six_files_and_a_dozen_frames_from_the_loop_to_the_provider(world, tmp_path):
    ways = []

    class Looking(Scripted):
        async def __call__(self, request):
            here = [ours(frame.f_code) for frame, _ in traceback.walk_stack(None)]
            # the payment is a task of its own, so that it goes on if its caller is cancelled
            there = [frames_below(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            asking = max((names for names in there if "llm/paid_model.py pay" in names), key=len)
            ways.append((asking, [name for name in here if name][::-1]))
            return await super().__call__(request)

    synthesize(world, tmp_path, Looking(), failures=world.of("i2t", 1), concurrency=1)
    ways = [way for way in ways if way[0][0].endswith(" serve")]  # candidates are asked for at once, in tasks
    assert len(ways) == 2  # audit and instruct
    for asking, paying in ways:
        names = [*asking, *paying[paying.index("llm/paid_model.py _insist") :]]
        files = list(dict.fromkeys(name.split()[0] for name in names))
        assert files == [
            "synthesis/loop.py", "synthesis/synthesize.py", "synthesis/steps.py",
            "llm/asker.py", "llm/paid_model.py", "llm/ledger.py",
        ] and len(names) <= 13, names  # fmt: skip
