"""A web server of our own on loopback that serves files, and misbehaves when told to."""

import hashlib
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


@dataclass(frozen=True)
class Trouble:
    status: int = 0  # answered instead of the file
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""  # of that answer
    cut_after: int | None = None  # bytes of the body, then the connection is dropped
    stall_after: int | None = None  # bytes of the body, then nothing more comes
    ignore_range: bool = False
    replace_with: bytes | None = None  # the file becomes another one before the answer
    ask_less: int | None = None  # a range ends so many bytes after its start
    plain_copy: bool = False  # neither ETag nor Last-Modified


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("Range")


class FileServer(ThreadingHTTPServer):
    """Serves `files` by path, with ranges and validators; keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {}
        self.asked: list[Asked] = []
        self._troubles: dict[str, list[Trouble]] = defaultdict(list)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing where a client has hung up."""

    def will(self, path: str, *troubles: Trouble) -> None:
        """Queue troubles for the next GETs of `path`; after them all goes well again."""
        self._troubles[path].extend(troubles)

    def gets(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if (asked.method, asked.path) == ("GET", path)]

    def next_trouble(self, method: str, path: str) -> Trouble:
        queued = [] if method == "HEAD" else self._troubles[path]
        return queued.pop(0) if queued else Trouble()


class _Handler(BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests read standard error."""

    def _serve(self, method: str) -> None:
        path = unquote(self.path.split("?")[0])
        self.server.asked.append(Asked(method, path, dict(self.headers)))
        trouble = self.server.next_trouble(method, path)
        if trouble.replace_with is not None:
            self.server.files[path] = trouble.replace_with
        content = self.server.files.get(path)
        if trouble.status or content is None:
            self._send(trouble.status or 404, trouble.body, trouble.headers, method, trouble)
            return
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        headers = {"Accept-Ranges": "bytes", "Last-Modified": formatdate(0, usegmt=True)}
        headers = {} if trouble.plain_copy else {**headers, "ETag": etag}
        start, end = self._range(content, etag, trouble)
        if start is None:
            self._send(200, content, headers, method, trouble)
        elif start >= len(content):
            self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"}, method, trouble)
        else:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            self._send(206, content[start:end], headers, method, trouble)

    def _range(self, content: bytes, etag: str, trouble: Trouble) -> tuple[int | None, int]:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        changed = self.headers.get("If-Range", etag) not in (etag, formatdate(0, usegmt=True))
        if asked is None or trouble.ignore_range or changed:
            return None, len(content)
        start = int(asked[1])
        return start, min(len(content), start + (trouble.ask_less or len(content)))

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], method: str, trouble: Trouble
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if method == "HEAD":
            return
        if trouble.stall_after is not None:
            self.wfile.write(body[: trouble.stall_after])
            self.wfile.flush()
            self.rfile.read(1)  # until the client is gone
            self.close_connection = True
            return
        self.wfile.write(body[: trouble.cut_after])
        if trouble.cut_after is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True


@contextmanager
def running_file_server() -> Iterator[FileServer]:
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
