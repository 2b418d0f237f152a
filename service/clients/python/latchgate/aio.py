"""The client for asyncio.

    client = latchgate.aio.Client(["http://node-1:7070", "http://node-2:7070"])
    async with client.lock("orders/42", ttl=30, wait=600) as lease:
        await save(order, fence=lease.token)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar, Union

from ._base import ClientBase, Revoking
from ._errors import LockHeld
from ._events import Event, Reading
from ._gate import AttemptBase, Claim, Done, Durability, OnExpiry, OnOutage, check_work
from ._lease import Granted, LeaseBase
from ._scope import enter, leave

__all__ = ["Attempt", "Client", "Events", "Lease"]

Result = TypeVar("Result")


class Lease(LeaseBase[asyncio.Event]):
    __doc__ = f"{LeaseBase.__doc__}    `await lost.wait()` waits for that.\n"

    def __init__(self, granted: Granted) -> None:
        super().__init__(granted, _Lost())

    async def release(self) -> None:
        """Releases the lease. Raises `LeaseLost` if it had ended before, and `Unavailable` if no node answers; then the lease
        ends by its TTL. A second release does nothing."""
        await self._release()

    async def __aenter__(self) -> Lease:
        enter(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        leave(self)
        await self._leave(error)


class Attempt(AttemptBase[asyncio.Event]):
    def __init__(self, claim: Claim) -> None:
        super().__init__(claim, _Lost())


class Acquiring:
    """A lease to come: `lease = await client.lock(…)`, or `async with client.lock(…) as lease`."""

    def __init__(self, lease: Coroutine[Any, Any, Lease]) -> None:
        self._coming = lease
        self._lease: Lease | None = None

    def __await__(self) -> Generator[Any, None, Lease]:
        return self._coming.__await__()

    async def __aenter__(self) -> Lease:
        self._lease = await self._coming
        return await self._lease.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, trace)


class Events(AsyncIterator[Event]):
    """Iterates over the events, without end. After a broken connection it goes on at another node, behind the last event.

    Raises `Unavailable` when no node has answered for `retry_for`; iterate again to go on.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def last_id(self) -> str | None:
        """Of the last event that came whole, or how far the stream has been read beyond it: `after` of a later iterator."""
        return self._reading.last_id

    async def __anext__(self) -> Event:
        event = await self._reading.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Ends the iteration, also in another task."""
        await self._reading.close()

    async def __aenter__(self) -> Events:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


class Client(ClientBase[Lease, Acquiring]):
    __doc__ = f"""{ClientBase.__doc__}
    It belongs to the event loop in which it is called first. The renewals run there, too: work that does not `await` for long belongs into
    a thread (`asyncio.to_thread`). `async with Client() as client` waits at its end for what is given back in the background.
    """

    async def try_lock(self, key: str, **options: Any) -> Lease | None:
        """Takes the lock if it is free; else returns None. Has the options of `lock` but `wait`."""
        try:
            return await self.lock(key, wait=0.0, **options)
        except LockHeld:
            return None

    async def once(
        self,
        contents: Any,
        work: Callable[[Attempt], Union[Awaitable[Result], Result]],
        *,
        operation: str,
        checked: Any = None,
        ttl: float = 60.0,
        wait: float = 60.0,
        on_expiry: OnExpiry = "block",
        durability: Durability | None = None,
        on_outage: OnOutage | None = None,
        retention: float | None = None,
        permanent: bool = False,
        label: str | None = None,
    ) -> Done[Result]:
        """Runs `work(attempt)`, and awaits what it returns if that can be awaited, if this operation with these contents has not succeeded
        yet: see `latchgate.Client.once`. Work that is cancelled has an unknown outcome, too."""
        check_work(work, is_async=True)
        attempt = await self._claim(
            Attempt, contents, operation, checked, ttl, wait, on_expiry, durability, on_outage, retention, permanent, label
        )
        if isinstance(attempt, Done):
            return attempt
        try:
            result: Any = work(attempt)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            await attempt._failed(error)
            raise
        return await attempt._succeeded(result, self)

    async def fence(self, key: str, token: int) -> None:
        """See `latchgate.Client.fence`."""
        await self._fence(key, token)

    async def revoke(
        self, key: str, *, reason: str | None = None, by: str | None = None, grace: float | None = None, token: int | None = None
    ) -> Revoking:
        """See `latchgate.Client.revoke`."""
        return await self._revoke(key, reason, by, grace, token)

    def events(self, key: str | None = None, *, prefix: str = "", after: str | None = None) -> Events:
        """See `latchgate.Client.events`."""
        return Events(self._reading(key, prefix, after))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Waits for what is given back in the background, and closes the connections. The client can be used again."""
        await self._core.finish()

    def _lease(self, granted: Granted) -> Lease:
        return Lease(granted)

    def _take(self, lease: Coroutine[Any, Any, Lease]) -> Acquiring:
        return Acquiring(lease)


class _Lost(asyncio.Event):
    """`remaining` of a lease may find out in another thread that it is lost."""

    def __init__(self) -> None:
        super().__init__()
        self._home = asyncio.get_running_loop()

    def set(self) -> None:
        try:
            is_home = asyncio.get_running_loop() is self._home
        except RuntimeError:
            is_home = False
        if is_home:
            super().set()
        elif not self._home.is_closed():
            self._home.call_soon_threadsafe(super().set)
