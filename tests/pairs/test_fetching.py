"""Images that a table names by address: downloaded once, within limits, and from nowhere that is private."""

from __future__ import annotations

import csv
import ipaddress
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from repair_hf.cli.main import main
from repair_hf.pairs import fetching
from repair_hf.pairs.dataset import load_pairs
from tests.pairs.made_sources import content, kinds

ROUTES = {  # path -> status and location
    "/moved": (302, "/red_circle.png"),
    "/loop": (301, "/loop"),
    "/file": (302, "file:///etc/hostname"),
    "/inside": (302, "http://127.0.0.2:{port}/red_circle.png"),
    "/gone": (410, None),
}


@pytest.fixture
def server(pairs_folder):
    """Serves the twelve pictures on every address of this machine; notes each path that it is asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            status, location = ROUTES.get(self.path, (200, None))
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location.format(port=self.server.server_address[1]))
            self.end_headers()
            if self.path == "/never":
                leave.wait(60)
            elif status == 200:
                self.wfile.write((pairs_folder / self.path[1:]).read_bytes())

        def log_message(self, *_):
            pass

    leave = threading.Event()
    with ThreadingHTTPServer(("0.0.0.0", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}", asked
        leave.set()
        httpd.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(fetching, "fetched_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("repair_hf.pairs.sources.fetched_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def table(folder, names) -> str:
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *((name, f"caption {k}") for k, name in enumerate(names))])
    return str(folder / "rows.csv")


def test_an_image_is_downloaded_once_and_stands_beside_files(server, pairs_folder, tmp_path, cache):
    url, asked = server
    names = [f"{url}/red_circle.png", f"{url}/moved", str(pairs_folder / "red_square.png"), f"{url}/red_circle.png"]
    source = table(tmp_path, names)
    for _ in range(2):
        pairs = load_pairs(source, split="all", image_folder=pairs_folder, private_urls=True)
        # of equal bytes, but other files: two images, which mining finds to be alike
        captions = (["caption 0", "caption 3"], ["caption 1"], ["caption 2"])
        assert content(pairs) == dict(zip(names, captions, strict=False))
        assert pairs.looks[0] == pairs.looks[1] != pairs.looks[2]
        assert pairs.images[0]["image"].getpixel((24, 20)) == (255, 0, 0)
    assert sorted(asked) == ["/moved", "/red_circle.png", "/red_circle.png"]
    assert len(list(cache.iterdir())) == 2


REFUSED = [
    ("/gone", "HTTP 410"),
    ("/loop", "more than 5 redirects"),
    ("/file", "not an http or https address"),
    ("ftp://127.0.0.1/x.png", "not an http or https address"),
    ("http://", "not an http or https address"),
    ("http://no-such-host.invalid/x.png", "gaierror"),
    ("http://[::bad/x.png", "InvalidURL"),
    ("http://127.0.0.1:99999/x.png", "not an http or https address"),
]


@pytest.mark.parametrize(("name", "reason"), REFUSED)
def test_what_cannot_be_downloaded_is_left_out_with_its_reason(server, tmp_path, cache, name, reason):
    url, _ = server
    name = url + name if name.startswith("/") else name
    pairs = load_pairs(table(tmp_path, [name, f"{url}/red_circle.png"]), split="all", private_urls=True)
    assert content(pairs) == {f"{url}/red_circle.png": ["caption 1"]} and kinds(pairs) == {"unfetched_image": 1}
    assert pairs.problems[0].examples[0].startswith(f"{name}: {reason}")
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("limit", "value", "path", "reason"),
    [("MAX_BYTES", 50, "/red_circle.png", "more than 50 bytes"), ("SECONDS", 0.5, "/never", "no whole image within")],
)
def test_limits(server, cache, monkeypatch, limit, value, path, reason):
    monkeypatch.setattr(fetching, limit, value)
    (found,) = fetching.fetch_images([server[0] + path], private=True).values()
    assert str(found).startswith(reason) and list(cache.iterdir()) == []


def test_no_private_address_is_asked_without_the_option(server, tmp_path, capsys, clip_folder):
    url, asked = server
    source = table(tmp_path, [f"{url}/red_circle.png", url.replace("127.0.0.1", "localhost")])
    mine = [
        "mine",
        "--pairs",
        source,
        "--split",
        "all",
        "--model",
        str(clip_folder),
        "--output",
        str(tmp_path / "out"),
    ]
    assert main([*mine, "--dry-run"]) == 2
    said = "2 rows whose images cannot be downloaded"
    assert said in (printed := capsys.readouterr().err) and "is a private address; `private_urls` allows" in printed
    assert asked == []


def test_a_redirect_does_not_lead_to_a_private_address(server, monkeypatch):
    monkeypatch.setattr(fetching, "_is_public", lambda address: str(address) == "127.0.0.1")
    url, asked = server
    good, inside = fetching.fetch_images([f"{url}/moved", f"{url}/inside"]).values()
    assert good.is_file() and str(inside) == "127.0.0.2 is a private address; `private_urls` allows it"
    assert sorted(asked) == ["/inside", "/moved", "/red_circle.png"]


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111"])
def test_public(address):
    assert fetching._is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    "10.0.0.1 127.0.0.1 169.254.169.254 0.0.0.0 100.64.0.1 224.0.0.1 255.255.255.255 ::1 :: fe80::1 fc00::1 ff02::1 "
    "::ffff:8.8.8.8 64:ff9b::a00:1 2002:a00:1::1 2001:0:a00:1::1".split(),
)
def test_not_public(address):
    assert not fetching._is_public(ipaddress.ip_address(address))
