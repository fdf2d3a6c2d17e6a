"""A local web server for files, which can simulate faults."""

import hashlib
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote


@dataclass(frozen=True)
class Trouble:
    status: int = 0  # answered instead of the file
    headers: dict[str, str] = field(default_factory=dict)  # of that answer
    cut_after: int | None = None  # bytes of the body, then the connection is dropped
    stalls: bool = False  # instead of being dropped: nothing more comes
    ignore_range: bool = False
    replace_with: bytes | None = None  # the file becomes another one before the answer
    # The largest number of bytes in the answer to a range request.
    ask_less: int | None = None
    plain_copy: bool = False  # neither ETag nor Last-Modified


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("Range")


class FileServer(ThreadingHTTPServer):
    """A server of `files` by path, with ranges and validators. Requests go to `asked`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {}
        self.asked: list[Asked] = []
        self.troubles: dict[str, list[Trouble]] = defaultdict(list)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing where a client has hung up."""

    def will(self, path: str, *troubles: Trouble) -> None:
        """Queue troubles for the next GETs of `path`; after them all goes well again."""
        self.troubles[path].extend(troubles)

    def gets(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if (asked.method, asked.path) == ("GET", path)]


class QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests read standard error."""

    def drop(self) -> None:
        with suppress(OSError):  # the client may be gone
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def send(
        self, status: int, headers: dict[str, str], body: bytes, cut_after: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut_after])


class _Handler(QuietHandler):
    server: FileServer

    def do_GET(self) -> None:
        self._serve(self.command)

    def do_HEAD(self) -> None:
        self._serve(self.command)

    def _serve(self, method: str) -> None:
        path = unquote(self.path.split("?")[0])
        self.server.asked.append(Asked(method, path, dict(self.headers)))
        queued = [] if method == "HEAD" else self.server.troubles[path]
        trouble = queued.pop(0) if queued else Trouble()
        if trouble.replace_with is not None:
            self.server.files[path] = trouble.replace_with
        content = self.server.files.get(path)
        if trouble.status or content is None:
            self._send(trouble.status or 404, b"", trouble.headers, trouble)
            return
        etag, date = f'"{hashlib.md5(content).hexdigest()}"', formatdate(0, usegmt=True)
        headers = {} if trouble.plain_copy else {"ETag": etag, "Last-Modified": date}
        headers["Accept-Ranges"] = "bytes"
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        changed = self.headers.get("If-Range", etag) not in (etag, date)
        if asked is None or trouble.ignore_range or changed:
            self._send(200, content, headers, trouble)
            return
        start = int(asked[1])
        part = content[start : start + (trouble.ask_less or len(content))]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        self._send(206 if part else 416, part, headers, trouble)

    def _send(self, status: int, body: bytes, headers: dict[str, str], trouble: Trouble) -> None:
        self.send(status, headers, body, cut_after=trouble.cut_after)
        if self.command == "HEAD" or trouble.cut_after is None:
            return
        if trouble.stalls:
            self.rfile.read(1)  # until the client is gone
        self.drop()


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """Serve in a thread while the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def running_file_server() -> Iterator[FileServer]:
    server = FileServer()
    with serving(server):
        yield server
