"""Pushes to a Hub on loopback: complete, loadable, resumable, also after a kill, and with clear errors."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from signal import SIGHUP, SIGKILL, SIGTERM, Signals

import pytest
from hub_server import Fault, Hub

from repair_hf.cli.main import main
from repair_hf.records.dataset import save_records

TOKEN = "hf_goodgoodgoodgoodgood"
hears_all = partial(signal.signal, SIGHUP, signal.SIG_DFL)  # also under `nohup`
KILLS = {"POST .*/create": SIGTERM, "POST .*/preupload/": SIGKILL, "PUT /lfs/": SIGHUP} | dict.fromkeys(
    ["POST .*/commit/main", "POST .*/tag/"], SIGKILL
)


def test_records_come_back_bit_for_bit_from_a_clean_cache(hub, push, stranger, folder):
    push_words = (folder, "me/photos-repair", "--tag", "round-1")
    code, printed, _ = push(*push_words)
    assert code == 0 and re.search(r"push    \d+ files, .* revision \w{8} = round-1   -> http", printed)
    sent = hub.files("dataset", "me/photos-repair")
    for path in [*folder.glob("records/*.parquet"), *folder.glob("dropped/*.parquet")]:
        assert sent[path.relative_to(folder).as_posix()] == path.read_bytes()
    loaded = stranger(
        f"""
from datasets import load_dataset
from repair_hf.records.dataset import FEATURES, DROPPED_FEATURES, load_records, load_dropped
default = load_dataset("me/photos-repair", split="train")
dropped = load_dataset("me/photos-repair", "dropped", split="train")
ours, here = load_records("me/photos-repair", revision="round-1"), load_records({str(folder)!r})
result = [digest(default), digest(ours), digest(here), digest(dropped), digest(load_dropped({str(folder)!r})),
          default.features == FEATURES and dropped.features == DROPPED_FEATURES,
          next(iter(load_dataset("me/photos-repair", split="train", streaming=True)))["record_id"]]
"""
    )
    assert loaded[0] == loaded[1] == loaded[2] and loaded[3] == loaded[4] and loaded[5]
    assert re.fullmatch(r"\d{16}", loaded[6])
    received, commits = len(hub.received), len(hub.repos["dataset", "me/photos-repair"].commits)
    code, printed, _ = push(*push_words)
    assert code == 0 and "nothing has changed there" in printed
    assert len(hub.received) == received and len(hub.repos["dataset", "me/photos-repair"].commits) == commits


def test_a_tag_names_its_revision_for_good(hub, push, client, folder, repaired, one_dropped, tmp_path):
    push(folder, "me/rounds", "--tag", "round-1")
    save_records(tmp_path / "second", repaired.select(range(5)), one_dropped.select([]))
    code, _, error = push(tmp_path / "second", "me/rounds", "--tag", "round-1")
    assert code == 2 and "Pushed as" in error and "the tag 'round-1' names an older" in error
    code, _, _ = push(tmp_path / "second", "me/rounds", "--tag", "round-2")
    assert code == 0
    counted = """
from repair_hf.records.dataset import load_dropped, load_records
revisions = ("round-1", "round-2", None)
result = [len(load("me/rounds", revision=each)) for load in (load_records, load_dropped) for each in revisions]
"""
    assert client.run(counted) == [len(repaired), 5, 5, 1, 0, 0]
    names = hub.files("dataset", "me/rounds")
    assert len([name for name in names if name.startswith("records/")]) == 1  # the old file is gone
    _, _, error = push(folder, "me/rounds", "--tag", "round-1")
    assert "Nothing was pushed: the tag 'round-1'" in error


def test_a_model_is_pushed_with_its_card_and_loads_by_its_id(hub, client, clip_folder, tmp_path):
    folder = shutil.copytree(clip_folder, tmp_path / "clip")
    code, printed, error = client.main("push", "model", folder, "--repo", "me/clip-alone")
    assert code == 0 and f"-> {hub.url}/me/clip-alone" in printed, error
    sent = hub.files("model", "me/clip-alone")
    assert sent["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert "pipeline_tag" in sent["README.md"].decode()
    there, here = client.run(
        f"""
