"""The annotation page as a Hugging Face Space, without the audit's verdicts and without anybody's answers."""

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
People judge a sample of failures or edits here, by keyboard. Answers go to `/data/answers` if the Space has persistent
storage; without it they are lost at a restart. Copy them into the `answers` folder of the task, where
`repair-hf analyze` reads them.
"""

SPACE_FILES = ("shown/*", "shown/*/*")  # an earlier task may have left others


def space_files(folder: Path) -> dict[str, bytes]:
    """Collect the files of the Space: path -> content."""
    shown = sorted(path for path in (folder / "shown").rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in [folder / "task.json", *shown]}
    return found | {
        "app.py": files("repair_hf.analysis.people").joinpath("page.py").read_bytes(),
        "README.md": README.format(gradio=version("gradio")).encode(),
    }
