"""The page as a Space: the same file, the same items, run by the Hub.

In:  the folder of a task.
Out: the files of a Space. Neither the audit's verdicts nor anybody's answers are among them.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

README = """---
title: Judge repaired failures
sdk: gradio
sdk_version: {gradio}
app_file: app.py
---
People judge a sample of failures or edits here, by keyboard. Answers go to `/data/answers` where the Space has persistent storage, and are
lost at a restart where it has none. Copy them into the `answers` folder of the task; `repair-hf agreement` reads them there.
"""


SPACE_FILES = ("shown/*", "shown/*/*")  # of which an earlier task may have left others


def space_files(folder: Path) -> dict[str, bytes]:
    """Path in the Space -> content."""
    shown = sorted(path for path in (folder / "shown").rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in [folder / "task.json", *shown]}
    return found | {
        "app.py": files("repair_hf.analysis.people").joinpath("page.py").read_bytes(),
        "README.md": README.format(gradio=version("gradio")).encode(),
    }
