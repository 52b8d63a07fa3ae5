"""A local server for the part of Hugging Face's API that `huggingface_hub` uses for models.

A repository is a list of commits, each a mapping of names to files. Weights are large files (LFS).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from serving import serving

TOKEN = "hf_" + "a" * 34


@dataclass
class Store:
    """Repositories of the server at `url`."""

    url: str
    repositories: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    """Commits by the repository's name, the oldest first."""
    large: dict[str, bytes] = field(default_factory=dict)
    """Uploaded objects by their SHA-256."""
    private: set[str] = field(default_factory=set)

    def files(self, name: str) -> dict[str, bytes]:
        """Return the files of the newest commit."""
        return self.repositories[name][-1]


def commit_id(number: int) -> str:
    return f"{number:040x}"


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def git_digest(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


@contextmanager
def running_hugging_face() -> Iterator[Store]:
    """Serve until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store = server.store = Store(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
    with serving(server):
        yield store


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    @property
    def store(self) -> Store:
        return self.server.store  # type: ignore[attr-defined, no-any-return]

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def allowed(self) -> bool:
        """Return whether the request has the token; refuse it otherwise."""
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self.answer(401, {"error": "Invalid credentials"}, X_Error_Message="Invalid credentials")
        return False

    def found(self, name: str, revision: str) -> dict[str, bytes] | None:
        """Return the files of a commit; answer 404 when it does not exist."""
        commits = self.store.repositories.get(name)
        if commits is None:
            self.answer(404, {"error": "no"}, X_Error_Code="RepoNotFound", X_Error_Message="no such model")
            return None
        number = len(commits) - 1 if revision == "main" else int(revision, 16)
        return commits[number]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts == ["api", "whoami-v2"]:
            if self.allowed():
                self.answer(200, {"type": "user", "name": "ada", "auth": {"type": "access_token"}})
        elif parts[:2] == ["api", "models"]:
            self.tell_model("/".join(parts[2:4]), [*parts[4:], "revision", "main"])
        elif parts[2:3] != ["resolve"]:
            self.answer(404)
        else:
            self.send_file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def tell_model(self, name: str, rest: list[str]) -> None:
        revision = rest[1]
        if (files := self.found(name, revision)) is None:
            return
        told = [
            {
                "type": "file",
                "path": one,
                "rfilename": one,
                "size": len(body),
                "oid": git_digest(body),
                "blobId": git_digest(body),
            }
            | (
                {"lfs": {"sha256": sha256(body), "oid": sha256(body), "size": len(body), "pointerSize": 130}}
                if is_large(one)
                else {}
            )
            for one, body in files.items()
        ]
        if rest[0] == "tree":
            self.answer(200, told)
            return
        number = self.store.repositories[name].index(files)
        self.answer(200, {"id": name, "modelId": name, "sha": commit_id(number), "siblings": told})

    def send_file(self, name: str, revision: str, path: str) -> None:
        if (files := self.found(name, revision)) is None:
            return
        if path not in files:
            self.answer(404, X_Error_Code="EntryNotFound")
            return
        body = files[path]
        etag = sha256(body) if is_large(path) else git_digest(body)
        commit = commit_id(self.store.repositories[name].index(files))
        self.answer(200, body, ETag=f'"{etag}"', X_Repo_Commit=commit, X_Linked_Size=str(len(body)))

    def do_PUT(self) -> None:
        body = self.body()
        self.store.large[self.path.rpartition("/")[2]] = body
        self.answer(200)

    def do_POST(self) -> None:
        path, body = urlsplit(self.path).path, self.body()
        if path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif self.allowed():
            self.change(path.strip("/").split("/"), body)

    def change(self, parts: list[str], body: bytes) -> None:
        store = self.store
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = "/".join([asked.get("organization") or "ada", asked["name"]])
            if not name.startswith("ada/"):
                self.answer(403, {"error": "no"}, X_Error_Message="You don't have the rights")
                return
            known = name in store.repositories
            store.repositories.setdefault(name, [{".gitattributes": b"x"}])
            if asked.get("private") or asked.get("visibility") == "private":
                store.private.add(name)
            self.answer(409 if known else 200, {"url": f"{store.url}/{name}", "name": name, "id": name})
        elif parts[4] == "preupload":
            told = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if is_large(one["path"]) else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            self.answer(200, {"files": told})
        elif parts[-1] == "batch":
            objects = [
                one
                | (
                    {}
                    if one["oid"] in store.large
                    else {"actions": {"upload": {"href": f"{store.url}/large/{one['oid']}"}}}
                )
                for one in json.loads(body)["objects"]
            ]
            self.answer(200, {"transfer": "basic", "objects": objects})
        else:
            self.commit("/".join(parts[2:4]), [json.loads(line) for line in body.splitlines()])

    def commit(self, name: str, changes: list[dict[str, Any]]) -> None:
        commits = self.store.repositories[name]
        files = dict(commits[-1])
        for change in changes:
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                files[value["path"]] = self.store.large[value["oid"]]
            elif change["key"] == "deletedFile":
                del files[value["path"]]
        commits.append(files)
        made = commit_id(len(commits) - 1)
        self.answer(200, {"commitUrl": f"{self.store.url}/{name}/commit/{made}", "commitOid": made})


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
