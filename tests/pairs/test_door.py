"""What strangers give names no file but its own; own data may name and link any file. No address is fetched."""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Image, Value, load_from_disk

from repair_hf.cli.main import main
from repair_hf.evaluation.benchmarks import load_benchmark
from repair_hf.pairs.admission import OutsideFolder, misplaced
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_kept, load_records
from repair_hf.runtime.options import UserError
from tests.hostile import damage
from tests.pairs.made_sources import kinds

PATHS, ADDRESSES = ("absolute", "parent", "link"), ("file", "http", "https", "hf")
WAYS = PATHS + ADDRESSES
CELLS = ("q_image", "gt_image", "fp_image", "edit_image")
PAIRS = Features({"image": Image(), "caption": Value("string")})


@pytest.fixture(scope="module")
def listener():
    """A server that counts what it is asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:  # before any byte is read: also counts https
            asked.append(self.client_address)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
    assert asked == []


@pytest.fixture
def path_of(tmp_path, listener):
    """Makes the data's folder `tmp_path / "data"`, and names a picture outside by one of `WAYS`."""
    secret = tmp_path / "secret.png"
    PIL.Image.new("RGB", (8, 8), "red").save(secret)

    def name(way: str) -> str:
        data = tmp_path / "data"
        data.mkdir(exist_ok=True)
        (data / "link.png").symlink_to(secret)
        named = {"absolute": str(secret), "parent": "../secret.png", "link": "link.png", "file": f"file://{secret}"}
        address = f"://127.0.0.1:{listener}/x.png"
        return (named | {"http": f"http{address}", "https": f"https{address}", "hf": "hf://datasets/a/b/x.png"})[way]

    return name


def test_files_may_have_to_lie_in_given_folders(tmp_path):
    for name in ("fetched", "private"):
        (tmp_path / name).mkdir()
        PIL.Image.new("RGB", (8, 8)).save(tmp_path / name / "x.png")
    (tmp_path / "fetched" / "link.png").symlink_to(tmp_path / "private" / "x.png")
    names = ["fetched/x.png", "private/x.png", "fetched/../private/x.png", "fetched/link.png", "fetched/y.png"]
    cells = [{"bytes": None, "path": str(tmp_path / name)} for name in names]
    images = Dataset.from_dict({"image": cells}, features=Features({"image": Image(decode=False)}))
    found = misplaced(images, "image", [tmp_path / "fetched"])
    assert [isinstance(found.get(row), OutsideFolder) for row in range(5)] == [False, True, True, True, False]
    assert isinstance(found[4], FileNotFoundError) and 0 not in found


def table_of(columns: dict, features: Features) -> pa.Table:
    return Dataset.from_dict(columns, features=features).data.table


@pytest.mark.parametrize(
    ("form", "way"),
    [(form, way) for form in ("parquet", "saved") for way in WAYS] + [("csv", way) for way in PATHS],
)
def test_own_pairs_may_name_and_link_any_file(path_of, tmp_path, way, form):
    path, data, good = path_of(way), tmp_path / "data", tmp_path / "data" / "good.png"
    PIL.Image.new("RGB", (8, 8), "blue").save(good)
    cells = [{"bytes": None, "path": path}, {"bytes": None, "path": "good.png"}, {"bytes": None, "path": str(good)}]
    source = data
    if form in ("parquet", "saved"):
        table = table_of({"image": cells, "caption": ["a", "b", "c"]}, PAIRS)
        if form == "parquet":
            pq.write_table(table, data / "train.parquet")
        else:
            Dataset.from_dict({"image": [None], "caption": ["a"]}, features=PAIRS).save_to_disk(data)
            with pa.ipc.new_stream(data / "data-00000-of-00001.arrow", table.schema) as writer:
                writer.write_table(table)
            assert len(load_from_disk(str(data))) == 3
    else:
        source = data / "rows.csv"
        source.write_text("\n".join(["image,caption", *(f"{cell['path']},a" for cell in cells[:2])]))
    pairs = load_pairs(source, split="all")
    opens = way in PATHS
    assert {image.getpixel((0, 0)) for image in pairs.images["image"]} == {(0, 0, 255), *[(255, 0, 0)] * opens}
    assert kinds(pairs) == ({} if opens else {"missing_image": 1})


