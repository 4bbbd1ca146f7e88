"""The Hub, over real HTTP on loopback: what is pushed is what is loaded, and what goes wrong is told and mended by the same command."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from datasets import Dataset
from hub_server import Client, Fault, Hub

from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records
from repair_hf.runtime.options import UserError

TOKEN = "hf_goodgoodgoodgoodgood"
LOADING = """
import hashlib
def told(dataset):
    from datasets import Image
    for name, kind in dataset.features.items():
        if isinstance(kind, Image):
            dataset = dataset.cast_column(name, Image(decode=False))
    return hashlib.sha256(repr(dataset.to_list()).encode()).hexdigest()
"""


@pytest.fixture(scope="module")
def hub():
    with Hub({TOKEN: "me", "hf_otherotherotherother": "you"}) as server:
        yield server


@pytest.fixture(scope="module")
def client(hub, tmp_path_factory):
    client = Client(hub, tmp_path_factory.mktemp("home"), TOKEN)
    client.run(f"{LOADING}\nfrom repair_hf.hub import push as hub\nhub.WAITS = (0.0, 0.0)")
    yield client
    client.close()


@pytest.fixture(scope="module")
def stranger(hub, tmp_path_factory):
    """Somebody who is not logged in, and has nothing cached."""
    client = Client(hub, tmp_path_factory.mktemp("stranger"), None)
    client.run(LOADING)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def calm(hub):
    yield
    hub.faults.clear()
    hub.before_commit = None


@pytest.fixture(scope="module")
def dropped() -> Dataset:
    rows = [{"direction": "t2i", "reason": "no_op", "q_id": "a", "error_types": []}]
    return Dataset.from_list([dict.fromkeys(DROPPED_FEATURES) | row for row in rows], features=DROPPED_FEATURES)


@pytest.fixture(scope="module")
def folder(repaired, dropped, tmp_path_factory) -> Path:
    """Records with an image of a source in them."""
    folder = tmp_path_factory.mktemp("records")

    def with_source(row: dict) -> dict:
        return row | ({"gt_image": row["edit_image"]} if row["direction"] == "t2i" else {})

    save_records(folder, repaired.map(with_source, features=FEATURES), dropped)
    return folder


def push(client: Client, folder: Path, repo: str, *more: object) -> tuple[int, str, str]:
    return client.main("push", "records", folder, "--repo", repo, *more)


def test_records_come_back_bit_for_bit_from_a_clean_cache(hub, client, stranger, folder):
    code, printed, _ = push(client, folder, "me/photos-repair", "--tag", "round-1")
    assert code == 0 and re.search(r"push    \d+ files, .* revision \w{8} = round-1   -> http", printed)
    assert "next: repair-hf train --records me/photos-repair --records-revision round-1" in printed
    sent = hub.files("dataset", "me/photos-repair")
    for path in [*folder.glob("records/*.parquet"), *folder.glob("dropped/*.parquet")]:
        assert sent[path.relative_to(folder).as_posix()] == path.read_bytes()
    loaded = stranger.run(
        f"""
from datasets import load_dataset
from repair_hf.records.dataset import FEATURES, DROPPED_FEATURES, load_records, load_dropped
default = load_dataset("me/photos-repair", split="train")
dropped = load_dataset("me/photos-repair", "dropped", split="train")
ours, here = load_records("me/photos-repair", revision="round-1"), load_records({str(folder)!r})
result = [told(default), told(ours), told(here), told(dropped), told(load_dropped({str(folder)!r})),
          default.features == FEATURES and dropped.features == DROPPED_FEATURES,
          next(iter(load_dataset("me/photos-repair", split="train", streaming=True)))["record_id"]]
