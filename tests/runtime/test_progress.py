"""Progress without a terminal: a line a minute with count, rate and time left, and nothing from other processes."""

import io
import re
import subprocess
import sys

import pytest

from repair_hf.runtime import progress
from repair_hf.runtime.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_with_count_rate_and_time_left(clock, capsys):
    with Progress(total=1200, desc="Embedding images", unit=" images") as bar:
        for _ in range(6):
            clock[0] += 20
            bar.update(100)
    assert capsys.readouterr().err.splitlines() == [
        "Embedding images: 300 of 1,200 images, 5.0 a second, 03:00 left",
        "Embedding images: 600 of 1,200 images, 5.0 a second, 02:00 left",
    ]


def test_what_is_iterated_is_counted_too(clock, capsys):
    for _ in Progress(iter("abcd"), "Downloading images", total=4, unit=" images"):
        clock[0] += 90
    rate = "0.7 a minute"
    assert capsys.readouterr().err.splitlines() == [
        f"Downloading images: {n} of 4 images, {rate}, {left} left"
        for n, left in ((1, "04:30"), (2, "03:00"), (3, "01:30"), (4, "00:00"))
    ]


def test_without_a_title_nothing_is_shown(clock, capsys):
    with Progress(total=10, unit=" images") as bar:
        clock[0] += 600
        bar.update(10)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar_and_no_line(clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress.sys, "stderr", screen := Terminal())
    for _ in Progress(range(3), "Ranking", unit=" panels", delay=0, mininterval=0):
        clock[0] += 90
    shown = screen.getvalue()
    assert "Ranking: 100%" in shown and re.search(r"3/3 \[.*panels", shown) and "of 3" not in shown


# What a bar would leave behind in a process that is killed.
LEAKS = """
import multiprocessing.resource_tracker
left = []
multiprocessing.resource_tracker.register = lambda *what: left.append(what)
from tqdm.std import TqdmDefaultWriteLock
TqdmDefaultWriteLock.create_mp_lock()
print(left)
"""


def test_a_killed_process_leaks_no_semaphore_of_a_bar():
    assert subprocess.check_output([sys.executable, "-c", LEAKS], text=True) == "[]\n"
