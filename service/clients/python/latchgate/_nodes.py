"""Requests to any of the nodes. Nearly every request of this package can be repeated, so a call goes on until a node has answered it."""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ._clock import now
from ._errors import Error, Unavailable, is_transient, of_problem

# Nodes close idle connections after 15 s.
_IDLE_MAX = 10.0
_IDLE_CONNECTIONS_MAX = 16
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_LINE_BYTES_MAX = 1024 * 1024
# Longest silence of a stream: the node sends a comment every 15 s.
_SILENCE_MAX = 45.0
_PAUSE_MIN, _PAUSE_MAX = 0.1, 1.0
_TIMEOUT_MIN = 0.02
# The first request of a wait is short: its answer has a ticket, with which the position in the queue survives the node.
_FIRST_WAIT = 0.5


@dataclass(frozen=True)
class Answer:
    """An answer, and when its request was sent. What a lease has left counts from there."""

    sent: float
    status: int
    body: dict[str, Any]


class NoAnswer(Exception):
    """The node was not reached, or did not answer in time or in full. It may have carried out the request."""

    def __init__(self, detail: str, retry_after: float = 0.0, sent: bool = True) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        # False: there was no connection, so the node has not carried it out.
        self.sent = sent


class Doubt:
    """Whether a node may have carried out a call, though no answer says so."""

    def __init__(self) -> None:
        self.is_set = False

    def begin(self) -> bool:
        """A request is sent. Returns what was known before."""
        before, self.is_set = self.is_set, True
        return before

    def answered(self, error: Error, before: bool) -> None:
        """Only a decision about this very call ends a doubt: a refusal for another reason says nothing about earlier requests."""
        if error.status in (409, 410, 422, 423):
            self.is_set = False
        elif error.status != 500 and error.code != "outcome-unknown":
            self.is_set = before