from repair_hf.encoder.dual_encoder import DualEncoder
result = [DualEncoder.from_pretrained(f).digest for f in ("me/clip-alone", {str(folder)!r})]
"""
    )
    assert there == here


def test_private_means_private(hub, push, stranger, folder):
    assert push(folder, "me/secret", "--private")[0] == 0
    assert hub.repos["dataset", "me/secret"].private
    with pytest.raises(RuntimeError, match="UserError: me/secret holds no records"):
        stranger("from repair_hf.records.dataset import load_records\nload_records('me/secret')")
    push(folder, "me/open")
    code, _, error = push(folder, "me/open", "--private")
    assert code == 2 and "me/open exists and is public" in error


def test_source_images_can_stay_at_home(hub, push, client, folder, pairs_folder):
    assert push(folder, "me/light", "--no-embed-source-images")[0] == 0
    found = client.run(
        f"""
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_records
bare = load_records("me/light")
joined = load_records("me/light", pairs=load_pairs({str(pairs_folder)!r}, split="all"))
row = joined.filter(lambda row: row["direction"] == "t2i")[0]
result = [bare.data.column("gt_image").null_count == len(bare), row["gt_image"].size, row["edit_image"].size]
"""
    )
    assert found == [True, [48, 40], [48, 40]]
    files = hub.files("dataset", "me/light")
    card = files["README.md"].decode()
    assert "are not in this dataset" in card and "*left out*" in card
    assert {name.rpartition("-")[2] for name in files if name.startswith("samples/")} == {"edit.png"}


@pytest.mark.parametrize(
    "token, words, message",
    [
        (None, ["me/photos"], "You are not logged in to the Hub; run `hf auth login`, or set HF_TOKEN"),
        ("hf_wrongwrongwrongwrong", ["me/photos"], "token write to me/photos (401: Invalid user token.)"),
        ("hf_otherotherotherother", ["me/photos"], "token write to me/photos (403:"),
        (TOKEN, ["me/x", "--license", "whatever"], "The Hub rejects the card"),
        (TOKEN, ["me/x/y"], "`me/x/y` is not a repository id such as me/x-repair"),
    ],
)
def test_a_mistake_is_one_clear_line(push, client, folder, token, words, message):
    client.run(f"os.environ.pop('HF_TOKEN')\nif {token!r}: os.environ['HF_TOKEN'] = {token!r}")
    code, printed, error = push(folder, *words)
    client.run(f"os.environ['HF_TOKEN'] = {TOKEN!r}")
    assert code == 2 and error.startswith("repair-hf push: error: ") and message in error
    assert token is None or token not in error + printed


def test_what_fails_once_is_tried_again(hub, push, folder):
    hub.stored.clear()
    once = {
        "POST /api/repos/create": 500,
        "POST .*/objects/batch": 503,
        "PUT /lfs/": "cut",
        "POST .*/commit/main": 500,
    }
    hub.faults += [Fault(pattern, status) for pattern, status in once.items()]
    assert push(folder, "me/unlucky")[0] == 0
    assert not any(fault.times for fault in hub.faults) and len(hub.repos["dataset", "me/unlucky"].commits) == 2


def test_a_push_that_breaks_leaves_the_old_revision_and_goes_on(hub, push, folder, repaired, one_dropped, tmp_path):
    save_records(tmp_path / "first", repaired.select(range(3)), one_dropped)
    assert push(tmp_path / "first", "me/broken")[0] == 0
    before = hub.files("dataset", "me/broken")
    hub.stored.clear()  # as if these had never been there
    hub.faults.append(Fault("POST .*/commit/main", 500, times=99))
    code, _, error = push(folder, "me/broken")
    assert (
        code == 1
        and "The Hub failed (500: a fault, as asked for)" in error
        and "Nothing changed on the Hub. Rerun to" in error
    )
    assert hub.files("dataset", "me/broken") == before
    hub.faults.clear()
    received = len(hub.received)
    assert push(folder, "me/broken")[0] == 0
    assert len(hub.received) == received  # what had arrived was not sent again
    assert hub.files("dataset", "me/broken") != before


def test_an_upload_that_is_refused_half_way_goes_on_from_there(hub, push, folder):
    hub.stored.clear()
    hub.received.clear()
    large = max(folder.glob("*/*.parquet"), key=lambda path: path.stat().st_size)
    oid = hashlib.sha256(large.read_bytes()).hexdigest()
    hub.faults.append(Fault(f"PUT /lfs/{oid}", 507, times=99))
    code, _, error = push(folder, "me/full")
    assert code == 1 and "Error while uploading 'records/" in error and "507" in error
    assert len(hub.repos["dataset", "me/full"].commits) == 1
    hub.faults.clear()
    arrived = set(hub.received)
    hub.received.clear()
    assert push(folder, "me/full")[0] == 0
    assert arrived and oid in hub.received and not arrived & set(hub.received)


def test_somebody_elses_commit_is_not_overwritten(hub, push, folder):
    push(folder, "me/shared")
    repo = hub.repos["dataset", "me/shared"]
    hub.before["POST .*/commit/main"] = lambda: repo.commits.append(
        ("f" * 40, repo.commits[-1][1] | {"note.txt": b"mine"})
    )
    code, _, error = push(folder, "me/shared", "--license", "mit")
    assert code == 1 and "me/shared was changed by another push in the meantime (412" in error
    assert push(folder, "me/shared", "--license", "mit")[0] == 0
    assert hub.files("dataset", "me/shared")["note.txt"] == b"mine"  # not one of ours


def test_a_hub_that_is_down_is_reported(client, folder):
    found = client.run(
        f"""
