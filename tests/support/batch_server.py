"""The batch API of the OpenAI protocol, beside the chat of the toy world's server.

A client uploads a file of requests (one JSON object a line) and creates a batch of it. After `delay` seconds the batch
is complete and has a file of answers and one of errors. Everything is kept in memory.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from email.parser import BytesParser
from typing import Any
from urllib.parse import urlsplit

from chat_server import ENDPOINT, ChatServer, Response, error


class BatchService:
    """Accepts files and batches. `note` gets each request's body when it arrives; `respond` answers it.

    `delay` is the time in seconds from a batch's creation to its end. It may change while a batch is running.
    """

    def __init__(self, respond: Callable[[dict], Response], note: Callable[[dict], None]) -> None:
        self.delay = 0.0
        self._respond, self._note = respond, note
        self._files: dict[str, bytes] = {}
        self._batches: dict[str, dict] = {}
        self._lock = threading.RLock()

    def post(self, path: str, content_type: str, data: bytes) -> Response | None:
        """Accept a file or a batch; None for other paths."""
        with self._lock:
            if path == "/v1/files":
                return self._take_file(content_type, data)
            return self._create(json.loads(data)) if path == "/v1/batches" else None

    def get(self, path: str) -> Response:
        """Return a batch, all batches, or the content of a file."""
        parts = urlsplit(path).path.removeprefix("/v1/").split("/")
        with self._lock:
            if parts == ["batches"]:
                listed = [self._look(batch) for batch in reversed(self._batches.values())]
                return Response(body={"object": "list", "data": listed, "has_more": False})
            if parts[0] == "batches" and parts[1] in self._batches:
                return Response(body=self._look(self._batches[parts[1]]))
            if parts[0] == "files" and parts[2:] == ["content"] and parts[1] in self._files:
                return Response(body=self._files[parts[1]], headers={"Content-Type": "application/octet-stream"})
        return error(404, f"Nothing is served at {path}.")

    def _take_file(self, content_type: str, data: bytes) -> Response:
        form: Any = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + data)
        contents: dict[str, bytes] = {
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
        rows, wrong = [], ""
        try:
            rows = [json.loads(line) for line in self._files[wish["input_file_id"]].splitlines()]
            wrong = next((str(k) for k, row in enumerate(rows) if row["url"] != ENDPOINT or not row["custom_id"]), "")
        except (ValueError, KeyError) as fault:
            rows, wrong = [], repr(fault)
        if wrong:
            problem = {"code": "invalid_json_line", "message": f"Not a request: {wrong}", "line": 1, "param": None}
            batch |= {"status": "failed", "errors": {"object": "list", "data": [problem]}}
        for row in rows:
            self._note(row["body"])
        self._batches[batch["id"]] = batch | {"rows": rows, "since": time.monotonic()}
        return Response(body=batch)

    def _look(self, batch: dict) -> dict:
        """Return the current state of a batch, and finish it if its time is over."""
        if batch["status"] == "in_progress" and time.monotonic() >= batch["since"] + self.delay:
            self._finish(batch)
        return {name: value for name, value in batch.items() if name not in ("rows", "since")}

    def _finish(self, batch: dict) -> None:
        answered: list[str] = []
        failed: list[str] = []
        for row in batch["rows"]:
            response = self._respond(row["body"])
            reply = {"status_code": response.status, "request_id": uuid.uuid4().hex, "body": response.body}
            name = f"batch_req_{uuid.uuid4().hex}"
            line = {"id": name, "custom_id": row["custom_id"], "response": reply, "error": None}
            (answered if response.status == 200 else failed).append(json.dumps(line))
        for name, lines in (("output_file_id", answered), ("error_file_id", failed)):
            batch[name] = self._keep("\n".join(lines).encode(), "batch_output")["id"] if lines else None
        counts = {"total": len(batch["rows"]), "completed": len(answered), "failed": len(failed)}
        batch |= {"status": "completed", "request_counts": counts, "completed_at": int(time.time())}


class BatchServer(ChatServer):
    """A `ChatServer` that takes batches, too; `batches.delay` is the duration of a batch."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches = BatchService(self.respond, self.note)

    def get(self, path: str) -> Response:
        return self.batches.get(path)

    def post(self, path: str, content_type: str, data: bytes) -> Response:
        return self.batches.post(path, content_type, data) or super().post(path, content_type, data)

    def __enter__(self) -> BatchServer:
        super().__enter__()
        return self
