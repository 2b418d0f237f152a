"""Requests to any of the nodes. Every request of this package can be repeated, so a call goes on until a node has answered it."""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import socket
import ssl
import threading
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
_PAUSE_MIN, _PAUSE_MAX = 0.1, 1.0


@dataclass(frozen=True)
class Answer:
    """A 2xx answer, and when its request was sent. What a lease has left counts from there."""

    sent: float
    body: dict[str, Any]


class _NoAnswer(Exception):
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
        self._nodes = [_Node(url, api_key, ssl_context) for url in urls]
        self.retry_for = retry_for
        self._timeout = timeout
        self._wait_per_call = wait_per_call
        # The node that is tried first. Another one takes its place when it does not answer.
        self._first = 0

    def call(
        self,
        path: str,
        body: dict[str, Any],
        *,
        until: float,
        wait_until: float | None = None,
        fit: bool = False,
        stop: threading.Event | None = None,
        doubt: Doubt | None = None,
    ) -> Answer:
        """Posts the request, and repeats it until a node has answered it or it is `until`.

        With `wait_until`, each request waits at the node, and the call goes on with tickets until then. With `fit`, the time for
        each answer is chosen so that other nodes can be tried before `until`.

        Raises `Unavailable` if there was no answer, and the error of an answer that does not let the caller proceed.
        """
        tried = 0
        pause = _PAUSE_MIN
        doubt = doubt or Doubt()
        waits = wait_until is not None and wait_until > now()
        while True:
            wait = 0.0
            if wait_until is not None:
                wait = max(min(wait_until - now(), self._wait_per_call), 0.0)
                # A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
                body["wait_ms"] = max(math.ceil(wait * 1000), 1) if waits else 0
            index = self._first
            sent = now()
            timeout = min(self._timeout, max((until - sent) / 3, 0.02)) if fit else self._timeout
            retry_after = 0.0
            before = doubt.begin()
            try:
                status, answer = self._nodes[index].post(path, body, timeout + wait)
                if 200 <= status < 300:
                    return Answer(sent, answer)
                error = of_problem(status, answer)
                doubt.answered(error, before)
                # A wait that ended leaves a ticket, with which the next request returns to its position.
                if "ticket" in answer:
                    body["ticket"] = answer["ticket"]
                if error.code == "invalid-ticket" and body.pop("ticket", None):
                    continue
                goes_on = error.code in ("wait-timeout", "operation-in-progress") and wait_until is not None and now() < wait_until
                if goes_on:
                    # A node that is about to stop ends waits early.
                    if now() - sent >= wait / 2:
                        tried = 0
                        pause = _PAUSE_MIN
                        continue
                elif not is_transient(status):
                    raise error
                else:
                    retry_after = float(answer.get("retry_after_ms", 0)) / 1000
            except _NoAnswer as no_answer:
                error = Unavailable("no-answer", str(no_answer))
                retry_after = no_answer.retry_after
                doubt.is_set = before or no_answer.sent
            tried += 1
            # Other threads may have moved on already.
            if self._first == index:
                self._first = (index + 1) % len(self._nodes)
            left = until - now()
            if left <= 0:
                raise error
            if tried % len(self._nodes) == 0:
                rest = max(retry_after, pause) * random.uniform(1.0, 1.5)
                if retry_after > left and not fit:
                    raise error
                _sleep(min(rest, left / 4) if fit else min(rest, left), stop)
                pause = min(pause * 2, _PAUSE_MAX)
            if stop is not None and stop.is_set():
                raise error


    def __repr__(self) -> str:
        return ", ".join(node.name for node in self._nodes)


def _sleep(seconds: float, stop: threading.Event | None) -> None:
    (stop or threading.Event()).wait(seconds)


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
                text = response.read(_ANSWER_BYTES_MAX)
                if response.read(1) or response.length:
                    raise http.client.IncompleteRead(text)
                answer = _parse(text)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The node may have closed an idle connection. That says nothing about the node.
                if idle is not None and not isinstance(error, socket.timeout):
                    continue
                raise _NoAnswer(f"{self.name}: {error or type(error).__name__}", sent=sent) from error
            except BaseException:
                connection.close()
                raise
            self._give_back(connection)
            if answer is None or (response.status >= 300 and "code" not in answer):
                detail = f"{self.name}: the answer with status {response.status} is none of Latchgate's"
                retry_after = response.headers.get("Retry-After", "")
                raise _NoAnswer(detail, float(retry_after) if retry_after.isdecimal() else 0.0)
            return response.status, answer

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
        nodes.call(path, body, until=now() + seconds, fit=True)
    except Error:
        pass
