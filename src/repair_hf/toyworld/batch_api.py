"""The batch API of the OpenAI protocol, for the server beside this file: requests handed in as a file, answered as a file.

In:  a file of requests, one JSON object a line; a batch that names it; questions about how far it is.
Out: after `delay` seconds, a file with an answer per request and one with those that failed.

All is kept in memory: the server's end is the end of its batches.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from email.parser import BytesParser
from urllib.parse import urlsplit

ENDPOINT = "/v1/chat/completions"


@dataclass(frozen=True)
class Response:
    """A whole HTTP response, for what a provider does when it does not simply answer."""

    status: int = 200
    body: dict | bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Hangup(Exception):
    """Raised by an answer function: the connection closes without a response."""


def error(status: int, message: str) -> Response:
    """What the protocol says of a request that is at fault."""
    return Response(status, {"error": {"message": message, "type": "invalid_request_error", "code": None}})


class BatchService:
    """Takes in files and batches.

    Args:
        respond: Answers one request's body.
        note: Told of each body as it comes in.

    Attributes:
        delay: Seconds from a batch's creation to its end; read whenever a client asks, so that it can be changed meanwhile.
    """

    def __init__(self, respond: Callable[[dict], Response], note: Callable[[dict], None]) -> None:
        self.delay = 0.0
        self._respond, self._note = respond, note
        self._files: dict[str, bytes] = {}
        self._batches: dict[str, dict] = {}
        self._lock = threading.RLock()

    def post(self, path: str, content_type: str, data: bytes) -> Response | None:
        """Take in a file or a batch; None if the path is another's."""
        with self._lock:
            if path == "/v1/files":
                return self._take_file(content_type, data)
            return self._create(json.loads(data)) if path == "/v1/batches" else None

    def get(self, path: str) -> Response:
        """Hand out a batch, all batches, or the content of a file."""
        parts = urlsplit(path).path.removeprefix("/v1/").split("/")
        with self._lock:
            if parts == ["batches"]:
                listed = [self._look(batch) for batch in reversed(self._batches.values())]
                return Response(body={"object": "list", "data": listed, "has_more": False})
            if parts[0] == "batches" and parts[1] in self._batches:
                return Response(body=self._look(self._batches[parts[1]]))
            if parts[0] == "files" and parts[2:] == ["content"] and parts[1] in self._files:
                return Response(body=self._files[parts[1]], headers={"Content-Type": "application/octet-stream"})
        return error(404, f"There is nothing at {path}.")

    def _take_file(self, content_type: str, data: bytes) -> Response:
        form = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + data)
        contents = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in form.get_payload()
        }
        if contents.get("purpose") != b"batch" or "file" not in contents:
            return error(400, f"A file for a batch needs `purpose` and `file`, got {sorted(contents)}.")
        return Response(body=self._keep(contents["file"], "batch"))

    def _keep(self, content: bytes, purpose: str) -> dict:
        name = f"file-{uuid.uuid4().hex}"
        self._files[name] = content
        about = {"object": "file", "filename": f"{name}.jsonl", "status": "processed", "created_at": int(time.time())}
        return {"id": name, "bytes": len(content), "purpose": purpose, **about}

    def _create(self, wish: dict) -> Response:
        if wish["input_file_id"] not in self._files:
            return error(404, f"There is no file {wish['input_file_id']}.")
        batch = {
            "id": f"batch_{uuid.uuid4().hex}",
            "object": "batch",
            "endpoint": wish["endpoint"],
            "input_file_id": wish["input_file_id"],
            "completion_window": wish["completion_window"],
            "metadata": wish.get("metadata"),
            "status": "in_progress",
            "created_at": int(time.time()),
            "errors": None,
        }
        try:
            rows = [json.loads(line) for line in self._files[wish["input_file_id"]].splitlines()]
            wrong = next((k for k, row in enumerate(rows) if row["url"] != ENDPOINT or not row["custom_id"]), None)
        except (ValueError, KeyError) as fault:
            rows, wrong = [], repr(fault)
        if wrong is not None:
            fault = {"code": "invalid_json_line", "message": f"Not a request: {wrong}", "line": 1, "param": None}
            batch |= {"status": "failed", "errors": {"object": "list", "data": [fault]}}
        for row in rows:
            self._note(row["body"])
        self._batches[batch["id"]] = batch | {"rows": rows, "since": time.monotonic()}
        return Response(body=batch)

    def _look(self, batch: dict) -> dict:
        """The batch as it stands, which may have come to its end."""
        if batch["status"] == "in_progress" and time.monotonic() >= batch["since"] + self.delay:
            self._finish(batch)
        return {name: value for name, value in batch.items() if name not in ("rows", "since")}

    def _finish(self, batch: dict) -> None:
        answered, failed = [], []
        for row in batch["rows"]:
            try:
                response = self._respond(row["body"])
            except Hangup:
                response = error(500, "The server had an error while processing your request.")
            told = {"status_code": response.status, "request_id": uuid.uuid4().hex, "body": response.body}
            line = {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": row["custom_id"],
                "response": told,
                "error": None,
            }
            (answered if response.status == 200 else failed).append(json.dumps(line))
        for name, lines in (("output_file_id", answered), ("error_file_id", failed)):
            batch[name] = self._keep("\n".join(lines).encode(), "batch_output")["id"] if lines else None
        counts = {"total": len(batch["rows"]), "completed": len(answered), "failed": len(failed)}
        batch |= {"status": "completed", "request_counts": counts, "completed_at": int(time.time())}
