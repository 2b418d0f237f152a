"""Real nodes on one Postgres, and a proxy in front of a node that loses answers. `scripts/test-clients.sh` names the binary in
CLIENT_BINARY and the Postgres in CLIENT_POSTGRES, and in CLIENT_KIND whose clients run the scenarios: the blocking ones if absent, those for
asyncio (aio), or those of another language (go, java, rust, typescript), whose agent is the command in CLIENT_AGENT."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from latchgate import Client

from . import remote
from .driven import DrivenClient

PATIENCE = 60.0
KIND = os.environ.get("CLIENT_KIND", "blocking")
IS_AIO = KIND == "aio"
IS_PYTHON = KIND in ("aio", "blocking")


class Node:
    """A node in a process of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="latchgate-")
        self._log = open(os.path.join(self._directory.name, "log"), "w+b")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LATCHGATE_")}
        arguments = arguments or ("--locks", os.environ["CLIENT_POSTGRES"])
        # The node ends with this process, however that ends.
        command = ["setpriv", "--pdeathsig", "KILL", "--", os.environ["CLIENT_BINARY"], "serve", "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            [*command, *arguments],
            env={**kept, **environment},
            cwd=self._directory.name,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdout is not None
        words = self._process.stdout.readline().decode().split()
        if not words:
            self._log.seek(0)
            raise RuntimeError(self._log.read().decode())
        self.url = words[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.thaw()
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        self._directory.cleanup()

    def get(self, path: str) -> dict[str, Any]:
        return request(self.url, "GET", path)

    def lock(self, key: str) -> dict[str, Any]:
        """What the node says of the lock."""
        return self.get(f"/v1/locks/{quote(key, safe='')}")

    def force(self, key: str) -> None:
        request(self.url, "DELETE", f"/v1/locks/{quote(key, safe='')}")

    def revoke(self, key: str, **body: Any) -> None:
        request(self.url, "POST", f"/v1/locks/{quote(key, safe='')}/revoke", body)


def request(url: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    connection.request(method, path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert response.status == 200, answer
    assert isinstance(answer, dict)
    return answer


# In place of the answer of a node: one with a code of the gateway's own, a page, and one that says that the request took too long.
GATEWAYS = {"hidden": (504, b'{"code": "upstream-timeout", "detail": "This gateway has waited too long."}'), "a page": (500, b"<html>"), "late": (408, b"")}


class Proxy:
    """Passes requests on to a node. It loses answers, or refuses requests, as often as it is told to."""

    # Ends waits at once, as a node does that is about to stop.
    ends_waits = False
    # Instead of a lost answer there is this one of a gateway.
    hides: tuple[int, bytes] | None = None
    # A key in paths becomes another one.
    merges = ("", "")
    # Answers some requests itself, by path and body: a status, and a body or a page, which is no JSON.
    answers: Callable[[str, dict[str, Any]], tuple[int, dict[str, Any] | str] | None] = staticmethod(lambda path, body: None)
    # The type of the page that it answers to a GET.
    page_type = "text/html"
    # Such answers end in the middle of their body: "cut", or "hangs".
    breaks = ""
    # The length of the longest request.
    longest = 0
    # So many of the next answers come only after a lease of 3 s has ended.
    late = 0
    # Requests with this text in their body get no answer until the proxy stops.
    hangs = ""

    def __init__(self, node: Node) -> None:
        self.seen: list[tuple[str, float, dict[str, Any]]] = []
        self._stopped = threading.Event()
        self._lose: dict[str, int] = {}
        # Of requests of this path, after those whose answers were lost: the status, the code (or the body of a gateway), and after how many ms to come
        # again, if any.
        self.then_refuse: dict[str, tuple[Any, ...]] = {}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An answer goes out in one piece, because a client whose time is nearly over does not wait for the rest.
            wbufsize = -1

            def do_POST(self) -> None:
                proxy._pass_on(self, node)

            def do_GET(self) -> None:
                proxy.seen.append((self.path, time.monotonic(), {}))
                self.close_connection = True
                proxy.answer(self, 200, b"<html>where a redirection leads")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def lose(self, verb: str, times: int = 1) -> None:
        """Loses the next answers to requests of paths that end so."""
        self._lose[verb] = times

    def requests(self, verb: str) -> list[dict[str, Any]]:
        return [body for path, _, body in self.seen if path.endswith(verb)]

    def stop(self) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def _pass_on(self, handler: BaseHTTPRequestHandler, node: Node) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        verb = handler.path.rsplit("/", 1)[-1]
        self.seen.append((handler.path, time.monotonic(), json.loads(body)))
        self.longest = max(self.longest, len(body))
        if own := self.answers(handler.path, json.loads(body)):
            status, answered = own
            return self.answer(handler, status, (answered if isinstance(answered, str) else json.dumps(answered)).encode(), self.breaks)
        if self._lose.get(verb, 0) == 0 and verb in self.then_refuse:
            status, code, *after = self.then_refuse[verb]
            return self.answer(handler, status, json.dumps(code if isinstance(code, dict) else problem(code, sum(after))).encode())
        if self.hangs and self.hangs.encode() in body:
            self._stopped.wait()
        if self.ends_waits and b'"wait_ms"' in body:
            body = json.dumps({**json.loads(body), "wait_ms": 1}).encode()
        parts = urlsplit(node.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
        asked, other = self.merges
        path = "/".join(quote(other, safe="") if unquote(part) == asked else part for part in handler.path.split("/"))
        try:
            connection.request("POST", path, body)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            handler.close_connection = True
            return
        finally:
            connection.close()
        if self._lose.get(verb, 0) > 0:
            self._lose[verb] -= 1
            if self.hides:
                return self.answer(handler, *self.hides)
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        if self.late > 0:
            self.late -= 1
            time.sleep(3.5)
        self.answer(handler, response.status, answer)

    def answer(self, handler: BaseHTTPRequestHandler, status: int, body: bytes, breaks: str = "") -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        if handler.command == "GET":
            handler.send_header("Content-Type", self.page_type)
        if status == 302:
            handler.send_header("Location", "/login%")  # of which a parser of URLs may say that it is none
        try:
            handler.end_headers()
            handler.wfile.write(body[: len(body) // 2] if breaks else body)
            handler.wfile.flush()
        except OSError:
            pass  # the client has given up
        if breaks == "hangs":
            self._stopped.wait()
        handler.close_connection = handler.close_connection or bool(breaks)


def problem(code: str, retry_after_ms: int = 0) -> dict[str, Any]:
    return {"type": f"/errors/{code}", "code": code, "detail": "This proxy refuses.", "retry_after_ms": retry_after_ms}


class Background:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._ended: Future[Any] = Future()

        def run() -> None:
            try:
                self._ended.set_result(call())
            except BaseException as error:
                self._ended.set_exception(error)

        threading.Thread(target=run, daemon=True).start()

    def is_running(self) -> bool:
        return not self._ended.done()

    def result(self) -> Any:
        return self._ended.result(PATIENCE)


def eventually(condition: Callable[[], object], what: str, within: float = PATIENCE) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.02)


def only(*kinds: str) -> Callable[[Any], Any]:
    return unittest.skipIf(KIND not in kinds, f"only {', '.join(kinds)}")


def not_for(*kinds: str) -> Callable[[Any], Any]:
    return unittest.skipIf(KIND in kinds, f"not for {', '.join(kinds)}")


class Scenario(unittest.TestCase):
    """Two nodes, started for the class. A test that harms a node starts its own pair with `pair`."""

    a: Node
    b: Node

    @classmethod
    def setUpClass(cls) -> None:
        cls.a, cls.b = Node(), Node()
        cls.addClassCleanup(cls.b.stop)
        cls.addClassCleanup(cls.a.stop)

    def setUp(self) -> None:
        self.key = f"test/{uuid.uuid4()}"

    def pair(self) -> tuple[Node, Node]:
        a, b = Node(), Node()
        self.addCleanup(b.stop)
        self.addCleanup(a.stop)
        return a, b

    def proxy(self, node: Node) -> Proxy:
        proxy = Proxy(node)
        self.addCleanup(proxy.stop)
        return proxy

    def client(self, *nodes: Node | Proxy, **options: Any) -> Any:
        """A client of these nodes; without any, of both."""
        # The machine may be busy.
        return self.hasty_client(*nodes, **{"retry_for": 30.0, **options})

    def hasty_client(self, *nodes: Node | Proxy, **options: Any) -> Any:
        """With the default bound of its calls."""
        return self.connect([node.url for node in nodes or (self.a, self.b)], **options)

    @staticmethod
    def connect(urls: Any = None, **options: Any) -> Any:
        kind: Any = {"aio": DrivenClient, "blocking": Client}.get(KIND, remote.Client)
        return kind(urls, **options)

    def free(self, key: str) -> None:
        """Checks that nothing is left of the lock."""

        def nothing() -> bool:
            lock = self.b.lock(key)
            return not lock["held"] and lock["waiters"] == 0

        eventually(nothing, f"{key} is free")

    @staticmethod
    def until_renewed(*leases: Any) -> None:
        """Waits for a renewal of each lease, or of an attempt, that is answered from now on: then more is left of it."""
        left = [lease.remaining() for lease in leases]
        waiting = set(range(len(leases)))

        def all_renewed() -> bool:
            for number in list(waiting):
                before, left[number] = left[number], leases[number].remaining()
                if left[number] > before:
                    waiting.remove(number)
                leases[number].check()
            return not waiting

        eventually(all_renewed, "a renewal")
