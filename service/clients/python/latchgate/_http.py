"""HTTP/1.1 on asyncio streams, as far as this package needs it: one request at a time on a connection, which then waits for the next one."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar, Union
from urllib.parse import SplitResult, urlsplit

from ._clock import now
from ._errors import of_problem

T = TypeVar("T")

# Nodes close idle connections after 15 s.
_IDLE_MAX = 10.0
_IDLE_CONNECTIONS_MAX = 16
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
# The longest line, and the longest head of an answer.
_LINE_BYTES_MAX = 1024 * 1024
# Longest silence of a stream: the node sends a comment every 15 s.
_SILENCE_MAX = 45.0
# A body comes with its head, so it has this time also if the head came late.
_BODY_TIMEOUT_MIN = 0.1
# What breaks a connection: also an answer that is no HTTP.
_BROKEN = (OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.TimeoutError)


def encoded(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


NO_ANSWER, FOREIGN_ANSWER = "no-answer", "foreign-answer"


class NoAnswer(Exception):
    """The node was not reached, or did not answer in time or in full. It may have carried out the request."""

    def __init__(self, detail: str, retry_after: float = 0.0, sent: bool = True, code: str = NO_ANSWER) -> None:
        super().__init__(detail)
        # `foreign-answer`: that of a gateway, which is no outage.
        self.code = code
        self.retry_after = retry_after
        # False: there was no connection, so the node has not carried it out.
        self.sent = sent


async def within(seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, or `asyncio.TimeoutError`. Unlike `asyncio.wait_for` before Python 3.12, it swallows no cancellation."""
    task = asyncio.ensure_future(coroutine)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await asyncio.wait({task}, timeout=max(seconds, 0.0))
        if task.done():
            return task.result()
        raise asyncio.TimeoutError("no answer in time")
    finally:
        task.cancel()


def check_no_login(urls: str) -> None:
    if "@" in urls:
        raise ValueError("a URL has a login, which no node takes: give an API key")


def _parts(url: str) -> SplitResult:
    parts: SplitResult | None
    try:
        parts = urlsplit(url)
        if not re.fullmatch(r"https?://(\[[^]]+]|[^][:/?#%\\]+)(:[0-9]*)?(/[^?#\\]*)?", url) or not url.isprintable() or " " in url:
            raise ValueError
        parts.port  # to read it is to check it
        if "[" in parts.netloc:
            ipaddress.IPv6Address(parts.hostname or "")
    except ValueError:
        parts = None
    if parts is None:
        # It is not shown, not even by another error: it may have a login or an API key.
        raise ValueError("one of the URLs is not that of a node (example: http://127.0.0.1:7070)")
    return parts


def _is_refusal(answer: Mapping[str, Any]) -> bool:
    code = answer.get("code")
    return isinstance(code, str) and code != "" and answer.get("type") == f"/errors/{code}"