"""
    )
    assert loaded[0] == loaded[1] == loaded[2] and loaded[3] == loaded[4] and loaded[5]
    assert re.fullmatch(r"\d{16}", loaded[6])


def test_the_same_push_again_sends_nothing(hub, client, folder):
    push(client, folder, "me/again", "--tag", "v1")
    received, commits = len(hub.received), len(hub.repos["dataset", "me/again"].commits)
    code, printed, _ = push(client, folder, "me/again", "--tag", "v1")
    assert code == 0 and "nothing has changed there" in printed
    assert len(hub.received) == received and len(hub.repos["dataset", "me/again"].commits) == commits


def test_a_tag_names_its_revision_for_good(hub, client, folder, repaired, dropped, tmp_path):
    push(client, folder, "me/rounds", "--tag", "round-1")
    save_records(tmp_path / "second", repaired.select(range(5)), dropped.select([]))
    code, _, error = push(client, tmp_path / "second", "me/rounds", "--tag", "round-1")
    assert code == 2 and "the tag 'round-1' names the revision before; give another --tag" in error
    code, _, _ = push(client, tmp_path / "second", "me/rounds", "--tag", "round-2")
    assert code == 0
    counted = """
from repair_hf.records.dataset import load_dropped, load_records
revisions = ("round-1", "round-2", None)
result = [len(load("me/rounds", revision=each)) for load in (load_records, load_dropped) for each in revisions]
"""
    assert client.run(counted) == [len(repaired), 5, 5, 1, 0, 0]
    assert (
        len([name for name in hub.files("dataset", "me/rounds") if name.startswith("records/")]) == 1
    )  # the old file is gone
    assert push(client, folder, "me/rounds", "--tag", "round-1")[2].endswith(
        "has a tag 'round-1' of an older revision; give another --tag."
    )


def test_private_means_private(hub, client, stranger, folder):
    assert push(client, folder, "me/secret", "--private")[0] == 0
    assert hub.repos["dataset", "me/secret"].private
    with pytest.raises(RuntimeError, match="UserError: me/secret holds no records"):
        stranger.run("from repair_hf.records.dataset import load_records\nload_records('me/secret')")
    push(client, folder, "me/open")
    code, _, error = push(client, folder, "me/open", "--private")
    assert code == 2 and "me/open exists and is public" in error


def test_source_images_can_stay_at_home(hub, client, folder, pairs_folder):
    assert push(client, folder, "me/light", "--no-embed-source-images")[0] == 0
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
    ("token", "code", "message"),
    [
        (None, 2, "You are not logged in to the Hub; run `hf auth login`, or set HF_TOKEN"),
        ("hf_wrongwrongwrongwrong", 2, "The Hub does not accept your token (401: Invalid user token.)"),
        ("hf_otherotherotherother", 2, "Your token may not write to me/photos (403:"),
    ],
)
def test_a_wrong_token_is_one_clear_line(client, folder, token, code, message):
    client.run(f"os.environ.pop('HF_TOKEN')\nif {token!r}: os.environ['HF_TOKEN'] = {token!r}")
    found, printed, error = push(client, folder, "me/photos")
    client.run(f"os.environ['HF_TOKEN'] = {TOKEN!r}")
    assert found == code and error.startswith("repair-hf push: error: ") and message in error
    assert token is None or token not in error + printed


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST /api/repos/create", 500),
        Fault("POST .*/commit/main", 500),
        Fault("PUT /lfs/", "cut"),
        Fault("POST .*/objects/batch", 503),
    ],
    ids=lambda fault: f"{fault.pattern} {fault.status}",
)
def test_what_fails_once_is_tried_again(hub, client, folder, fault):
    hub.stored.clear()
    hub.faults.append(Fault(fault.pattern, fault.status))
    name = f"me/fault-{abs(hash(fault.pattern))}"
    assert push(client, folder, name)[0] == 0
    assert not hub.faults[0].times and len(hub.repos["dataset", name].commits) == 2


def test_a_push_that_breaks_leaves_the_old_revision_and_goes_on(hub, client, folder, repaired, dropped, tmp_path):
    save_records(tmp_path / "first", repaired.select(range(3)), dropped)
    assert push(client, tmp_path / "first", "me/broken")[0] == 0
    before = hub.files("dataset", "me/broken")
    hub.stored.clear()  # as if these had never been there
    hub.faults.append(Fault("POST .*/commit/main", 500, times=99))
    code, _, error = push(client, folder, "me/broken")
    assert code == 1 and "The Hub fails (500: a fault, as asked for)" in error and "the same command goes on" in error
    assert hub.files("dataset", "me/broken") == before
    hub.faults.clear()
    received = len(hub.received)
    assert push(client, folder, "me/broken")[0] == 0
    assert len(hub.received) == received  # what had arrived was not sent again
    assert hub.files("dataset", "me/broken") != before


def test_an_upload_that_is_refused_half_way_goes_on_from_there(hub, client, folder):
    hub.stored.clear()
    hub.received.clear()
    large = max(folder.glob("*/*.parquet"), key=lambda path: path.stat().st_size)
    oid = hashlib.sha256(large.read_bytes()).hexdigest()
    hub.faults.append(Fault(f"PUT /lfs/{oid}", 507, times=99))
    code, _, error = push(client, folder, "me/full")
    assert code == 1 and "Error while uploading 'records/" in error and "507" in error
    assert len(hub.repos["dataset", "me/full"].commits) == 1
    hub.faults.clear()
    arrived = set(hub.received)
    hub.received.clear()
    assert push(client, folder, "me/full")[0] == 0
    assert arrived and oid in hub.received and not arrived & set(hub.received)


def test_somebody_elses_commit_is_not_overwritten(hub, client, folder):
    push(client, folder, "me/shared")
    repo = hub.repos["dataset", "me/shared"]
    hub.before_commit = lambda: repo.commits.append(("f" * 40, repo.commits[-1][1] | {"note.txt": b"mine"}))
    code, _, error = push(client, folder, "me/shared", "--license", "mit")
    assert code == 1 and "me/shared was changed by somebody else meanwhile (412" in error
    assert push(client, folder, "me/shared", "--license", "mit")[0] == 0
    assert hub.files("dataset", "me/shared")["note.txt"] == b"mine"  # not one of ours


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repo", "me/x", "--license", "whatever"], "The Hub does not take the card"),
        (["--repo", "me/x/y"], "`me/x/y` is no id of a repository such as me/x-repair"),
    ],
)
def test_what_the_hub_refuses_is_the_users_mistake(client, folder, words, message):
    code, _, error = client.main("push", "records", folder, *words)
    assert code == 2 and message in error


def test_a_hub_that_is_down_is_told_as_such(client, folder):
    told = client.run(
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
    assert "cannot be reached" in told and "the same command goes on" in told


def test_trains_from_the_hub_alone_and_pushes_what_it_trained(
    hub, client, folder, clip_folder, pairs_folder, tmp_path
):
    """Pairs, records and model by id; no language model; the result on the Hub, loaded and measured from there."""
    push(client, folder, "me/photos-repair", "--tag", "round-1")
    shutil.copytree(clip_folder, tmp_path / "clip")
    assert client.main("push", "model", tmp_path / "clip", "--repo", "me/clip")[0] == 0
    client.run(
        f"""
