"""How many functions a table passes, against what docs/architecture.md says."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import PIL.Image

import repair_hf
from repair_hf.pairs.dataset import load_pairs

ROOM = Path(repair_hf.__file__).parent / "pairs"
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_a_table_passes_the_files_and_as_many_functions_as_the_page_says(tmp_path):
    for k in range(4):
        PIL.Image.new("RGB", (8 * k + 8, 8), "red").save(tmp_path / f"{k}.jpg")
    (tmp_path / "rows.csv").write_text("image,caption\n" + "".join(f"{k}.jpg,a\n{k}.jpg,b\n" for k in range(4)))
    entered: set[tuple[str, str]] = set()

    def note(frame, event, _) -> None:
        code = frame.f_code
        is_whole = not code.co_name.startswith("<")  # no lambda, no comprehension
        if event == "call" and is_whole and Path(code.co_filename).parent == ROOM:
            entered.add((Path(code.co_filename).name, code.co_qualname))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        pairs = load_pairs(tmp_path / "rows.csv", split="all")
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert len(pairs) == 8
    section = PAGE.read_text(encoding="utf-8").partition("## The way of a table\n")[2].partition("\n## ")[0]
    files = set(re.findall(r"^\| `pairs/(\w+\.py)` \|", section, re.MULTILINE))
    assert {file for file, _ in entered} - {"problems.py"} == files
    n_images = sum(file == "images.py" for file, _ in entered)
    n_rows = sum(file not in ("images.py", "problems.py") for file, _ in entered)
    counts = re.search(r"way: (\d+), and (\d+) that", section)
    assert counts and [n_rows, n_images] == [int(number) for number in counts.groups()]