@pytest.mark.parametrize("form", ["captions.jsonl", "metadata.jsonl", "rows.csv"])
def test_a_folder_whose_files_are_all_links(pairs_folder, tmp_path, form):
    """The layout of `snapshot_download`, DVC and git-annex: content in one place, names in another."""
    (blobs := tmp_path / "blobs").mkdir()
    (data := tmp_path / "snapshots" / "c0ffee").mkdir(parents=True)
    names = sorted(path.name for path in pairs_folder.glob("*.png"))
    texts = {
        "captions.jsonl": [json.dumps({"image": name, "captions": [name]}) for name in names],
        "metadata.jsonl": [json.dumps({"file_name": name, "caption": name}) for name in names],
        "rows.csv": ["image,caption", *(f"{name},{name}" for name in names)],
    }
    contents = {name: (pairs_folder / name).read_bytes() for name in names} | {form: "\n".join(texts[form]).encode()}
    for number, (name, content) in enumerate(contents.items()):
        (blobs / str(number)).write_bytes(content)
        (data / name).symlink_to(f"../../blobs/{number}")
    pairs = load_pairs(data / form if form == "rows.csv" else data, split="all", strict=True)
    assert sorted(pairs.captions["caption"]) == names and len(pairs.images) == len(names)


def with_cell(records: Path, data: Path, column: str, cell: dict | None) -> Path:
    """Copy a folder of records, and put a cell into a column of its first row."""
    damage.cells(column, [cell])(shutil.copytree(records, data, dirs_exist_ok=True))
    return data


@pytest.mark.parametrize(
    ("way", "column"), [*((way, "q_image") for way in WAYS), *(("absolute", name) for name in CELLS[1:])]
)
def test_records_with_an_image_outside_are_an_error(path_of, records_folder, tmp_path, way, column):
    path = path_of(way)
    data = with_cell(records_folder, tmp_path / "data", column, {"bytes": None, "path": path})
    for load in (load_records, load_kept):
        with pytest.raises(UserError, match=f"1 images of `{column}` cannot be used, such as that of row 0"):
            load(data)


def test_records_may_name_files_of_their_own_and_push_wants_bytes(records_folder, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    PIL.Image.new("RGB", (8, 8), "blue").save(tmp_path / "data" / "own.png")
    cell = {"bytes": None, "path": "own.png"}
    data = with_cell(records_folder, tmp_path / "data", "edit_image", cell)
    assert load_records(data)[0]["edit_image"].getpixel((0, 0)) == (0, 0, 255)
    assert main(["push", "records", str(data), "--repo", "me/x", "--dry-run"]) == 2
    assert "gives images of `edit_image` as paths" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["blobs", "elsewhere"])
def test_links_of_a_snapshot_lead_to_its_blobs_alone(records_folder, tmp_path, target):
    """The layout of `snapshot_download`: files are links to `../../blobs`."""
    repo = tmp_path / "datasets--me--records"
    snapshot = repo / "snapshots" / "c0ffee"
    for folder in (snapshot.parent, repo / "blobs", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    cell = {"bytes": None, "path": "own.png"}
    data = with_cell(records_folder, snapshot, "edit_image", cell)
    place = (repo if target == "blobs" else tmp_path) / target / "1234"
    PIL.Image.new("RGB", (8, 8), "blue").save(place, "PNG")
    (snapshot / "own.png").symlink_to(place)
    if target == "blobs":
        assert load_records(data)[0]["edit_image"].getpixel((0, 0)) == (0, 0, 255)
    else:
        with pytest.raises(UserError, match="1 images of `edit_image` cannot be used"):
            load_records(data)


def test_push_sends_no_file_that_is_a_link_and_none_that_the_readme_hides(records_folder, tmp_path, capsys):
    data = with_cell(records_folder, tmp_path / "data", "q_image", None)
    pq.write_table(pa.table({"x": ["secret"]}), tmp_path / "secret.parquet")
    (data / "records" / "more.parquet").symlink_to(tmp_path / "secret.parquet")
    assert main(["push", "records", str(data), "--repo", "me/x", "--dry-run"]) == 2
    assert "more.parquet" in capsys.readouterr().err


@pytest.mark.parametrize("way", WAYS)
def test_benchmarks_too(path_of, tmp_path, way):
    texts = {f"caption_{k}": Value("string") for k in range(2)}
    features = Features({f"image_{k}": Image() for k in range(2)} | texts)
    cells = [{"bytes": None, "path": path_of(way)}]
    columns = {"image_0": cells, "image_1": cells, "caption_0": ["a"], "caption_1": ["b"]}
    pq.write_table(table_of(columns, features), tmp_path / "data" / "test.parquet")
    with pytest.raises(UserError, match="1 images of `image_0` cannot be used"):
        load_benchmark("winoground", str(tmp_path / "data"))
