"""The server of the annotation page against requests that no browser sends, over a real connection."""

import json
import socket
import threading

import pytest
from PIL import Image

from repair_hf.analysis.people.page import MOST, Judging

ANSWER = {"annotator": "ann", "item": "item-0", "verdict": "genuine"}


@pytest.fixture
def ask(tmp_path):
    """Sends bytes to a server, and returns the first line of its reply."""
    (tmp_path / "shown" / "pictures").mkdir(parents=True)
    Image.new("RGB", (4, 3)).save(tmp_path / "shown" / "pictures" / "p.webp", "WEBP")
    (tmp_path / "shown" / "items.jsonl").write_text('{"item": "item-0"}\n')
    (tmp_path / "task.json").write_text('{"task": "qc"}')

    def send(request: str) -> str:
        with socket.create_connection(server.server_address, timeout=60) as line:
            line.sendall(request.encode())
            return line.recv(1000).decode("latin-1").partition("\r\n")[0]

    with Judging(tmp_path, "127.0.0.1", 0, ["127.0.0.1"]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield send
        server.shutdown()


def post(length: str | None, body: str, host: str = "127.0.0.1", kind: str = "application/json") -> str:
    head = f"POST /answers HTTP/1.0\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
    return head + ("" if length is None else f"Content-Length: {length}\r\n") + f"\r\n{body}"


@pytest.mark.parametrize("length", ["-1", "+70", "1_0", "", None, "٧٠", "7 0", str(MOST + 1), "9" * 5000])
def test_a_length_that_is_none_is_answered_without_reading_on(ask, tmp_path, length, capfd):
    assert "400" in ask(post(length, json.dumps(ANSWER)))  # the connection stays open: who reads on would wait
    assert "200" in ask(post(str(len(json.dumps(ANSWER))), json.dumps(ANSWER)))
    assert len((tmp_path / "answers" / "ann.jsonl").read_text().splitlines()) == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("how", "status"), [(dict(host="evil.example"), "421"), (dict(kind="text/plain"), "400")])
def test_a_page_of_another_site_sends_no_answer(ask, tmp_path, how, status):
    body = json.dumps(ANSWER)
    assert status in ask(post(str(len(body)), body, **how)) and not (tmp_path / "answers").exists()


WRONG = [{"annotator": "../x"}, {"item": "other"}, {"verdict": "maybe"}, {"verdict": 1}]
BODIES = ["[" * 9000, '"\\ud800"', "{}", "null", "[1]", '{"annotator": NaN}', "\0", "{"]


@pytest.mark.parametrize("body", [*(json.dumps(ANSWER | change) for change in WRONG), *BODIES])
def test_a_body_that_is_no_answer_is_an_error(ask, tmp_path, body, capfd):
    assert "400" in ask(post(str(len(body)), body))
    assert not (tmp_path / "answers").exists() and "Traceback" not in capfd.readouterr().err


PATHS = [
    f"pictures/{'p' * 5000}",
    "pictures/%00",
    "pictures/../task.json",
    "pictures/..%2F..%2Ftask.json",
    "pictures/",
]
PATHS += ["pictures/", "items?annotator=..", "p.webp"]


@pytest.mark.parametrize("path", [*(f"/{name}" for name in PATHS), "http://[", "//["])
def test_a_path_that_is_no_picture_is_not_found(ask, path, capfd):
    assert ask(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").split()[1] in ("400", "404")
    assert "200" in ask("GET /pictures/p.webp HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
    assert "Traceback" not in capfd.readouterr().err
