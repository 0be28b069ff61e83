"""A stand-in for the model hub: it serves folders as repositories and lists all requests."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

API = re.compile(
    r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(.*))?"
)
Rows = list[dict[str, Any]]
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """A folder as a repository of one commit.

    Args:
        folder: Holds the files.
        gated: Whether reading needs a token.
    """

    folder: Path
    gated: bool = False

    @cached_property
    def files(self) -> dict[str, str]:
        """Path -> sha256."""
        files = sorted(file for file in self.folder.rglob("*") if file.is_file())
        return {
            str(file.relative_to(self.folder)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
        }

    @cached_property
    def commit(self) -> str:
        """40 hex digits."""
        return hashlib.sha1(json.dumps(self.files).encode()).hexdigest()

    def entry(self, path: str) -> dict[str, Any]:
        """A file or folder as the hub's tree describes it."""
        if path not in self.files:
            oid = hashlib.sha1(path.encode()).hexdigest()
            return {"type": "directory", "oid": oid, "size": 0, "path": path}
        size = (self.folder / path).stat().st_size
        return {"type": "file", "oid": self.files[path][:40], "size": size, "path": path}


def data_set(folder: Path, configs: Mapping[str, Mapping[str, Rows]]) -> Repository:
    """A data set of Parquet files: config -> split -> rows. Its card lists the files."""
    entries = []
    for config, splits in configs.items():
        (folder / config).mkdir(parents=True)
        files = {split: f"{config}/{split}-00000-of-00001.parquet" for split in splits}
        for split, rows in splits.items():
            pq.write_table(pa.Table.from_pylist(rows), folder / files[split])
        paths = [{"split": split, "path": path} for split, path in files.items()]
        entries.append({"config_name": config, "data_files": paths})
    card = yaml.safe_dump({"configs": entries}, sort_keys=False)
    (folder / "README.md").write_text(f"---\n{card}---\n", encoding="utf-8")
    return Repository(folder)


@dataclass
class Hub:
    """What a running hub serves, and the requests that it got.

    Args:
        models: owner/name -> repository.
        datasets: owner/name -> repository.
        requests: (method, path) of each, in order.
        cut: Path of a file -> bytes after which its next transfer breaks off; later ones do not.
    """

    models: dict[str, Repository] = field(default_factory=dict)
    datasets: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)
    address: str = ""

    def downloads(self) -> list[str]:
        """Files that were read, as repository/path, in order."""
        matches = (FILE.fullmatch(path) for method, path in self.requests if method == "GET")
        return [f"{match[2]}/{match[4]}" for match in matches if match]

    @contextmanager
    def serve(self) -> Iterator[Hub]:
        """Serve on a free port of this machine during the block."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": self}))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Print nothing: the hub lists the requests."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(body.decode())

    def _answer(self, body: str = "") -> None:
        address = urlsplit(self.path)
        path = unquote(address.path)
        self.hub.requests.append((self.command, path))
        if match := API.fullmatch(path):
            kind, name, what, revision, rest = match.groups()
            repository = self._repository(kind, name, revision)
            if repository is not None:
                recursive = "true" in parse_qs(address.query).get("recursive", ["false"])[0].lower()
                self._describe(repository, name, what, (rest or "").strip("/"), body, recursive)
        elif match := FILE.fullmatch(path):
            repository = self._repository("datasets" if match[1] else "models", match[2], match[3])
            if repository is not None:
                self._send(repository, match[4])
        else:
            self._refuse(404, "EntryNotFound")

    def _repository(self, kind: str, name: str, revision: str | None) -> Repository | None:
        repositories = self.hub.models if kind == "models" else self.hub.datasets
        repository = repositories.get(name)
        if repository is None:
            self._refuse(401, "RepoNotFound")
        elif repository.gated and "Authorization" not in self.headers:
            self._refuse(401, "GatedRepo")
        elif revision not in (None, "main", repository.commit):
            self._refuse(404, "RevisionNotFound")
        else:
            return repository
        return None

    def _describe(
        self, repository: Repository, name: str, what: str, rest: str, body: str, recursive: bool
    ) -> None:
        if what == "tree":
            below = [p for p in repository.files if not rest or p.startswith(f"{rest}/")]
            if rest and not below:
                return self._refuse(404, "EntryNotFound")
            depth = len(rest) + 1 if rest else 0
            folders = {p[: p.index("/", depth)] for p in below if "/" in p[depth:]}
            if recursive:
                folders = {str(f) for p in below for f in Path(p).parents if str(f) != "."}
            files = [p for p in below if recursive or "/" not in p[depth:]]
            return self._json([repository.entry(p) for p in [*sorted(folders), *files]])
        if what == "paths-info":
            is_json = body[:1] == "{"
            paths = json.loads(body)["paths"] if is_json else parse_qs(body).get("paths", [])
            folders = {str(f) for p in repository.files for f in Path(p).parents}
            return self._json(
                [repository.entry(p) for p in paths if p in {*repository.files, *folders}]
            )
        siblings = [{"rfilename": path} for path in repository.files]
        facts = {"id": name, "sha": repository.commit, "siblings": siblings, "private": False}
        return self._json(facts | {"gated": "manual" if repository.gated else False, "tags": []})

    def _send(self, repository: Repository, path: str) -> None:
        if path not in repository.files:
            return self._refuse(404, "EntryNotFound")
        content = (repository.folder / path).read_bytes()
        size, first = len(content), 0
        part = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if part:
            first = int(part[1])
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - first))
        self.send_header("ETag", f'"{repository.files[path]}"')
        self.send_header("X-Repo-Commit", repository.commit)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "GET":
            stop = self.hub.cut.pop(path, size) if not part else size
            self.wfile.write(content[first:stop])
            if stop < size:
                self.close_connection = True
                self.wfile.flush()
                self.connection.close()
        return None

    def _json(self, value: Any) -> None:
        self._reply(200, json.dumps(value).encode(), {})

    def _refuse(self, status: int, code: str) -> None:
        self._reply(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
