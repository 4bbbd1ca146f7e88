"""One stage: its folder explains itself, answers for its own options, is written by one run, and knows its items."""

import json
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from repair_hf.runtime import progress
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.items import FILE, Items, check_items, digest_each
from repair_hf.runtime.options import Bounded, UserError, need, opt
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.stage import Stage, differences


@dataclass
class Options(Bounded):
    pairs: str = need("Where.")
    k_mine: int = opt(100, "How far.", least=1)
    ks: list[int] = opt([1], "Several.")
    audited: bool = opt(True, "A switch.")
    limit: int | None = opt(None, "At most.")
    model: str | None = opt(None, "A model.")
    image_folder: str | None = opt(None, "Images.")
    concurrency: int = opt(16, "At once.", neutral=True)
    hub_token: str | None = opt(None, "A key.", neutral=True)


OPTIONS = Options("photos", ks=[1, 5])
INPUTS = {"pairs_fingerprint": "abc", "lr": 1e-5}


def stage(folder: Path, options: Options = OPTIONS, command: str = "mine", **more) -> Stage:
    return Stage(command, folder, [options], INPUTS, **more)


def never(folder):
    raise AssertionError("it is done already")


@pytest.fixture
def done(tmp_path) -> Path:
    folder = tmp_path / "deep" / "mine"
    assert stage(folder).run(lambda where: {"failures": np.int64(7)}) == {"failures": 7}
    return folder


def test_other_processes_read_nothing_that_the_first_one_removes(done, monkeypatch):
    (done / "summary.json").write_text("{")  # as if it were removed while it is read
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "1")
        assert stage(done.parent / "alone").run(lambda where: {"n": 1}) == stage(done.parent / "alone").summary
        patch.setenv("WORLD_SIZE", "2")
        assert stage(done).run(lambda where: {}, again=True) == {}
    with pytest.raises(UserError, match="summary.json"):
        stage(done).run(never, again=True)


def test_a_finished_folder_answers_for_its_own_options_only(done):
    assert stage(done).run(never) == stage(done).summary == {"failures": 7}
    assert stage(done, replace(OPTIONS, concurrency=3)).run(never) == {"failures": 7}
    assert stage(done, replace(OPTIONS, k_mine=99)).summary is None
    assert stage(done.parent / "absent").summary is None
    assert stage(done, needs=["failures"]).summary
    with pytest.raises(UserError, match="lacks"):
        stage(done, needs=["seconds"]).summary  # noqa: B018


def test_what_is_absent_is_none():
    assert not differences({"a": 1}, {"a": 1, "b": None})
    assert differences({"a": 1}, {"a": 2, "b": 3}) == "a (1 -> 2), b (absent -> 3)"
    assert not differences({"a": 1, "b": 2}, {"a": 1}, without=["b"])


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        ("mine", {"k_mine": 99, "limit": 1}, r"options: k_mine \(100 -> 99\), limit \(None -> 1\).*another --output"),
        ("train", {}, "belongs to `mine`, not to `train`"),
    ],
)
def test_a_finished_result_is_not_overwritten(done, command, changes, message):
    other = stage(done, replace(OPTIONS, **changes), command)
    for act in (other.check, lambda: other.run(never)):
        with pytest.raises(UserError, match=message):
            act()
    assert stage(done).summary == {"failures": 7}


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="is a file"):
        stage(tmp_path / "mine").check()


def test_an_interrupted_run_keeps_its_files_and_other_options_remove_what_they_can_write(tmp_path, caplog):
    def stop(folder):
        for name in ("paid", "made.json", "notes.txt"):
            (folder / name).write_text("for")
        raise KeyboardInterrupt

    def held(folder) -> dict:
        return {"files": sorted({path.name for path in folder.iterdir()} & {"paid", "made.json", "notes.txt"})}

    folder, how = tmp_path / "mine", {"writes": ["made.*"]}
    with pytest.raises(KeyboardInterrupt):
        stage(folder, **how).run(stop)
    assert stage(folder).summary is None
    stage(folder).check()
    assert stage(folder, **how).run(held) == {"files": ["made.json", "notes.txt", "paid"]} and not caplog.records
    (folder / "summary.json").unlink()
    assert stage(folder, replace(OPTIONS, k_mine=3), **how).run(held) == {"files": ["notes.txt", "paid"]}
    assert "k_mine (100 -> 3)" in caplog.text
    assert yaml.safe_load((folder / "config.yaml").read_text())["k_mine"] == 3


def test_what_another_run_has_finished_in_the_meantime_is_taken(tmp_path):
    late = stage(tmp_path / "mine")
    late.check()
    stage(tmp_path / "mine").run(lambda where: {"failures": 7})
    assert late.run(never) == {"failures": 7}