from datasets import Dataset, DatasetDict
from repair_hf.pairs.dataset import load_pairs
pairs = load_pairs({str(pairs_folder)!r}, split="all")
rows = {{"image": list(pairs.images["image"]), "image_id": pairs.images["image_id"][:],
        "caption": [[pairs.captions[c]["caption"] for c in pairs.captions_of(i)] for i in range(len(pairs.images))]}}
from datasets import Features, Image, List, Value
features = Features({{"image": Image(), "image_id": Value("string"), "caption": List(Value("string"))}})
Dataset.from_dict(rows, features=features).push_to_hub("me/photos")
"""
    )
    words = f"train --pairs me/photos --split all --model me/clip --records me/photos-repair --records-revision round-1 --use-cpu --output {tmp_path / 'out'}"
    words += " --per-device-train-batch-size 4 --max-steps 2 --cache-folder " + str(tmp_path / "cache")
    words += " --push-to-hub --hub-model-id me/clip-repair --hub-private-repo true"
    hub.requests.clear()
    code, printed, error = client.main(*words.split())
    assert code == 0, error
    assert "push    revision" in printed and f"-> {hub.url}/me/clip-repair" in printed
    assert hub.count("POST /api/models/me/clip-repair/commit") == 1
    sent = hub.files("model", "me/clip-repair")
    assert hub.repos["model", "me/clip-repair"].private
    assert "training_args.bin" not in sent and "config.yaml" not in sent
    assert sent["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()
    card = sent["README.md"].decode()
    assert "base_model: me/clip" in card and "- me/photos-repair" in card and str(tmp_path) not in card
    assert client.main("push", "model", tmp_path / "out", "--repo", "me/clip-repair", "--license", "mit")[0] == 0
    code, printed, _ = client.main(*words.split())  # nothing is trained and nothing sent, so that the licence stays
    assert code == 0 and "me/clip-repair has it since the training" in printed
    assert hub.count("POST /api/models/me/clip-repair/commit") == 2
    assert "license: mit" in hub.files("model", "me/clip-repair")["README.md"].decode()
    code, _, error = client.main(
        "evaluate",
        "--pairs",
        "me/photos",
        "--split",
        "all",
        "--model",
        "me/clip-repair",
        "--output",
        tmp_path / "measured",
    )
    assert code == 0, error
    digests = f"""
