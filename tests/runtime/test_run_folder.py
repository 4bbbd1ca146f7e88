import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from repair_hf.runtime.run_folder import digest, versions, write_atomically


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "table.json"
    write_atomically(path, "old")

    def fail(self, target):
        raise OSError("disk gone")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="disk gone"):
        patched.setattr(Path, "replace", fail)
        write_atomically(path, "new")
    assert path.read_text() == "old"
    write_atomically(path, b"\x00new")
    assert path.read_bytes() == b"\x00new"
    assert os.listdir(tmp_path) == ["table.json"]


def test_a_digest_depends_on_content_alone():
    @dataclass
    class Point:
        x: int = 1

    name = digest({"a": [1, 2], "b": Path("c"), "d": Point(), "e": np.float64(0.5), "f": {"y", "x"}})
    assert name == digest({"f": {"x", "y"}, "e": 0.5, "d": {"x": 1}, "b": "c", "a": (1, 2)})
    assert len(name) == 16 and set(name) <= set("0123456789abcdef")
    assert digest("é") != digest("e") and digest(1) != digest("1") and digest([]) != digest({})
    for value, error in ((object(), TypeError), (float("nan"), ValueError)):
        with pytest.raises(error):
            digest([value])


def test_the_commit_is_that_of_this_repository():
    here = Path(__file__).parents[2]
    tracked = subprocess.run(
        ["git", "-C", here, "ls-files", "--error-unmatch", "src/repair_hf/__init__.py"], capture_output=True
    )
    head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    commit = versions()["commit"]
    assert commit is None if tracked.returncode else commit.removesuffix("+changes") == head