def test_a_failure_before_the_work_begins_leaves_the_result_and_one_after_it_does_not(done):
    def fail(folder):
        if is_begun:
            again.begin()
        raise ValueError("no luck")

    again, marks = stage(done), {path: path.read_bytes() for path in done.iterdir()}
    for is_begun in (False, True):
        with pytest.raises(ValueError, match="no luck"):
            again.run(fail, again=True)
        assert (again.summary is None) is is_begun
        assert is_begun or {path: path.read_bytes() for path in done.iterdir()} == marks


def test_the_folder_explains_itself(done):
    config = yaml.safe_load((done / "config.yaml").read_text())
    assert {**INPUTS, "pairs": "photos", "ks": [1, 5], "k_mine": 100}.items() <= config.items()
    assert set(stage(done).deciding) == set(config) - {"concurrency", "hub_token"}
    recorded = json.loads((done / "versions.json").read_text())
    assert (recorded["command"], recorded["output"]) == ("mine", str(done))
    assert recorded["python"] == sys.version.split()[0]
    assert recorded["packages"]["numpy"] == np.__version__
    assert sorted(os.listdir(done)) == [".lock", "command.txt", "config.yaml", "summary.json", "versions.json"]


def test_the_command_is_that_of_the_stage_and_can_be_typed_again(tmp_path, monkeypatch):
    """Whatever ran it: another command, or Python."""
    monkeypatch.setattr(sys, "argv", ["repair-hf", "run", "toy"])
    options = replace(OPTIONS, pairs="my photos", audited=False)
    stage(tmp_path / "mine", options).run(lambda where: {})
    words = shlex.split((tmp_path / "mine" / "command.txt").read_text())
    assert words[:2] == ["repair-hf", "mine"] and words[-2:] == ["--output", str(tmp_path / "mine")]
    assert parse((Options,), words[2:-2], "repair-hf mine") == (options,)


def test_no_key_is_written(tmp_path):
    secrets = ["hf_" + "a" * 30, "swordfish", "hunter2"]
    options = replace(OPTIONS, model=secrets[0], pairs=f"http://me:{secrets[1]}@host/v1", hub_token=secrets[2])
    folder = tmp_path / "mine"
    Stage("mine", folder, [options], {"k": {"api_key": "letmein"}}).run(lambda where: {"said": secrets[0]})
    written = "".join(path.read_text() for path in folder.iterdir())
    assert not [secret for secret in (*secrets, "letmein") if secret in written]
    assert "http://<hidden>@host/v1" in written and "--hub-token" in written


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    in_memory = Stage("mine", None, [OPTIONS])
    in_memory.check()
    assert in_memory.run(lambda folder: {"folder": folder}) == {"folder": None} and not os.listdir(tmp_path)


def items(captions: dict[str, str], images: dict[str, str] | None = None) -> Items:
    both = {"image": images or {}, "caption": captions}
    ids = {kind: list(some) for kind, some in both.items()}
    return Items(ids, {kind: digest_each(some.values()) for kind, some in both.items()})


def test_the_first_items_that_changed_are_named(tmp_path):
    """An item of only one of both is no change, and an image is another item than a caption of its name."""
    before = {f"{n}.png": f"a cow {n}" for n in range(9)}
    stage(tmp_path / "a", items=items(before, {"0.png": "x"})).run(lambda folder: {})
    assert (tmp_path / "a" / FILE).is_file()
    for same in (before, {"new.png": "x"}, dict(list(before.items())[3:])):
        for folder in (tmp_path / "a", "me/on-the-hub"):
            check_items(folder, items(same, {"0.png": "x"}))
    now = {name: text.replace("cow", "cat") if name > "3" else text for name, text in before.items()}
    with pytest.raises(UserError, match=rf"{tmp_path}/a was made from other pairs: 6 .*\(3.png, 4.png, 5.png, ...\)"):
        check_items(tmp_path / "a", items(now))
    with pytest.raises(UserError, match=r"3 images and .*\(0.png, 1.png, 2.png\)"):
        check_items(tmp_path / "a", items({f"{n}.png": "a cat" for n in range(3)}))
    with pytest.raises(UserError, match=r"1 images and .*\(0.png\)"):
        check_items(tmp_path / "a", items(before, {"0.png": "y"}))


@pytest.mark.parametrize(("every", "title", "is_main", "wanted"), [
    (0, "Embedding images", True, "Embedding images: 100%"),
    (0, "Embedding images", False, ""),
    (0, None, True, ""),
    (60, "Embedding images", True, ""),
])  # fmt: skip
def test_a_state_is_written_once_a_minute_by_the_main_process(every, title, is_main, wanted, monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", every)
    monkeypatch.setattr(type(progress.processes()), "is_main", is_main)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert list(Progress(range(3), title, unit=" images", disable=False)) == [0, 1, 2]
    shown = capsys.readouterr().err
    assert wanted in shown and bool(shown) is bool(wanted)