class Node:
    """One base URL, with the connections to it that are idle."""

    def __init__(self, url: str, api_key: str | None, ssl_context: ssl.SSLContext | None) -> None:
        parts = _parts(url)
        assert parts.hostname is not None
        self._tls: Union[ssl.SSLContext, bool, None] = (ssl_context or True) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        self.name = f"{parts.scheme}://{parts.hostname}:{self._port}"
        self._prefix = parts.path.rstrip("/")
        host = f"[{self._host}]" if ":" in self._host else self._host
        if api_key is not None and not re.fullmatch("lgk_[0-9A-Za-z_]+", api_key):
            raise ValueError("the API key has the wrong form: it is one line of letters, digits and _, and begins with lgk_")
        authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = f"Host: {host}{f':{parts.port}' if parts.port else ''}\r\nUser-Agent: latchgate-python\r\n{authorization}"
        self._idle: list[tuple[float, _Connection]] = []

    def forget(self) -> None:
        """The idle connections belong to another event loop, or to the process before a fork, which goes on with them."""
        self._idle.clear()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    async def post(self, path: str, body: Mapping[str, Any], timeout: float, fresh: bool = False) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object of the answer. With `fresh`, the connection is a new one: a request on an idle one that the node
        has closed is sent again."""
        data = encoded(body)
        head = f"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {len(data)}\r\n"
        request = self._head("POST", path, head) + data
        until = now() + timeout
        sent = False
        while True:
            connection = idle = None if fresh else self._take_idle()
            try:
                if connection is None:
                    connection = await within(until - now(), self._connect())
                sent = True
                status, headers = await within(until - now(), connection.begin(request))
                break
            except _BROKEN as error:
                if connection:
                    connection.close()
                # The node may have closed an idle connection. That says nothing about the node.
                if idle and not isinstance(error, asyncio.TimeoutError):
                    continue
                raise NoAnswer(f"{self.name}: {error or type(error).__name__}", sent=sent) from error
            except BaseException:
                if connection:
                    connection.close()
                raise
        answer = await self._read(connection, status, headers, until - now())
        self._give_back(connection)
        return status, answer

    async def _read(self, connection: _Connection, status: int, headers: Mapping[str, str], timeout: float) -> dict[str, Any]:
        """The JSON object of an answer of a node, whose refusals have a `type` that names their code. Another answer is that of a gateway, or
        is not whole. That is an outage only if the gateway says that it reaches no node, or if it does not say what was granted: a 2xx that
        is no JSON."""
        is_whole = is_json = False
        cause: BaseException | None = None
        try:
            text = await within(max(timeout, _BODY_TIMEOUT_MIN), _whole(connection.body(headers)))
            is_whole = True
            answer = json.loads(text)
            is_json = True
            if isinstance(answer, dict) and (status < 300 or _is_refusal(answer)):
                return answer
        except (*_BROKEN, RecursionError) as error:
            cause = error
        except BaseException:
            connection.close()
            raise
        connection.close()
        is_outage = not is_json if status < 300 else is_whole and status in (502, 503, 504)
        retry_after = headers.get("retry-after", "")
        what = "none of Latchgate's" if is_whole else "not whole"
        code = NO_ANSWER if is_outage else FOREIGN_ANSWER
        detail = f"{self.name}: the answer with status {status} is {what}"
        # A gateway that refuses has not passed the request on; 408 may come after it has.
        is_sent = not 300 <= status < 500 or status == 408
        raise NoAnswer(detail, float(retry_after) if retry_after.isdecimal() else 0.0, is_sent, code) from cause

    async def stream(self, path: str, last_id: str | None, timeout: float) -> Stream:
        """A response without an end. Raises the error of an answer but 200."""
        head = "Accept: text/event-stream\r\n"
        if last_id:
            head += f"Last-Event-ID: {last_id}\r\n"
        connection = None
        try:
            connection = await within(timeout, self._connect())
            status, headers = await within(timeout, connection.begin(self._head("GET", path, head)))
            if status == 200 and headers.get("content-type", "").startswith("text/event-stream"):
                return Stream(connection, connection.body(headers))
        except _BROKEN as error:
            if connection:
                connection.close()
            raise NoAnswer(f"{self.name}: {error or type(error).__name__}") from error
        except BaseException:
            if connection:
                connection.close()
            raise
        answer = await self._read(connection, status, headers, timeout)
        connection.close()
        if status < 300:
            raise NoAnswer(f"{self.name}: the answer with status {status} is no stream of events", code=FOREIGN_ANSWER)
        raise of_problem(status, answer)

    def _head(self, method: str, path: str, headers: str) -> bytes:
        return f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}{headers}\r\n".encode()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX, loop=loop)
        # No `StreamWriter`: in a forked child, its finaliser would take the connection out of the parent's event loop.
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, self._host, self._port, ssl=self._tls)
        return _Connection(reader, transport)

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            since, connection = self._idle.pop()
            if now() - since < _IDLE_MAX and connection.is_open():
                return connection
            connection.close()
        return None

    def _give_back(self, connection: _Connection) -> None:
        if connection.is_kept and len(self._idle) < _IDLE_CONNECTIONS_MAX:
            self._idle.append((now(), connection))
        else:
            connection.close()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.Transport) -> None:
        self._reader = reader
        self._transport = transport
        # Whether another request may follow.
        self.is_kept = False

    def is_open(self) -> bool:
        return not (self._reader.at_eof() or self._transport.is_closing())

    def close(self) -> None:
        """At once: the node notices that the client has gone, and a reader gets the end."""
        self._transport.abort()

    async def begin(self, request: bytes) -> tuple[int, dict[str, str]]:
        """Sends a request, and reads the head of its answer. It does not wait until all is sent: a node may refuse before that."""
        self.is_kept = False
        self._transport.write(request)
        while True:
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            version, status, *_ = first.split(" ")
            if not version.startswith("HTTP/1."):
                raise ValueError(f"the answer is no HTTP/1.1: {first[:60]!r}")
            headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if int(status) >= 200:
                self.is_kept = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
                return int(status), headers

    async def body(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """In pieces, as they come."""
        if "chunked" in headers.get("transfer-encoding", "").lower():
            while left := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                async for piece in self._exactly(left):
                    yield piece
                await self._reader.readexactly(2)
            while await self._reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        elif "content-length" in headers:
            async for piece in self._exactly(int(headers["content-length"])):
                yield piece
        else:
            self.is_kept = False
            while piece := await self._reader.read(65_536):
                yield piece

    async def _exactly(self, left: int) -> AsyncIterator[bytes]:
        while left > 0:
            piece = await self._reader.read(min(left, 65_536))
            if not piece:
                raise EOFError("the connection has ended within the answer")
            left -= len(piece)
            yield piece


class Stream:
    """Lines of a response that has no end."""

    def __init__(self, connection: _Connection, body: AsyncIterator[bytes]) -> None:
        self._connection = connection
        self._body = body
        self._read = b""

    async def line(self) -> str | None:
        """The next line without its end; None after a broken connection."""
        while b"\n" not in self._read:
            try:
                self._read += await within(_SILENCE_MAX, self._body.__anext__())  # type: ignore[arg-type]
            except (*_BROKEN, StopAsyncIteration):
                return None
            if len(self._read) > _LINE_BYTES_MAX:
                return None
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("utf-8", "replace").rstrip("\r")

    def close(self) -> None:
        self._connection.close()


async def _whole(body: AsyncIterator[bytes]) -> bytes:
    text = bytearray()
    async for piece in body:
        text += piece
        if len(text) > _ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
    return bytes(text)