from repair_hf.hub import push as hub
from repair_hf.runtime.run_folder import RunStopped
post = hub.HfApi
hub.HfApi = lambda: post(endpoint="http://127.0.0.1:9")
try:
    hub.push_records({str(folder)!r}, "me/down")
except RunStopped as error:
    result = str(error)
hub.HfApi = post
"""
    )
    assert "cannot be reached" in found and "Rerun to resume." in found


@pytest.mark.slow  # a start of Python for each kill
def test_killed_pushes_go_on_and_leave_nothing(folder, tmp_path):
    """Killed while the records are packed, and then at each request that changes something on the Hub.

    Drafts of what was packed go with SIGTERM and SIGHUP.
    """
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Hub({TOKEN: "me"}) as hub:
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN, "TMPDIR": str(scratch)}
        env = os.environ | own | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}

        def left() -> set:
            return set(scratch.glob("repair-hf-*"))

        def push(repo: str, at: str | None = None, number: Signals = SIGKILL) -> int:
            """Push, and send a signal at a request, or with `at=""` once files are packed; return the exit code."""
            words = ["push", "records", folder, "--repo", repo, "--no-embed-source-images", "--tag", "one"]
            command, before = [sys.executable, "-m", "repair_hf", *words], left()
            if at:
                hub.before[at] = lambda: process.send_signal(number)
            process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=hears_all)
            if at == "":
                while process.poll() is None and not any(list(each.iterdir()) for each in left() - before):
                    time.sleep(0.001)
                process.send_signal(number)
            said = process.communicate()[1]
            assert not hub.before, f"ended before it could be killed: {said}"
            assert "leaked semaphore" not in said and "Traceback" not in said
            return process.returncode

        assert push("me/killed", "") == -SIGKILL and left()
        for at, number in KILLS.items():
            before = left()
            assert push("me/killed", at, number) == (-SIGKILL if number is SIGKILL else 128 + number)
            assert len(left() - before) == (number is SIGKILL)
        before = left()
        assert push("me/killed") == push("me/whole") == 0 and left() == before
        one, other = hub.files("dataset", "me/whole", "one"), hub.files("dataset", "me/killed", "one")
        one.pop("README.md"), other.pop("README.md")  # which name their repositories
        assert one == other and len(one) > 2


def test_a_dry_run_of_records_shows_files_bytes_and_card(records_folder, capsys):
    assert main(["push", "records", str(records_folder), "--repo", "me/x-repair", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    file = next(records_folder.glob("records/*.parquet"))
    assert f"{file.stat().st_size / 1e3:,.1f} kB   records/{file.name}" in printed
    assert "\n# x-repair\n" in printed and "config_name: records" in printed and "config_name: dropped" not in printed
    assert "samples/1-edit.png" in printed and "to me/x-repair; nothing was sent." in printed


def test_a_dry_run_of_a_model_shows_files_bytes_and_card(clip_folder, capsys):
    assert main(["push", "model", str(clip_folder), "--repo", "me/clip", "--license", "mit", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "   model.safetensors" in printed and "\nlicense: mit\n" in printed