class Nodes:
    """The nodes of one cluster. All durations are in seconds, as in `Client`."""

    def __init__(
        self,
        urls: Sequence[str],
        api_key: str | None,
        timeout: float,
        retry_for: float,
        wait_per_call: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        if not urls:
            raise ValueError("at least one URL is needed")
        if retry_for <= 0:
            raise ValueError("retry_for is the time for a whole call: it must be more than 0")
        self._nodes = [_Node(url, api_key, ssl_context) for url in urls]
        self.retry_for = retry_for
        self.timeout = timeout
        self._wait_per_call = wait_per_call
        # The node that is tried first. Another one takes its place when it does not answer.
        self._first = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def send(self, path: str, body: dict[str, Any], timeout: float) -> Answer:
        """One request to one node. Raises `NoAnswer`. If that node cannot serve, the next request goes to another one."""
        index = self._first
        sent = now()
        try:
            status, answer = self._nodes[index].post(path, body, timeout)
        except NoAnswer:
            self.avoid(index)
            raise
        if is_transient(status):
            self.avoid(index)
        return Answer(sent, status, answer)

    def avoid(self, index: int) -> None:
        # Other threads may have moved on already.
        if self._first == index:
            self._first = (index + 1) % len(self._nodes)

    def stream(self, path: str, last_id: str | None) -> Stream:
        """A response whose body is read by the caller. Raises `NoAnswer`, and the error of an answer but 200."""
        index = self._first
        try:
            return self._nodes[index].stream(path, last_id, self.timeout)
        except (NoAnswer, Unavailable):
            self.avoid(index)
            raise

    def call(
        self,
        path: str,
        body: dict[str, Any],
        *,
        until: float,
        wait_until: float | None = None,
        repeat_in_doubt: bool = True,
        doubt: Doubt | None = None,
    ) -> Answer:
        """Posts the request, and repeats it until a node has answered it or it is `until`. Each node gets a part of that time, so that
        others can be tried.

        With `wait_until`, each request waits at the node, and the call goes on with tickets until then, and for `retry_for` after
        that while no node answers. A wait does not begin in an outage: until a node has answered, `until` counts.

        Raises `Unavailable` if there was no answer, and the error of an answer that does not let the caller proceed.
        """
        tried = 0
        pause = _PAUSE_MIN
        doubt = doubt or Doubt()
        waits = wait_until is not None and wait_until > now()
        was_answered = False
        while True:
            left = until - now()
            wait = 0.0
            if wait_until is not None:
                longest = self._wait_per_call if was_answered else min(_FIRST_WAIT, left / 4, self._wait_per_call)
                wait = max(min(wait_until - now(), longest), 0.0)
                # A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
                body["wait_ms"] = max(math.ceil(wait * 1000), 1) if waits else 0
            timeout = max(min(self.timeout, left / 3, left - wait), _TIMEOUT_MIN)
            retry_after = 0.0
            before = doubt.begin()
            index, sent = self._first, now()
            try:
                answer = self.send(path, body, timeout + wait)
                if 200 <= answer.status < 300:
                    return answer
                error = of_problem(answer.status, answer.body)
                doubt.answered(error, before)
                # A wait that ended leaves a ticket, with which the next request returns to its position.
                if "ticket" in answer.body:
                    body["ticket"] = answer.body["ticket"]
                if error.code == "invalid-ticket" and body.pop("ticket", None):
                    continue
                is_of_wait = answer.status == 423 or error.code == "operation-in-progress"
                if is_of_wait and wait_until is not None and now() < wait_until:
                    was_answered = True
                    until = wait_until + self.retry_for
                    # A node that is about to stop ends waits early.
                    if now() - sent >= wait / 2:
                        tried = 0
                        pause = _PAUSE_MIN
                        continue
                    self.avoid(index)
                elif not is_transient(answer.status):
                    raise error
                retry_after = float(answer.body.get("retry_after_ms", 0)) / 1000 if is_transient(answer.status) else 0.0
            except NoAnswer as no_answer:
                error = Unavailable("no-answer", str(no_answer))
                retry_after = no_answer.retry_after
                doubt.is_set = before or no_answer.sent
            tried += 1
            left = until - now()
            if left <= 0 or retry_after > left or (doubt.is_set and not repeat_in_doubt):
                raise error
            if tried % len(self._nodes) == 0:
                time.sleep(min(max(retry_after, pause) * random.uniform(1.0, 1.5), left))
                pause = min(pause * 2, _PAUSE_MAX)

    def __repr__(self) -> str:
        return ", ".join(node.name for node in self._nodes)


class Stream:
    """Lines of a response that has no end."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._sock = connection.sock
        self._connection = connection
        self._response = response

    def line(self) -> str | None:
        """The next line without its end; None after a broken connection."""
        try:
            line = self._response.readline(_LINE_BYTES_MAX)
        except (OSError, http.client.HTTPException, ValueError):
            return None
        return line.decode("utf-8", "replace").rstrip("\r\n") if line.endswith(b"\n") else None

    def close(self) -> None:
        """Another thread that reads a line gets None."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._connection.close()


class _Node:
    """One base URL, with the connections to it that are idle."""

    def __init__(self, url: str, api_key: str | None, ssl_context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"not the URL of a node: {url!r} (example: http://127.0.0.1:7070)")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self.name = f"{parts.scheme}://{parts.hostname}:{parts.port or ('443' if self._https else '80')}"
        self._prefix = parts.path.rstrip("/")
        self._ssl_context = ssl_context
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "latchgate-python"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        weakref.finalize(self, _close_all, self._idle)

    def post(self, path: str, body: Mapping[str, Any], timeout: float) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object of the answer. `timeout` is for each step: connecting, and reading the answer."""
        data = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        until = now() + timeout
        sent = False
        while True:
            idle = self._take_idle()
            connection = idle or self._connect(timeout)
            try:
                connection.timeout = max(until - now(), 0.02)
                if connection.sock is not None:
                    connection.sock.settimeout(connection.timeout)
                else:
                    connection.connect()
                sent = True
                connection.request("POST", self._prefix + path, data, self._headers)
                connection.sock.settimeout(max(until - now(), 0.02))
                response = connection.getresponse()
                answer = _parse(_read(response, connection.sock, until))
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The node may have closed an idle connection. That says nothing about the node.
                if idle is not None and not isinstance(error, socket.timeout):
                    continue
                raise NoAnswer(f"{self.name}: {error or type(error).__name__}", sent=sent) from error
            except BaseException:
                connection.close()
                raise
            self._give_back(connection)
            if answer is None or (response.status >= 300 and "code" not in answer):
                detail = f"{self.name}: the answer with status {response.status} is none of Latchgate's"
                retry_after = response.headers.get("Retry-After", "")
                raise NoAnswer(detail, float(retry_after) if retry_after.isdecimal() else 0.0)
            return response.status, answer

    def stream(self, path: str, last_id: str | None, timeout: float) -> Stream:
        headers = {**self._headers, "Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
        connection = self._connect(timeout)
        try:
            connection.request("GET", self._prefix + path, headers=headers)
            response = connection.getresponse()
            if response.status == 200:
                connection.sock.settimeout(_SILENCE_MAX)
                return Stream(connection, response)
            answer = _parse(response.read(_ANSWER_BYTES_MAX))
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NoAnswer(f"{self.name}: {error or type(error).__name__}") from error
        except BaseException:
            connection.close()
            raise
        connection.close()
        if answer is None or "code" not in answer:
            raise NoAnswer(f"{self.name}: the answer with status {response.status} is none of Latchgate's")
        raise of_problem(response.status, answer)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._https:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._ssl_context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _take_idle(self) -> http.client.HTTPConnection | None:
        with self._mutex:
            if self._pid != os.getpid():
                # After a fork, the connections belong to the parent process.
                self._idle.clear()
                self._pid = os.getpid()
            while self._idle:
                since, connection = self._idle.pop()
                if now() - since < _IDLE_MAX:
                    return connection
                connection.close()
        return None

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None:
            return  # the node closes it
        with self._mutex:
            if len(self._idle) < _IDLE_CONNECTIONS_MAX:
                self._idle.append((now(), connection))
                return
        connection.close()


def _read(response: http.client.HTTPResponse, sock: socket.socket | None, until: float) -> bytes:
    text = bytearray()
    while piece := response.read(16_384):
        text += piece
        left = until - now()
        if left <= 0 or len(text) > _ANSWER_BYTES_MAX:
            raise socket.timeout("the answer is too slow or too long")
        if sock is not None:
            sock.settimeout(left)
    if response.length:
        raise http.client.IncompleteRead(bytes(text))
    return bytes(text)


def _close_all(idle: list[tuple[float, http.client.HTTPConnection]]) -> None:
    for _, connection in idle:
        connection.close()


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def call_quietly(nodes: Nodes, path: str, body: dict[str, Any], seconds: float) -> None:
    """For giving back what may never have been granted: a failure does not matter."""
    try:
        nodes.call(path, body, until=now() + seconds)
    except Error:
        pass
