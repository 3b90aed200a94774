"""A hub of datasets on 127.0.0.1 that the real client can ask: its API, files by ranges, faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Repository:
    """The commits of one dataset, each a folder, and the branches and tags that name them."""

    commits: dict[str, Path] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False

    def add(self, folder: Path, *revisions: str) -> str:
        """Make the folder a commit; the last one added is `main`."""
        commit = hashlib.sha1(f"{folder}{len(self.commits)}".encode()).hexdigest()
        self.commits[commit] = folder
        self.revisions |= dict.fromkeys(("main", *revisions), commit)
        return commit


@dataclass
class Hub:
    """What the server has, what it was asked for, and what shall go wrong."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(method, path) of every request"""
    dropped: dict[str, int] = field(default_factory=dict)
    """file -> after how many bytes its connection is dropped, once"""
    ranges: list[str] = field(default_factory=list)
    """the Range headers that came"""
    status: int = 200
    """what every request is answered with, where it is not 200"""
    head_status: int = 200
    """likewise, of requests about single files"""

    def add(self, repo: str, folder: Path, *revisions: str) -> str:
        """Make the folder the newest commit of a repository."""
        return self.repositories.setdefault(repo, Repository()).add(folder, *revisions)

    def files(self) -> list[str]:
        """Return the files that were downloaded, in the order of their names."""
        paths = [path for method, path in self.requests if method == "GET" and "/resolve/" in path]
        return sorted(path.partition("/resolve/")[2].partition("/")[2] for path in paths)


class RefusalError(Exception):
    """An answer that is no."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """Serve a hub while the block runs."""
    hub = Hub()

    class Handler(HubHandler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class HubHandler(BaseHTTPRequestHandler):
    """Answers as huggingface.co does, as far as a client asks that reads datasets."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.requests.append((self.command, path))
        try:
            status = self.hub.head_status if self.command == "HEAD" else self.hub.status
            if status != 200:
                raise RefusalError(status)
            if path.startswith("api/datasets/"):
                self._answer_question(path.removeprefix("api/datasets/").split("/"), body)
            else:
                self._send_file(path.removeprefix("datasets/"))
        except RefusalError as no:
            self._send(no.status, b"{}", {"X-Error-Code": no.code, "X-Error-Message": no.message})

    def _answer_question(self, parts: list[str], body: bytes) -> None:
        owner, name, what, revision, *rest = parts
        commit, folder = self._find(f"{owner}/{name}", revision)
        if what == "revision":
            self._send_json({"id": f"{owner}/{name}", "sha": commit})
        elif what == "tree":
            inside = folder / "/".join(rest)
            if not inside.is_dir():
                raise RefusalError(404, "EntryNotFound")
            entries = [_describe(path, folder) for path in sorted(inside.rglob("*"))]
            self._send_json(entries)
        elif what == "paths-info":
            wanted = [folder / path for path in parse_qs(body.decode())["paths"]]
            self._send_json([_describe(path, folder) for path in wanted if path.exists()])

    def _find(self, repo: str, revision: str) -> tuple[str, Path]:
        if repo not in self.hub.repositories:
            raise RefusalError(401, "RepoNotFound", "Invalid username or password.")
        repository = self.hub.repositories[repo]
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.commits:
            raise RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repository.commits[commit]

    def _send_file(self, path: str) -> None:
        repo, _, rest = path.partition("/resolve/")
        revision, _, name = rest.partition("/")
        commit, folder = self._find(repo, revision)
        if self.hub.repositories[repo].is_gated and "Authorization" not in self.headers:
            raise RefusalError(401, "GatedRepo", "Access to this dataset is restricted.")
        if not (folder / name).is_file():
            raise RefusalError(404, "EntryNotFound", "Entry not found")
        data = (folder / name).read_bytes()
        about = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        start = 0
        if asked := self.headers.get("Range"):
            self.hub.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            about["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        limit = self.hub.dropped.pop(name, None) if self.command == "GET" else None
        self._send(206 if asked else 200, data[start:], about, limit)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], limit: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:limit])
            self.close_connection |= limit is not None


def _describe(path: Path, folder: Path) -> dict[str, object]:
    name = path.relative_to(folder).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": "0" * 40}
    return {"type": "file", "path": name, "oid": "0" * 40, "size": path.stat().st_size}
