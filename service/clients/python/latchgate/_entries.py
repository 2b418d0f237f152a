"""Successes of work that no node has recorded, because the gate was away."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._clock import now
from ._errors import Error, Unavailable

if TYPE_CHECKING:
    from ._core import Core

_log = logging.getLogger("latchgate")

# When so many runs are not entered, no further work runs unguarded.
_OPEN_MAX = 1_000
_PAUSE_MIN, _PAUSE_MAX = 0.2, 10.0
# The store has lost the attempt.
ATTEMPT_UNKNOWN = ("operation-not-found", "stamp-mismatch")
# What the answer to a report has.
RECORDED = {"outcome": str}


@dataclass
class Entry:
    """A success. That of an attempt is posted again, and entered if the store has lost the attempt; that of an unguarded run is entered."""

    operation: str
    # Paths and bodies.
    requests: list[tuple[str, dict[str, Any]]]
    # What must live until it is recorded.
    held: object
    is_refused: bool = False


class Entries:
    """Those of one client: each is reported in the background, for as long as the process lives."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: deque[Entry] = deque()
        self._task: asyncio.Task[None] | None = None
        self._pid = os.getpid()
        # Runs that have begun or ended and are not entered.
        self.open = 0

    def begin(self) -> bool:
        """Whether another run may begin: its entry is sure to have a place."""
        if self.open >= _OPEN_MAX:
            return False
        self.open += 1
        return True

    def end(self) -> None:
        """A run is entered, or has nothing to enter."""
        self.open -= 1

    def add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        if self._task is None or self._task.done():
            self._task = self._core.background("runs that were made while the gate was away", self._enter_all)

    def forget(self) -> None:
        """Begins anew, in another event loop; or in another process, whose runs these are not."""
        if self._pid != os.getpid():
            self._waiting.clear()
            self._pid, self.open = os.getpid(), 0
        self._task = None
        if self._waiting:
            self.add(self._waiting.pop())

    async def _enter_all(self) -> None:
        pause = _PAUSE_MIN
        while self._waiting:
            entry = self._waiting[0]
            path, report = entry.requests[0]
            try:
                answer = await self._core.call(path, dict(report), until=now() + self._core.retry_for, needs=RECORDED)
                if answer.body.get("double_run"):
                    id = answer.body.get("id")
                    _log.warning("%s ran while the gate was away, and may have been done twice: id %s", entry.operation, id)
            except Error as error:
                if error.code in ATTEMPT_UNKNOWN and entry.requests[1:]:
                    del entry.requests[0]
                    continue
                is_refused = not isinstance(error, Unavailable)
                if not is_refused or error.status in (401, 403):
                    is_new = is_refused and not entry.is_refused
                    _log.log(logging.WARNING if is_new else logging.DEBUG, "the run of %s is not entered yet: %s", entry.operation, error)
                    entry.is_refused |= is_refused
                    # It keeps no other waiting.
                    self._waiting.rotate(-1)
                    await asyncio.sleep(pause * random.uniform(1.0, 1.5))
                    pause = min(pause * 2, _PAUSE_MAX)
                    continue
                _log.error("%s ran while the gate was away, and the run is not entered: %s", entry.operation, error)
            self._waiting.popleft()
            self.end()
            pause = _PAUSE_MIN
