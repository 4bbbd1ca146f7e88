import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest, finish_stage, finished, open_stage, versions, write_atomically

OPTIONS = {"pairs": Path("photos"), "k_mine": 100, "lr": 1e-5, "ks": (1, 5), "limit": None, "output": "runs/a"}


@pytest.fixture
def done(tmp_path) -> Path:
    folder = open_stage(tmp_path / "deep" / "mine", command="mine", options=OPTIONS)
    finish_stage(folder, {"failures": np.int64(7)})
    return folder


def test_a_finished_folder_answers_for_its_own_options_only(done):
    assert finished(done, OPTIONS) == {"failures": 7}
    assert finished(done, OPTIONS | {"output": "runs/moved", "concurrency": 3}) == {"failures": 7}
    assert finished(done, OPTIONS | {"k_mine": 99}) is None
    assert finished(done.parent / "absent", OPTIONS) is None
    for unset in (None, 0.0, False, []):  # an option of a later version, not set
        assert finished(done, {**OPTIONS, "new": unset}) is not None
    assert finished(done, {**OPTIONS, "new": 1}) is None


@pytest.mark.parametrize(
    "command, changes, message",
    [
        ("mine", {"k_mine": 99, "seed": 1}, r"options: k_mine \(100 -> 99\), seed \(absent -> 1\).*another --output"),
        ("train", {}, "belongs to `mine`, not to `train`"),
    ],
)
def test_a_finished_result_is_not_overwritten(done, command, changes, message):
    with pytest.raises(UserError, match=message):
        open_stage(done, command=command, options=OPTIONS | changes)
    assert finished(done, OPTIONS) == {"failures": 7}


@pytest.mark.parametrize("name", ["pairs", "image_folder", "model"])
def test_a_folder_that_is_read_is_not_written_to(tmp_path, name):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(UserError, match=f"is the folder of `{name}`; give another one"):
        open_stage(tmp_path / ".." / tmp_path.name, command="train", options=OPTIONS | {name: str(tmp_path)})
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="is a file"):
        open_stage(tmp_path / "mine", command="mine", options=OPTIONS)


def test_an_interrupted_run_keeps_its_files_and_says_what_changed(tmp_path, caplog):
    folder = open_stage(tmp_path / "mine", command="mine", options=OPTIONS)
    assert finished(folder, OPTIONS) is None
    (folder / "journal.jsonl").write_text("paid for\n")
    open_stage(folder, command="mine", options=OPTIONS)
    assert not caplog.records
    open_stage(folder, command="mine", options=OPTIONS | {"k_mine": 3})
    assert "k_mine (100 -> 3)" in caplog.text
    assert (folder / "journal.jsonl").read_text() == "paid for\n"
    assert yaml.safe_load((folder / "config.yaml").read_text())["k_mine"] == 3


def test_the_folder_explains_itself(done):
    assert yaml.safe_load((done / "config.yaml").read_text()) == OPTIONS | {"pairs": "photos", "ks": [1, 5]}
    recorded = json.loads((done / "versions.json").read_text())
    assert recorded["command"] == "mine"
    assert recorded["python"] == sys.version.split()[0]
    assert recorded["packages"]["numpy"] == np.__version__
    assert sorted(os.listdir(done)) == ["command.txt", "config.yaml", "summary.json", "versions.json"]
    open_stage(done, command="mine", options=OPTIONS)  # begun again, it is no longer finished
    assert finished(done, OPTIONS) is None


def test_no_secret_is_written(tmp_path, monkeypatch):
    secrets = ["hf_" + "a" * 30, "sk-" + "b" * 30, "hunter2", "letmein", "swordfish"]
    argv = f"/usr/bin/repair-hf mine --hub-token {secrets[2]} --api_key={secrets[3]} --k-mine 3 {secrets[1]}".split()
    monkeypatch.setattr(sys, "argv", argv)
    options = {"hub_token": secrets[2], "model": secrets[0], "k": {"api_key": secrets[3]}}
    options["url"] = f"http://me:{secrets[4]}@host/v1"
    folder = open_stage(tmp_path / "mine", command="mine", options=options)
    written = "".join(path.read_text() for path in folder.iterdir())
    assert not [secret for secret in secrets if secret in written]
    typed = (folder / "command.txt").read_text()
    assert typed.startswith("repair-hf mine --hub-token '<hidden>' '--api_key=<hidden>' --k-mine 3")
    assert "http://<hidden>@host/v1" in written


def test_python_dash_m_is_written_as_it_was_typed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/repair_hf/__main__.py", "mine"])
    folder = open_stage(tmp_path / "mine", command="mine", options={})
    assert (folder / "command.txt").read_text() == "python -m repair_hf mine\n"


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
