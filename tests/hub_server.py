"""A Hub on loopback: what `huggingface_hub`, `datasets` and `transformers` ask of huggingface.co to push and to load.

In:  users by token, and faults to play.
Out: the requests of a push (create, preupload, LFS, commit, tag) and of a load (info, tree, resolve) over real HTTP, with authentication.
     `commits`, `received` and `requests` tell a test what arrived.

Xet is not served: clients run with HF_HUB_DISABLE_XET=1, and with HF_ENDPOINT set before they import anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".parquet", ".safetensors", ".png", ".arrow", ".bin")  # what goes by LFS, as the Hub's own .gitattributes say
KINDS = {"datasets": "dataset", "models": "model", "spaces": "space"}


@dataclass
class Repo:
    """A repository: its revisions from the first to the newest, each a whole mapping of path to content."""

    private: bool
    commits: list[tuple[str, dict[str, bytes]]]
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        sha = self.head if revision == "main" else self.tags.get(revision, revision)
        return next((commit for commit in reversed(self.commits) if commit[0] == sha), None)


@dataclass
class Fault:
    """The next `times` requests whose `METHOD /path` matches go wrong: by a status, or with the connection cut (`cut`)."""

    pattern: str
    status: int | str
    times: int = 1


class Hub:
    """The server. Use it as a context manager; `url` is HF_ENDPOINT."""

    def __init__(self, users: dict[str, str]) -> None:
        self.users = users  # token -> name
        self.repos: dict[tuple[str, str], Repo] = {}
        self.stored: dict[str, bytes] = {}  # LFS objects by SHA-256
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, int]] = []  # ("METHOD /path", status)
        self.received: list[str] = []  # LFS objects that were sent, whole
        self.before_commit: Callable[[], None] | None = None
        self.lock = threading.Lock()

    def __enter__(self) -> Hub:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()

    def files(self, kind: str, name: str, revision: str = "main") -> dict[str, bytes]:
        return self.repos[kind, name].at(revision)[1]

    def count(self, pattern: str) -> int:
        """How many requests were made that match."""
        return sum(re.match(pattern, request) is not None for request, _ in self.requests)

    def fault(self, request: str) -> int | str | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and re.match(fault.pattern, request):
                    fault.times -= 1
                    return fault.status
        return None


class _Handler(BaseHTTPRequestHandler):
    """Each route is a method `VERB_name`, found by `ROUTES`."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET

    def log_message(self, *_) -> None:
        pass

    def _serve(self) -> None:
        path = urlsplit(self.path).path
        self.request_line = f"{self.command} {unquote(path)}"
        self.user = self.hub.users.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        fault = self.hub.fault(self.request_line)
        if fault == "cut":
            return self._cut()
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault is not None:
            return self._json({"error": "a fault, as asked for"}, int(fault))
        if "Authorization" in self.headers and self.user is None:
            return self._json({"error": "Invalid user token."}, 401)
        for verbs, pattern, answer in ROUTES:
            if self.command in verbs.split() and (found := re.fullmatch(pattern, path)):
                return answer(self, **{name: value and unquote(value) for name, value in found.groupdict().items()})
        return self._json({"error": f"no route for {self.request_line}"}, 404)

    def _cut(self) -> None:
        """Take half of what is sent, then reset the connection."""
        self.hub.requests.append((self.request_line, 0))
        self.rfile.read(int(self.headers.get("Content-Length") or 0) // 2)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.hub.requests.append((self.request_line, status))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: object, status: int = 200, code: str | None = None) -> None:
        headers = {"Content-Type": "application/json"} | ({"X-Error-Code": code} if code else {})
        if isinstance(value, dict) and "error" in value:
            headers["X-Error-Message"] = value["error"]
        self._reply(status, json.dumps(value).encode(), headers)

    def _repo(self, kind: str, name: str, *, write: bool = False) -> Repo | None:
        """The repository, if this user may see it (or write to it); else the refusal is sent."""
        repo = self.hub.repos.get((kind, name))
        if write and self.user is None:
            return self._json({"error": "Invalid username or password."}, 401)
        if repo is None or (repo.private and self.user is None):
            status = 404 if self.user else 401
            return self._json({"error": "Repository not found"}, status, "RepoNotFound")
        if (write or repo.private) and name.split("/")[0] != self.user:
            return self._json({"error": "You don't have the rights to do this"}, 403)
        return repo

    def info(self, kinds: str, name: str, revision: str | None = None) -> None:
        if (repo := self._repo(KINDS[kinds], name)) is None:
            return
        if (found := repo.at(revision or "main")) is None:
            return self._json({"error": f"Invalid rev id: {revision}"}, 404, "RevisionNotFound")
        siblings = [{"rfilename": path} for path in sorted(found[1])]
        told = {"id": name, "sha": found[0], "private": repo.private, "siblings": siblings, "tags": [], "downloads": 0}
        self._json(told | {"likes": 0, "gated": False, "disabled": False, "lastModified": "2026-01-01T00:00:00.000Z"})

    def create(self) -> None:
        asked = json.loads(self.body)
        if self.user is None:
            return self._json({"error": "Invalid username or password."}, 401)
        owner = asked.get("organization") or self.user
        if owner != self.user:
            return self._json({"error": f"You don't have the rights to create a repo under {owner}"}, 403)
        kind, name = asked.get("type", "model"), f"{owner}/{asked['name']}"
        prefix = "" if kind == "model" else f"{kind}s/"
        told = {"url": f"{self.hub.url}/{prefix}{name}", "name": name, "id": name}
        if (kind, name) in self.hub.repos:
            return self._json(told | {"error": "You already created this repo"}, 409)
        first = hashlib.sha1(f"{kind} {name}".encode()).hexdigest()
        self.hub.repos[kind, name] = Repo(asked.get("visibility") == "private", [(first, {".gitattributes": b""})])
        self._json(told)

    def preupload(self, kinds: str, name: str, revision: str) -> None:
        if (repo := self._repo(KINDS[kinds], name, write=True)) is None:
            return
        found, files = repo.at(revision)[1], []
        for asked in json.loads(self.body)["files"]:
            path, content = asked["path"], found.get(asked["path"])
            is_large = path.endswith(LARGE)
            oid = None if content is None else _sha256(content) if is_large else _git_oid(content)
            mode = "lfs" if is_large else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._json({"files": files})

    def lfs_batch(self, kinds: str | None, name: str) -> None:
        if self._repo("dataset" if kinds else "model", name, write=True) is None:
            return
        objects = []
        for asked in json.loads(self.body)["objects"]:
            told = asked | {"authenticated": True}
            if asked["oid"] not in self.hub.stored:  # of what is there, `actions` must be left out
                told["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}", "header": {}}}
            objects.append(told)
        self._json({"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> None:
        if _sha256(self.body) != oid:
            return self._json({"error": "the content does not have this digest"}, 422)
        self.hub.stored[oid] = self.body
        self.hub.received.append(oid)
        self._reply(200, b"", {})

    def commit(self, kinds: str, name: str, revision: str) -> None:
        if self.hub.before_commit is not None:
            act, self.hub.before_commit = self.hub.before_commit, None
            act()
        if (repo := self._repo(KINDS[kinds], name, write=True)) is None:
            return
        files, parent = dict(repo.at(revision)[1]), None
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                parent = value.get("parentCommit")
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.stored:
                    return self._json({"error": f"LFS object {value['oid']} was never uploaded"}, 400)
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        if parent not in (None, repo.head):
            return self._json({"error": "A commit has happened since. Please refresh and try again."}, 412)
        sha = hashlib.sha1(repo.head.encode() + self.body).hexdigest()
        repo.commits.append((sha, files))
        url = f"{self.hub.url}/{'' if kinds == 'models' else f'{kinds}/'}{name}/commit/{sha}"
        self._json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def tag(self, kinds: str, name: str, revision: str) -> None:
        if (repo := self._repo(KINDS[kinds], name, write=True)) is None:
            return
        tag = json.loads(self.body)["tag"]
        if tag in repo.tags:
            return self._json({"error": f"Tag reference exists already: {tag}"}, 409)
        repo.tags[tag] = repo.at(revision)[0]
        self._json({})

    def refs(self, kinds: str, name: str) -> None:
        if (repo := self._repo(KINDS[kinds], name)) is None:
            return
        tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": sha} for tag, sha in repo.tags.items()]
        branches = [{"name": "main", "ref": "refs/heads/main", "targetCommit": repo.head}]
        self._json({"branches": branches, "converts": [], "tags": tags})

    def tree(self, kinds: str, name: str, revision: str, folder: str | None = None) -> None:
        if (repo := self._repo(KINDS[kinds], name)) is None:
            return
        start, folders, listed = f"{folder}/" if folder else "", set(), []
        is_deep = "recursive=true" in self.path.lower()
        for path, content in sorted(repo.at(revision)[1].items()):
            if not path.startswith(start):
                continue
            parts = path[len(start) :].split("/")
            folders |= {start + "/".join(parts[:n]) for n in range(1, len(parts) if is_deep else min(len(parts), 2))}
            if len(parts) == 1 or is_deep:
                told = {"type": "file", "oid": _git_oid(content), "size": len(content), "path": path}
                if path.endswith(LARGE):
                    told["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 130}
                listed.append(told)
        if folder and not listed and not folders:
            return self._json({"error": f"{folder} does not exist"}, 404, "EntryNotFound")
        self._json(
            [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in sorted(folders)] + listed
        )

    def validate(self) -> None:
        """The Hub refuses a header that is no YAML, or whose configs name no files."""
        import yaml

        try:
            header = yaml.safe_load(json.loads(self.body)["content"].split("---")[1])
            assert isinstance(header, dict) and all("data_files" in config for config in header.get("configs", []))
            assert all(
                {"task", "dataset", "metrics"} <= set(result)
                for m in header.get("model-index", [])
                for result in m["results"]
            )
            assert header.get("license", "mit") in ("mit", "apache-2.0", "other", "cc-by-4.0")
        except (yaml.YAMLError, AssertionError) as error:
            return self._json({"errors": [{"message": f"wrong header {error}"}], "warnings": []}, 400)
        self._json({"errors": [], "warnings": []})

    def resolve(self, kinds: str | None, name: str, revision: str, path: str) -> None:
        if (repo := self._repo("dataset" if kinds else "model", name)) is None:
            return
        if (found := repo.at(revision)) is None:
            return self._json({"error": f"Invalid rev id: {revision}"}, 404, "RevisionNotFound")
        sha, files = found
        if path not in files:
            return self._json({"error": "Entry not found"}, 404, "EntryNotFound")
        content = files[path]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{_sha256(content)}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return self._reply(200, content, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._reply(206, content[first : last + 1], headers)


ID, API = r"(?P<name>[\w.-]+/[\w.-]+)", r"/api/(?P<kinds>datasets|models|spaces)"
ROUTES = (
    ("POST", r"/api/repos/create", _Handler.create),
    ("POST", r"/api/validate-yaml", _Handler.validate),
    ("GET", rf"{API}/{ID}", _Handler.info),
    ("GET", rf"{API}/{ID}/revision/(?P<revision>[^/]+)", _Handler.info),
    ("POST", rf"{API}/{ID}/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    ("POST", rf"/(?P<kinds>datasets/)?{ID}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>\w+)", _Handler.store),
    ("POST", rf"{API}/{ID}/commit/(?P<revision>[^/]+)", _Handler.commit),
    ("POST", rf"{API}/{ID}/tag/(?P<revision>[^/]+)", _Handler.tag),
    ("GET", rf"{API}/{ID}/refs", _Handler.refs),
    ("GET", rf"{API}/{ID}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", _Handler.tree),
    ("HEAD GET", rf"/(?P<kinds>datasets/)?{ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Client:
    """A Python process of its own that runs code against the Hub, for HF_ENDPOINT, HF_HOME and Xet are settled at import.

    Names that the code sets stay for the next call. `result` is what comes back, as JSON.
    """

    def __init__(self, hub: Hub, home: Path, token: str | None) -> None:
        kept = {
            name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        }
        own = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        own |= {"OMP_NUM_THREADS": "1"} | ({} if token is None else {"HF_TOKEN": token})
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=kept | own,
            text=True,
        )

    def run(self, code: str) -> Any:
        """Execute code; give back `result`, or raise what it raised as a RuntimeError with its type and text."""
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the client has died"
        kind, value = json.loads(line)
        if kind == "error":
            raise RuntimeError(value)
        return value

    def main(self, *words: object) -> tuple[int, str, str]:
        """Type a command line; give back its exit code, what it printed, and the last line of its complaints."""
        return tuple(self.run(f"result = typed({[str(word) for word in words]!r})"))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(600)


_WORKER = """
import contextlib, io, json, os, sys, traceback
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever a library prints does not mix with the answers

def typed(words):
    from repair_hf.cli import main
    printed, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        code = main(words)
    return code, printed.getvalue(), (complained.getvalue().strip().splitlines() or [""])[-1]

names = {"typed": typed, "os": os}
for line in sys.stdin:
    names["result"] = None
    try:
        exec(json.loads(line), names)
        answer = ["result", names["result"]]
    except Exception as error:
        traceback.print_exc()
        answer = ["error", f"{type(error).__name__}: {error}"]
    print(json.dumps(answer), file=out, flush=True)
"""
