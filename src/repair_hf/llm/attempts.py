"""How many attempts at an answer a run may make in its folder, all runs together.

An unusable answer stays in the journal, and each attempt has a seed of its own, so each has its own key there. A run
makes at most `FIRST` attempts at a question. When it has ended, the next run of the folder may make one more. Their
number is on disk: a killed run resumes with its own number, and gives the same result.
"""

from __future__ import annotations

from pathlib import Path

from repair_hf.runtime.own_files import intact
from repair_hf.runtime.run_folder import write_atomically

FIRST = 2
FILE = "attempts.txt"


def allowed_attempts(folder: Path, most: int) -> int:
    """Return how many attempts a run in this folder may make at a question, earlier runs included."""
    path = folder / FILE
    if not path.is_file():
        return min(most, FIRST)
    with intact(path, "Delete this file, and run the command again"):
        return min(most, max(FIRST, int(path.read_text(encoding="ascii"))))


def allow_attempts(folder: Path, count: int) -> None:
    """Let the runs that start from now on make so many attempts."""
    write_atomically(folder / FILE, f"{count}\n")
