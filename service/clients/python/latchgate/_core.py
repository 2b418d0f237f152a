"""What the parts of one client share: its nodes, its renewals, and what it does in the background. It lives in one event loop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ._clock import now
from ._entries import Entries
from ._errors import Unavailable
from ._http import within
from ._nodes import Nodes
from ._renewals import Renewals

T = TypeVar("T")

_log = logging.getLogger("latchgate")

# How long the end of the event loop, and so that of the program, waits for what must reach a node.
AT_EXIT = 5.0


class Core(Nodes):
    def __init__(
        self,
        urls: Sequence[str],
        api_key: str | None,
        timeout: float,
        retry_for: float,
        wait_per_call: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        super().__init__(urls, api_key, timeout, retry_for, wait_per_call, ssl_context)
        self.renewals = Renewals(self)
        self.entries = Entries(self)
        self._tasks: set[asyncio.Task[Any]] = set()

    def forget(self) -> None:
        super().forget()
        self.renewals.forget()
        self._tasks.clear()
        self.entries.forget()

    def background(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Does what must reach a node, also if the caller does not wait for it, and if the event loop is about to end: then the work, which
        can be repeated, begins again."""
        task = asyncio.ensure_future(_to_its_end(what, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return task

    async def insist(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Waits for such work. If the caller is cancelled, the work goes on."""
        task = self.background(what, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._linger(task, what, work)
            raise

    async def give_back(self, error: BaseException, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Such work after an error. The caller waits for it only if it is cancelled."""
        task = self.background(what, work)
        if isinstance(error, asyncio.CancelledError):
            await self._linger(task, what, work)

    async def _linger(self, task: asyncio.Task[T], what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """For a caller that is cancelled: an event loop that is about to end waits only for the tasks that it has cancelled."""
        until = now() + min(self.retry_for, AT_EXIT)
        while now() < until and (task.cancelled() or not task.done()):
            if task.cancelled():
                # That was before its first step.
                task = self.background(what, work)
            try:
                await asyncio.wait({task}, timeout=until - now())
            except asyncio.CancelledError:
                pass  # it is cancelled again, and ends soon

    async def finish(self) -> None:
        """Waits for what is done in the background, 5 s at most, and closes the connections."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=AT_EXIT)
        self.close()


async def _to_its_end(what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return await work()
    except asyncio.CancelledError:
        try:
            return await within(AT_EXIT, work())
        except (Unavailable, asyncio.TimeoutError) as error:
            _log.warning("the program ends without an answer about %s: %s", what, error)
            raise
