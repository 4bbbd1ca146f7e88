"""`repair-hf data` against an HTTP server with tiny archives of the right form."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from benchmark_files import vg_rows
from hub_routes import Repo
from hub_server import Client, Hub
from PIL import Image
from recipe_data import SIZES, make_data

from repair_hf.cli.main import main
from repair_hf.evaluation import aro, sugarcrepe
from repair_hf.pairs import benchmarks, public_data
from repair_hf.pairs.dataset import load_pairs

KARPATHY, TRAIN, VAL = "caption_datasets.zip", "train2014.zip", "val2014.zip"


class Host(BaseHTTPRequestHandler):
    """Serves `files` by name, with ranges; breaks the connection after `cuts[path]` bytes, once."""

    url: str
    files: dict[str, bytes]
    cuts: dict[str, int]
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        path, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.asked.append((path, wanted))
        body = self.files.get(path)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted else 0
        self.send_response(404 if body is None else 206 if wanted else 200)
        body = (body or b"")[start:]
        self.send_header("Content-Type", "text/html" if body.startswith(b"<html") else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.cuts.pop(path, len(body))])

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def host(monkeypatch):
    served = type("Served", (Host,), {"files": {}, "cuts": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(benchmarks, "SIZES", SIZES)
        yield served
        server.shutdown()


def zipped(files: dict[str, Path | bytes]) -> bytes:
    with zipfile.ZipFile(out := io.BytesIO(), "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content if isinstance(content, bytes) else content.read_bytes())
    return out.getvalue()


def serve(host: type[Host], monkeypatch, name: str, bodies: dict[str, bytes], counts: dict[str, int]) -> None:
    """Serve the downloads of a dataset by the name of their part, and expect their size, checksum and count."""
    parts = []
    for part in public_data.SETS[name].parts:
        if part.name in bodies:
            body = bodies[part.name]
            host.files[part.file] = body
            known = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()} if part.sha256 else {}
            part = replace(part, source=f"{host.url}/{part.file}", **known)
        parts.append(replace(part, count=counts.get(part.name, part.count)))
    monkeypatch.setitem(public_data.SETS, name, replace(public_data.SETS[name], parts=tuple(parts)))


@pytest.fixture
def coco(host, monkeypatch, pairs_folder, tmp_path):
    """COCO with 6 photographs in train2014 and as many in val2014."""
    recipe = {"pairs": str(tmp_path / "made" / "dataset_coco.json"), "image_folder": str(tmp_path / "made")}
    (tmp_path / "made").mkdir()
    make_data(pairs_folder, recipe | {"benchmark": "coco"})
    bodies = {"dataset_coco.json": zipped({"dataset_coco.json": Path(recipe["pairs"]), "other.json": b"{}"})}
    for name in ("train2014", "val2014"):
        files = sorted((tmp_path / "made" / name).iterdir())
        bodies[name] = zipped({f"{name}/": b""} | {f"{name}/{file.name}": file for file in files})
    serve(host, monkeypatch, "coco", bodies, {"train2014": 6, "val2014": 6})
    return tmp_path / "coco"


def test_a_download_that_broke_off_goes_on_and_fits_the_other_commands(coco, host, capsys):
    host.cuts[TRAIN] = 1000
    coco.mkdir()
    (coco / f"{VAL}.part").write_bytes(host.files[VAL][:700])  # of a command that was killed
    assert main(["data", "coco", "--output", str(coco)]) == 0
    said = capsys.readouterr().out
    assert host.asked == [(KARPATHY, None), (TRAIN, None), (TRAIN, None), (VAL, "bytes=700-")]
    assert "train 6, train+restval 8, val 2, test 2 images" in said and "next: repair-hf mine --pairs" in said
    names = {path.name for path in coco.iterdir()}
    assert names == {"dataset_coco.json", "train2014", "val2014"}
    pairs = load_pairs(coco / "dataset_coco.json", image_folder=coco, benchmark="coco", with_restval=True)
    assert len(pairs.images) == 8
    assert main(["data", "coco", "--output", str(coco)]) == 0 and len(host.asked) == 4  # all of it is there


def test_a_host_without_the_file_stops_the_command(coco, host, capsys):
    del host.files[TRAIN]
    assert main(["data", "coco", "--output", str(coco)]) == 1
    assert "404" in (said := capsys.readouterr().err) and "Rerun the same command to resume." in said


def test_a_wrong_checksum_deletes_the_file(coco, host, capsys):
    host.files[TRAIN] = host.files[TRAIN][:-1] + b"?"
    assert main(["data", "coco", "--output", str(coco)]) == 2
    said = capsys.readouterr().err
    assert re.search(r"train2014.zip .* has the SHA-256 checksum \w{64} instead of \w{64}; it was deleted", said)
    assert {each.name for each in coco.iterdir()} == {"dataset_coco.json"}


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda made: (made / "val2014").rename(made / "val"), "lacks 6 of 12 images, such as"),
        (
            lambda made: (made / "dataset_coco.json").write_text(
                '{"images": [{"filename": "a.jpg", "split": "val", "sentences": []}]}'
            ),
            "lists 0 images with 0 captions as train",
        ),
    ],
)
def test_a_folder_that_is_there_is_checked(change, said, coco, host, tmp_path, monkeypatch, capsys):
    serve(host, monkeypatch, "coco", {}, {"val2014": 0} if "lacks" in said else {})
    change(tmp_path / "made")
    (tmp_path / "made" / "val2014").touch() if "lacks" in said else None
    assert main(["data", "coco", "--output", str(tmp_path / "made")]) == 2
    assert said in capsys.readouterr().err and host.asked == []


def test_flickr30k_names_the_form_and_takes_what_it_gives(host, monkeypatch, pairs_folder, tmp_path, capsys):
    made, folder = tmp_path / "made", tmp_path / "flickr30k"
    made.mkdir()
    recipe = {"pairs": str(made / "dataset_flickr30k.json"), "image_folder": str(made / "flickr30k-images")}
    make_data(pairs_folder, recipe | {"benchmark": "flickr30k"})
    captions = zipped({"dataset_flickr30k.json": Path(recipe["pairs"])})
    serve(host, monkeypatch, "flickr30k", {"dataset_flickr30k.json": captions}, {"flickr30k-images": 12})
    words = ["data", "flickr30k", "--output", str(folder)]
    assert main([*words, "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "non-commercial research" in said and "needs you" in said and "To do by hand: Fill in the form" in said
    assert not folder.exists() and host.asked == []
    assert main(words) == 2
    assert "https://shannon.cs.illinois.edu/DenotationGraph/: Fill in the form" in (said := capsys.readouterr().err)
    assert f"{folder / 'flickr30k-images.tar.gz'}. Then type the command again." in said
    with tarfile.open(folder / "flickr30k-images.tar.gz", "w:gz") as archive:
        archive.add(made / "flickr30k-images", "flickr30k-images")
    assert main(words) == 0 and "train 6, val 2, test 2 images" in capsys.readouterr().out


def test_aro_is_checked_by_its_cases(host, monkeypatch, tmp_path, capsys):
    rows = {name: vg_rows(kind, [f"g{k}" for k in range(8)]) for name, kind in aro.KIND.items()}
    monkeypatch.setattr(aro, "PUBLISHED", dict.fromkeys(rows, 8))
    colors = {f"images/{row['image_path']}" for row in rows["vg_relation"]}
    Image.new("RGB", (40, 40)).save(picture := io.BytesIO(), "PNG")
    bodies = {aro.FILES[name]: json.dumps(some).encode() for name, some in rows.items()}
    bodies["images"] = b"<html>Google Drive is busy</html>"
    serve(host, monkeypatch, "aro", bodies, {})
    words = ["data", "aro", "--output", str(tmp_path / "aro")]
    assert main([*words, "--dry-run"]) == 0
    assert "missing   images: size unknown, checked by content, from http://" in capsys.readouterr().out
    assert main(words) == 2
    assert (
        f"Open it in a browser, and save the download as {tmp_path / 'aro' / 'vgr_vga_images.zip'}."
        in capsys.readouterr().err
    )
    serve(host, monkeypatch, "aro", bodies | {"images": zipped(dict.fromkeys(colors, picture.getvalue()))}, {})
    assert main(words) == 0 and "vg_relation 8, vg_attribution 8 cases" in capsys.readouterr().out


def test_sugarcrepe_is_checked_by_its_cases(host, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sugarcrepe, "SUGARCREPE", dict.fromkeys(sugarcrepe.SUGARCREPE, 2))
    row = {"filename": "a.jpg", "caption": "a dog", "negative_caption": "a cat"}
    bodies = {f"{name}.json": json.dumps({"0": row, "1": row}).encode() for name in sugarcrepe.SUGARCREPE}
    serve(host, monkeypatch, "sugarcrepe", bodies | {"val2017": zipped({"val2017/a.jpg": b"?"})}, {"val2017": 1})
    assert main(["data", "sugarcrepe", "--output", str(tmp_path / "s")]) == 0
    assert "14 cases" in capsys.readouterr().out


def test_winoground_names_the_login_and_is_downloaded_with_it(tmp_path):
    names, folder = ("image_0", "image_1"), tmp_path / "winoground"
    rows = [{name: f"{k}-{name}" for name in names} | {"caption_0": "a", "caption_1": "b"} for k in range(400)]
    Image.new("RGB", (1, 1)).save(picture := io.BytesIO(), "PNG")
    images = {f"images/{row[name]}.png": picture.getvalue() for row in rows for name in names}
    files = {"data/examples.jsonl": "\n".join(map(json.dumps, rows)).encode(), "data/images.zip": zipped(images)}
    with Hub({"hf_stranger": "me", "hf_accepted": "facebook"}) as hub:
        hub.repos["dataset", "facebook/winoground"] = Repo(False, [("a" * 40, files)], gated=True)
        client, words = Client(hub, tmp_path / "home", None), ("data", "winoground", "--output", folder)
        said = client.main(*words, "--dry-run")[1]
        for name, how in (("examples.jsonl", "content"), ("images", "number of files (800)")):
            assert f"needs you {name}: size unknown, checked by {how}, from facebook/winoground\n" in said
        step = public_data._WINOGROUND_STEP
        assert said.count(f"To do by hand: {step}.\n") == 1 and not folder.exists() and not hub.requests
        refused = f"repair-hf data: error: `facebook/winoground` needs a login (HTTP {{}}). {step}."
        assert client.main(*words)[::2] == (2, refused.format(401))
        client.run("os.environ['HF_TOKEN'] = 'hf_stranger'")
        assert client.main(*words)[::2] == (2, refused.format(403))
        client.run("os.environ['HF_TOKEN'] = 'hf_accepted'")
        code, said, _ = client.main(*words)
        assert code == 0 and "400 cases" in said and f"--compositional winoground={folder}" in said
        asked = len(hub.requests)
        assert client.main(*words)[0] == 0 and len(hub.requests) == asked  # all of it is there
        client.close()


@pytest.mark.parametrize("damage", ["cut short", "another folder", "too few files"])
def test_an_archive_that_is_not_whole_leaves_nothing_behind(damage, coco, host, monkeypatch, capsys):
    body = zipped({f"{'val2013' if damage == 'another folder' else 'train2014'}/{k}.jpg": b"?" for k in range(5)})
    serve(host, monkeypatch, "coco", {"train2014": body[:-30] if damage == "cut short" else body}, {})
    assert main(["data", "coco", "--output", str(coco)]) == 2
    assert "Delete it, and type the command again" in capsys.readouterr().err
    assert {each.name for each in coco.iterdir()} == {"dataset_coco.json", TRAIN}


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_unpacking_adds_to_a_folder_and_writes_nowhere_else(kind, tmp_path):
    (folder := tmp_path / "data").mkdir()
    contents = {"top/images/one.jpg": b"1", "top/images/two.jpg": b"2", "../out.jpg": b"3"}
    archive = folder / f"all.{kind}"
    if kind == "zip":
        archive.write_bytes(zipped(contents))
    else:
        del contents["../out.jpg"]  # an error in a tar archive
        with tarfile.open(archive, "w") as packed:
            for name, content in contents.items():
                (member := tarfile.TarInfo(name)).size = len(content)
                packed.addfile(member, io.BytesIO(content))
    (folder / "images").mkdir()
    (folder / "images" / "own.jpg").write_bytes(b"own")
    public_data.get(public_data.Part("images", archive.name, "https://x.invalid", count=2), folder)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {f"data/images/{name}.jpg" for name in ("own", "one", "two")}


def test_checksums_and_addresses_are_whole():
    for data in public_data.SETS.values():
        for part in data.parts:
            assert part.sha256 is None or re.fullmatch("[0-9a-f]{64}", part.sha256)
            assert part.step or urlsplit(part.source).scheme in ("http", "https")
