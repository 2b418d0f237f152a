"""The events of locks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ._clock import now
from ._errors import Unavailable
from ._nodes import NoAnswer, Nodes, Stream

_PAUSE_MIN, _PAUSE_MAX = 0.1, 1.0


@dataclass(frozen=True)
class Event:
    """`kind` is `granted`, `released`, `expired` and so on; `data` has all fields. Keep `id` to continue behind this event later.
    After `dropped`, events between the ids `from` and `to` may be missing."""

    id: str
    kind: str
    data: dict[str, Any]


class Events(Iterator[Event]):
    """Iterates over the events, without end. After a broken connection it goes on at another node, behind the last event.

    Raises `Unavailable` when no node has answered for `retry_for`; iterate again to go on.
    """

    def __init__(self, nodes: Nodes, path: str, after: str | None) -> None:
        self._nodes = nodes
        self._path = path
        # Of the last event that came whole, or how far the stream has been read beyond it: `after` of a later iterator.
        self.last_id = after
        self._stream: Stream | None = None
        self._closed = False

    def __next__(self) -> Event:
        id, kind, data = None, "", ""
        while not self._closed:
            if self._stream is None:
                self._connect()
                id, kind, data = None, "", ""
                continue
            line = self._stream.line()
            if line is None:
                self._stream.close()
                self._stream = None
                continue
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "id":
                id = value
            elif name == "event":
                kind = value
            elif name == "data":
                data += value
            elif not line:
                # The node sends the id before the data: until here, the connection may break off within the event.
                self.last_id = id or self.last_id
                if kind and self.last_id:
                    return Event(self.last_id, kind, json.loads(data))
                id, kind, data = None, "", ""
        raise StopIteration

    def _connect(self) -> None:
        until = now() + self._nodes.retry_for
        pause = _PAUSE_MIN
        tried = 0
        while not self._closed:
            try:
                self._stream = self._nodes.stream(self._path, self.last_id)
                return
            except (NoAnswer, Unavailable) as error:
                tried += 1
                if now() >= until:
                    raise error if isinstance(error, Unavailable) else Unavailable("no-answer", str(error)) from error
            if tried % len(self._nodes) == 0:
                time.sleep(min(pause, max(until - now(), 0)))
                pause = min(pause * 2, _PAUSE_MAX)

    def close(self) -> None:
        """Ends the iteration, also in another thread."""
        self._closed = True
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