from transformers import AutoModel, AutoProcessor
from repair_hf.encoder.dual_encoder import DualEncoder
AutoModel.from_pretrained("me/clip-repair"), AutoProcessor.from_pretrained("me/clip-repair")
result = [DualEncoder.from_pretrained(f).digest for f in ("me/clip-repair", {str(tmp_path / "out")!r})]
"""
    there, here = client.run(digests)
    assert there == here
    assert json.loads((tmp_path / "measured" / "metrics.json").read_text())["n_images"] == 12


def test_a_space_is_private_and_shows_the_newest_task_alone(hub, client, tmp_path):
    pictures = tmp_path / "task" / "shown" / "pictures"
    pictures.mkdir(parents=True)
    (tmp_path / "task" / "task.json").write_text("{}")
    (tmp_path / "task" / "items.csv").write_text("item,accepted\n")  # the audit's verdicts stay here

    def push_task(picture: str) -> str:
        for old in pictures.iterdir():
            old.unlink()
        (pictures / picture).write_bytes(b"picture")
        return client.run(
            f"""
from repair_hf.hub.push import push_space
from repair_hf.runtime.options import UserError
from repair_hf.analysis.people import space
space.version = lambda name: "6.31.0"
try:
    result = push_space({str(tmp_path / "task")!r}, "me/judge").url
except UserError as error:
    result = str(error)
"""
        )

    assert push_task("first.webp") == f"{hub.url}/spaces/me/judge" and hub.repos["space", "me/judge"].private
    push_task("second.webp")
    names = {".gitattributes", "README.md", "app.py", "task.json", "shown/pictures/second.webp"}
    assert set(hub.files("space", "me/judge")) == names
    hub.repos["space", "me/judge"].private = False
    assert "me/judge exists and is public" in push_task("third.webp")
    assert set(hub.files("space", "me/judge")) == names


def test_what_a_train_run_may_not_do_is_known_before_it_trains(client, pairs_folder, clip_folder, tmp_path):
    words = f"train --pairs {pairs_folder} --split all --model {clip_folder} --use-cpu --output {tmp_path / 'out'} --push-to-hub"
    code, _, error = client.main(*words.split(), "--hub-model-id", "you/clip")
    assert code == 2 and "may not write to you/clip" in error and not (tmp_path / "out").exists()
    code, _, error = client.main(*words.split(), "--hub-strategy", "every_save")
    assert code == 2 and "`push_to_hub` sends the finished model as one commit" in error


def test_the_trainers_own_push_is_refused(clip, tmp_path):
    """It would send `training_args.bin`, a pickle."""
    from repair_hf.training.config import RepairConfig
    from repair_hf.training.trainer import RepairTrainer

    config = RepairConfig(output_dir=str(tmp_path), push_to_hub=True, use_cpu=True)
    with pytest.raises(UserError, match=r"call `repair_hf.hub.push.push_model\(folder, repo\)` after the training"):
        RepairTrainer(clip, config, None, None, None)
