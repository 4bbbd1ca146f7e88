"""Images that a table names by address: downloaded once, within limits, and always the same ones."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pandas as pd
import pytest

from repair_hf.pairs import fetching, problems
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import content, kinds

ROUTES = {  # path -> status and location
    "/moved": (302, "/red_circle.png"),
    "/loop": (301, "/loop"),
    "/file": (302, "file:///etc/hostname"),
    "/gone": (410, None),
}


class Server:
    """Serves the twelve pictures; notes each path that it is asked for. A path in `down` answers with 503."""

    def __init__(self, folder) -> None:
        self.asked: list[str] = []
        self.down: set[str] = set()
        self.leave = threading.Event()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                served.asked.append(self.path)
                status, location = ROUTES.get(self.path, (503 if self.path in served.down else 200, None))
                self.send_response(status)
                if location is not None:
                    self.send_header("Location", location)
                self.end_headers()
                if self.path == "/never":
                    served.leave.wait(60)
                elif self.path == "/page":
                    self.wfile.write(b"<!DOCTYPE html><title>Sign in</title>")
                elif status == 200:
                    self.wfile.write((folder / self.path.rpartition("/")[2]).read_bytes())

            def log_message(self, *_):
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_address[1]}"


@pytest.fixture
def server(pairs_folder):
    server = Server(pairs_folder)
    with server.httpd:
        threading.Thread(target=server.httpd.serve_forever, daemon=True).start()
        yield server
        server.leave.set()
        server.httpd.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(fetching, "fetched_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def images_in(cache) -> int:
    return sum(path.is_file() for path in cache.iterdir())


def table(folder, names, **columns) -> str:
    rows = pd.DataFrame({"image": names, "caption": [f"caption {k}" for k in range(len(names))]} | columns)
    rows.to_csv(folder / "rows.csv", index=False)
    return str(folder / "rows.csv")


def test_an_image_is_downloaded_once_and_stands_beside_files(server, pairs_folder, tmp_path, cache):
    names = [f"{server.url}/red_circle.png", str(pairs_folder / "red_square.png")]
    names.append(names[0])
    source = table(tmp_path, names)
    for _ in range(2):
        pairs = load_pairs(source, split="all")
        assert content(pairs) == {names[0]: ["caption 0", "caption 2"], "red_square.png": ["caption 1"]}
        assert pairs.images[0]["image"].getpixel((24, 20)) == (255, 0, 0)
    assert server.asked == ["/red_circle.png"] and images_in(cache) == 1


def test_one_picture_behind_several_addresses(server, tmp_path, cache):
    """A placeholder in place of many pictures shows none of their captions; one picture at two addresses is one."""
    names = [
        "a/red_circle.png",
        "b/red_circle.png",
        "c/red_circle.png",
        "a/blue_circle.png",
        "b/blue_circle.png",
        "moved",
    ]
    captions = ["a dog", "a cat", "a horse", "A fish.", "a fish", "a dog"]
    pairs = load_pairs(table(tmp_path, [f"{server.url}/{name}" for name in names], caption=captions), split="all")
    assert content(pairs) == {f"{server.url}/a/blue_circle.png": ["A fish.", "a fish"]}
    assert kinds(pairs) == {"placeholder_image": 4} and f"{server.url}/b/red_circle.png" in str(pairs.problems[0])


REFUSED = [
    ("/gone", "HTTP 410"),
    ("/loop", "TooManyRedirects"),
    ("/file", "UnsupportedProtocol"),
    ("/page", "not an image"),
    ("ftp://127.0.0.1/x.png", "UnsupportedProtocol"),
    ("http://", "UnsupportedProtocol"),
    ("http://no-such-host.invalid/x.png", "ConnectError"),
    ("http://[::bad/x.png", "InvalidURL"),
]


def test_what_cannot_be_downloaded_is_left_out_with_its_reason(server, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(problems, "EXAMPLES", len(REFUSED))  # so that each reason is shown
    names = [server.url + name if name.startswith("/") else name for name, _ in REFUSED]
    source = table(tmp_path, [f"{server.url}/red_circle.png", *names])
    for _ in range(2):  # the second time from the cache
        pairs = load_pairs(source, split="all")
        assert content(pairs) == {f"{server.url}/red_circle.png": ["caption 0"]}
        assert kinds(pairs) == {"unfetched_image": len(REFUSED)}
        for name, (_, reason), example in zip(names, REFUSED, pairs.problems[0].examples, strict=True):
            assert example.startswith(f"{name}: {reason}")
    assert images_in(cache) == 1


@pytest.mark.parametrize(
    ("limit", "value", "path", "reason"),
    [("MAX_BYTES", 50, "/red_circle.png", "more than 50 bytes"), ("SECONDS", 0.5, "/never", "ReadTimeout")],
)
def test_limits(server, cache, monkeypatch, limit, value, path, reason):
    monkeypatch.setattr(fetching, limit, value)
    ((_, fault),) = fetching.fetch_images([server.url + path]).values()
    assert fault.startswith(reason) and images_in(cache) == 0


@pytest.mark.parametrize("columns", [{}, {"id": [7, 7, 8, 9]}], ids=["addresses", "ids"])
def test_rows_do_not_depend_on_which_addresses_answer(server, tmp_path, cache, caplog, columns):
    """An address that answers again later shifts no row, until its fault is forgotten."""
    names = [f"{server.url}/red_{kind}.png" for kind in ("square", "square", "circle", "triangle")]
    source = table(tmp_path, names, **columns)
    server.down = {"/red_square.png"}
    first = load_pairs(source, split="all")
    assert len(first.images) == 2 and f"Delete {cache / 'failed'}" in caplog.text
    server.down = set()
    caplog.clear()
    again = load_pairs(source, split="all")
    assert f"Delete {cache / 'failed'}" in caplog.text
    assert again.images["image_id"][:] == first.images["image_id"][:] and again.fingerprint == first.fingerprint
    for file in (cache / "failed").iterdir():
        file.unlink()
    whole = load_pairs(source, split="all")
    assert len(whole.images) == 3 and set(first.images["image_id"]) < set(whole.images["image_id"])


def test_a_network_that_is_down_is_not_remembered(server, tmp_path, cache):
    source = table(tmp_path, [f"{server.url}/red_square.png", f"{server.url}/red_circle.png"])
    server.down = {"/red_square.png", "/red_circle.png"}
    with pytest.raises(UserError, match="No image can be used: rows whose images cannot be downloaded: 2"):
        load_pairs(source, split="all")
    server.down = set()
    assert len(load_pairs(source, split="all").images) == 2


def test_a_proxy_of_the_environment_is_used(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("NO_PROXY", "")
    source = table(tmp_path, ["http://pictures.invalid/red_circle.png"])
    assert len(load_pairs(source, split="all").images) == 1
    assert server.asked == ["http://pictures.invalid/red_circle.png"]
