"""The events of locks."""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import dataclass
from typing import Any

from ._clock import now
from ._errors import Unavailable
from ._http import NoAnswer, Stream
from ._json import typed
from ._nodes import Nodes, key_of, other_key

_PAUSE_MIN, _PAUSE_MAX = 0.1, 1.0


@dataclass(frozen=True)
class Event:
    """`kind` is `granted`, `released`, `expired` and so on; `data` has all fields. Keep `id` to continue behind this event later.
    After `dropped`, events between the ids `from` and `to` may be missing."""

    id: str
    kind: str
    data: dict[str, Any]


class Reading:
    """Reads the events, without end. After a broken connection it goes on at another node, behind the last event."""

    def __init__(self, nodes: Nodes, path: str, after: str | None) -> None:
        typed(str, after=after)
        after = after and after.strip()
        if after and not after.isprintable():
            raise ValueError("after is not the id of an event: it has control characters")
        self._nodes = nodes
        self._path = path
        # Of the last event that came whole, or how far the stream has been read beyond it: `after` of a later iterator.
        self.last_id = after
        self._stream: Stream | None = None
        self._closed = False
        self._pid = os.getpid()

    async def next(self) -> Event | None:
        self._let_go_after_fork()
        id, kind, data = None, "", ""
        while not self._closed:
            if self._stream is None:
                await self._connect()
                id, kind, data = None, "", ""
                continue
            line = await self._stream.line()
            if line is None:
                self._stream.close()
                self._stream = None
                # It may end at once again.
                await asyncio.sleep(random.uniform(_PAUSE_MIN, _PAUSE_MAX))
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
                    event = Event(self.last_id, kind, json.loads(data))
                    self._check_key(event)
                    return event
                id, kind, data = None, "", ""
        await self.close()
        return None

    async def _connect(self) -> None:
        until = now() + self._nodes.retry_for
        pause = _PAUSE_MIN
        tried, index = 0, self._nodes.after(None)
        while not self._closed:
            try:
                self._stream = await self._nodes.stream(self._path, self.last_id, index, until)
                return
            except (NoAnswer, Unavailable) as error:
                tried, index = tried + 1, self._nodes.after(index)
                if tried >= len(self._nodes) and now() >= until:
                    raise error if isinstance(error, Unavailable) else Unavailable(error.code, str(error)) from error
            if tried % len(self._nodes) == 0:
                await asyncio.sleep(min(pause, max(until - now(), 0)))
                pause = min(pause * 2, _PAUSE_MAX)

    def _check_key(self, event: Event) -> None:
        asked, of = key_of(self._path), event.data.get("key")
        if asked and of is not None and asked != [of]:
            raise other_key(asked, [of])

    def _let_go_after_fork(self) -> None:
        """The connection belongs to the process before the fork, which goes on with it: it is not closed here."""
        if self._pid != os.getpid():
            self._pid, self._stream = os.getpid(), None

    async def close(self) -> None:
        self._let_go_after_fork()
        self._closed = True
        if self._stream is not None:
            self._stream.close()
