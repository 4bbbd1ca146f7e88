"""A page on which people judge failures and edits by keyboard, and the server that it comes from.

An answer is on disk, in `answers/NAME.jsonl`, before the next item is shown. An annotator sees neither other answers
nor the audit's verdict. The same name resumes where it stopped; the last answer to an item counts.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from repair_hf.analysis.pages import render
from repair_hf.records.answers import CRITERIA, MODES, is_answer, read_answers
from repair_hf.runtime.texts import parse_json

NAME = re.compile(r"[a-z0-9_-]{1,32}")
QUESTIONS: dict[str, dict[str, Any]] = {  # of each task: key on the keyboard -> name in the answer, and its meaning
    "qc": {
        "verdicts": {
            "1": ("genuine", "Genuine failure: the ground truth fits the query, the false positive does not"),
            "2": ("gt_invalid", "No: the ground truth does not fit the query"),
            "3": ("fp_too_similar", "No: the false positive fits the query as well"),
        }
    },
    "edits": {
        "criteria": {str(number): each for number, each in enumerate(CRITERIA.items(), start=1)},
        "modes": dict(zip("sdaf", MODES.items(), strict=True)),
    },
}
MOST = 10_000  # bytes of an answer
LENGTH = re.compile(r"[0-9]{1,5}")  # `int` reads signs, underscores and digits of other scripts, too


class Judging(ThreadingHTTPServer):
    """Serves one task: its page, its items and pictures, and the answers of each annotator.

    Args:
        folder: Folder of the task, see `sampling.lay_out`.
        host: Address to listen on.
        port: Port; 0 takes a free one.
        names: Hosts that requests may ask for; others are refused.
    """

    daemon_threads = True

    def __init__(self, folder: str | Path, host: str, port: int, names: Collection[str]) -> None:
        self.folder, self.names = Path(folder), {name.lower() for name in names}
        self.task: str = json.loads((self.folder / "task.json").read_text())["task"]
        lines = (self.folder / "shown" / "items.jsonl").read_text().splitlines()
        self.items = [json.loads(line) for line in lines]
        self.pictures = {path.name for path in (self.folder / "shown" / "pictures").glob("*")}
        self.lock = threading.Lock()
        super().__init__((host, port), _Handler)

    def items_of(self, annotator: str) -> dict[str, Any]:
        """Return all items, and those that the annotator has answered."""
        answers = read_answers(self.folder)
        return {"items": self.items, "done": answers[answers["annotator"] == annotator]["item"].tolist()}

    def save(self, row: Any) -> bool:
        """Append an answer, and return when it is on disk; False if it is none."""
        known = {item["item"] for item in self.items}
        if not is_answer(row, self.task) or row["item"] not in known or not NAME.fullmatch(row["annotator"]):
            return False
        names = ["annotator", "item", *(["verdict"] if self.task == "qc" else [*CRITERIA, "mode"])]
        line = json.dumps({name: row[name] for name in names} | {"time": round(time.time(), 3)})
        path = self.folder / "answers" / f"{row['annotator']}.jsonl"
        path.parent.mkdir(exist_ok=True)
        with self.lock, path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line that a dying process had not finished is cut off
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return True


class _Handler(BaseHTTPRequestHandler):
    server: Judging

    def parse_request(self) -> bool:
        """Read the head of a request, and refuse it if it is for another host (DNS rebinding)."""
        if not super().parse_request():
            return False
        with suppress(ValueError):
            if urlsplit(f"//{self.headers['Host']}").hostname in self.server.names:
                return True
        self.send_error(421, "This server answers requests to its own address only")
        return False

    def do_GET(self) -> None:
        try:
            address = urlsplit(self.path)
        except ValueError:
            self.send_error(400)
            return
        if address.path == "/":
            page = render(
                "judge.html", questions=json.dumps(QUESTIONS[self.server.task]), nonce=secrets.token_urlsafe(16)
            )
            self._send(page.encode(), "text/html; charset=utf-8")
        elif address.path == "/items" and NAME.fullmatch(name := parse_qs(address.query).get("annotator", [""])[0]):
            self._send(json.dumps(self.server.items_of(name)).encode(), "application/json")
        elif (name := address.path.removeprefix("/pictures/")) in self.server.pictures:
            self._send((self.server.folder / "shown" / "pictures" / name).read_bytes(), "image/webp")
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        length = self.headers["Content-Length"] or ""
        if not LENGTH.fullmatch(length) or int(length) > MOST:
            self.send_error(400)
            return
        try:
            row = parse_json(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            row = None
        # A form of another site cannot send this type.
        is_ours = self.path == "/answers" and self.headers["Content-Type"] == "application/json"
        if is_ours and self.server.save(row):
            self._send(b"{}", "application/json")
        else:
            self.send_error(400)

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Print nothing: the terminal shows the address."""
