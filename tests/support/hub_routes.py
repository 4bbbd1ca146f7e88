"""The routes of the Hub on loopback: create, preupload, LFS, commit and tag; info, refs, tree and resolve."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field

LARGE = (".parquet", ".safetensors", ".png", ".arrow", ".bin")  # what goes by LFS, as the Hub's own .gitattributes say
KINDS = {"datasets": "dataset", "models": "model", "spaces": "space"}


@dataclass
class Repo:
    """A repository: its revisions from the first to the newest, each a whole mapping of path to content."""

    private: bool
    commits: list[tuple[str, dict[str, bytes]]]
    tags: dict[str, str] = field(default_factory=dict)
    gated: bool = False  # only its owner has accepted the terms

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        sha = self.head if revision == "main" else self.tags.get(revision, revision)
        return next((commit for commit in reversed(self.commits) if commit[0] == sha), None)


class Refused(Exception):
    """Ends a request with an error: its status, message and code."""


class Routes:
    """A method per path; `send_json` and `send_whole` of the handler send the answer."""

    def _repo(self, kind: str, name: str, *, write: bool = False) -> Repo:
        """Return the repository, if this user may see it (or write to it)."""
        repo = self.hub.repos.get((kind, name))
        if write and self.user is None:
            raise Refused(401, "Invalid username or password.")
        if repo is None or (repo.private and self.user is None):
            raise Refused(404 if self.user else 401, "Repository not found", "RepoNotFound")
        if repo.gated and name.split("/")[0] != self.user:
            raise Refused(403 if self.user else 401, f"Access to {kind} {name} is restricted.", "GatedRepo")
        if (write or repo.private) and name.split("/")[0] != self.user:
            raise Refused(403, "You don't have the rights to do this")
        return repo

    def _commit(self, kind: str, name: str, revision: str) -> tuple[Repo, str, dict[str, bytes]]:
        """Return a repository with the commit and the files of one revision."""
        repo = self._repo(kind, name)
        if (found := repo.at(revision)) is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return repo, *found

    def info(self, kinds: str, name: str, revision: str | None = None) -> None:
        repo, sha, files = self._commit(KINDS[kinds], name, revision or "main")
        siblings = [{"rfilename": path} for path in sorted(files)]
        reply = {"id": name, "sha": sha, "private": repo.private, "siblings": siblings, "tags": [], "downloads": 0}
        self.send_json(
            reply | {"likes": 0, "gated": False, "disabled": False, "lastModified": "2026-01-01T00:00:00.000Z"}
        )

    def create(self) -> None:
        asked = json.loads(self.body)
        if self.user is None:
            raise Refused(401, "Invalid username or password.")
        owner = asked.get("organization") or self.user
        if owner != self.user:
            raise Refused(403, f"You don't have the rights to create a repo under {owner}")
        kind, name = asked.get("type", "model"), f"{owner}/{asked['name']}"
        prefix = "" if kind == "model" else f"{kind}s/"
        reply = {"url": f"{self.hub.url}/{prefix}{name}", "name": name, "id": name}
        if (kind, name) in self.hub.repos:
            return self.send_json(reply | {"error": "You already created this repo"}, 409)
        first = hashlib.sha1(f"{kind} {name}".encode()).hexdigest()
        self.hub.repos[kind, name] = Repo(asked.get("visibility") == "private", [(first, {".gitattributes": b""})])
        self.send_json(reply)

    def preupload(self, kinds: str, name: str, revision: str) -> None:
        repo = self._repo(KINDS[kinds], name, write=True)
        found, files = repo.at(revision)[1], []
        for asked in json.loads(self.body)["files"]:
            path, content = asked["path"], found.get(asked["path"])
            is_large = path.endswith(LARGE)
            oid = None if content is None else _sha256(content) if is_large else _git_oid(content)
            mode = "lfs" if is_large else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.send_json({"files": files})

    def lfs_batch(self, kinds: str | None, name: str) -> None:
        self._repo("dataset" if kinds else "model", name, write=True)
        objects = []
        for asked in json.loads(self.body)["objects"]:
            reply = asked | {"authenticated": True}
            if asked["oid"] not in self.hub.stored:  # of what is there, `actions` must be left out
                reply["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}", "header": {}}}
            objects.append(reply)
        self.send_json({"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> None:
        if _sha256(self.body) != oid:
            raise Refused(422, "the content does not have this digest")
        self.hub.stored[oid] = self.body
        self.hub.received.append(oid)
        self.send_whole(200, b"", {})

    def commit(self, kinds: str, name: str, revision: str) -> None:
        repo = self._repo(KINDS[kinds], name, write=True)
        files, parent = dict(repo.at(revision)[1]), None
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                parent = value.get("parentCommit")
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.stored:
                    raise Refused(400, f"LFS object {value['oid']} was never uploaded")
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        if parent not in (None, repo.head):
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        sha = hashlib.sha1(repo.head.encode() + self.body).hexdigest()
        repo.commits.append((sha, files))
        url = f"{self.hub.url}/{'' if kinds == 'models' else f'{kinds}/'}{name}/commit/{sha}"
        self.send_json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def tag(self, kinds: str, name: str, revision: str) -> None:
        repo = self._repo(KINDS[kinds], name, write=True)
        tag = json.loads(self.body)["tag"]
        if tag in repo.tags:
            raise Refused(409, f"Tag reference exists already: {tag}")
        repo.tags[tag] = repo.at(revision)[0]
        self.send_json({})

    def refs(self, kinds: str, name: str) -> None:
        repo = self._repo(KINDS[kinds], name)
        tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": sha} for tag, sha in repo.tags.items()]
        branches = [{"name": "main", "ref": "refs/heads/main", "targetCommit": repo.head}]
        self.send_json({"branches": branches, "converts": [], "tags": tags})

    def tree(self, kinds: str, name: str, revision: str, folder: str | None = None) -> None:
        repo = self._repo(KINDS[kinds], name)
        start, folders, listed = f"{folder}/" if folder else "", set(), []
        is_deep = "recursive=true" in self.path.lower()
        for path, content in sorted(repo.at(revision)[1].items()):
            if not path.startswith(start):
                continue
            parts = path[len(start) :].split("/")
            folders |= {start + "/".join(parts[:n]) for n in range(1, len(parts) if is_deep else min(len(parts), 2))}
            if len(parts) == 1 or is_deep:
                reply = {"type": "file", "oid": _git_oid(content), "size": len(content), "path": path}
                if path.endswith(LARGE):
                    reply["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 130}
                listed.append(reply)
        if folder and not listed and not folders:
            raise Refused(404, f"{folder} does not exist", "EntryNotFound")
        self.send_json(
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
            return self.send_json({"errors": [{"message": f"wrong header {error}"}], "warnings": []}, 400)
        self.send_json({"errors": [], "warnings": []})

    def resolve(self, kinds: str | None, name: str, revision: str, path: str) -> None:
        _, sha, files = self._commit("dataset" if kinds else "model", name, revision)
        if path not in files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        content = files[path]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{_sha256(content)}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return self.send_whole(200, content, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self.send_whole(206, content[first : last + 1], headers)


ID, API = r"(?P<name>[\w.-]+/[\w.-]+)", r"/api/(?P<kinds>datasets|models|spaces)"
ROUTES = (
    ("POST", r"/api/repos/create", Routes.create),
    ("POST", r"/api/validate-yaml", Routes.validate),
    ("GET", rf"{API}/{ID}", Routes.info),
    ("GET", rf"{API}/{ID}/revision/(?P<revision>[^/]+)", Routes.info),
    ("POST", rf"{API}/{ID}/preupload/(?P<revision>[^/]+)", Routes.preupload),
    ("POST", rf"/(?P<kinds>datasets/)?{ID}\.git/info/lfs/objects/batch", Routes.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>\w+)", Routes.store),
    ("POST", rf"{API}/{ID}/commit/(?P<revision>[^/]+)", Routes.commit),
    ("POST", rf"{API}/{ID}/tag/(?P<revision>[^/]+)", Routes.tag),
    ("GET", rf"{API}/{ID}/refs", Routes.refs),
    ("GET", rf"{API}/{ID}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", Routes.tree),
    ("HEAD GET", rf"/(?P<kinds>datasets/)?{ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Routes.resolve),
)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
