"""The client for asyncio behind the interface of the blocking one, so that the same scenarios run with both. Its event loop is in a thread of
the tests, as that of a program would be."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from latchgate import aio

_loop = asyncio.new_event_loop()


def drive(call: Callable[[], Any]) -> Any:
    """Its result, or what it awaits."""

    async def driven() -> Any:
        result = call()
        return await result if inspect.isawaitable(result) else result

    if not _loop.is_running():
        threading.Thread(target=_loop.run_forever, name="event loop of the tests", daemon=True).start()
    result = asyncio.run_coroutine_threadsafe(driven(), _loop).result()
    return Driven(result) if isinstance(result, (aio.Lease, aio.Events)) else result


class Driven:
    """A client, a lease, an attempt, or events: what can be awaited is waited for."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, "aclose" if name == "close" else name)
        if isinstance(value, asyncio.Event):
            return Driven(value)
        if not callable(value) or name.startswith("_"):
            return value
        return lambda *arguments, **options: drive(lambda: value(*arguments, **options))

    def wait(self, seconds: float) -> bool:
        async def wait() -> None:
            await asyncio.wait_for(self.inner.wait(), seconds)

        drive(wait)
        return True

    def __enter__(self) -> Driven:
        drive(self.inner.__aenter__)
        return self

    def __exit__(self, *raised: Any) -> None:
        drive(lambda: self.inner.__aexit__(*raised))

    def __iter__(self) -> Driven:
        return self

    def __next__(self) -> Any:
        async def following() -> Any:
            return await self.inner.__anext__()

        return drive(following)


class DrivenClient(Driven):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(aio.Client(*arguments, **options))

    def once(self, contents: Any, work: Callable[[Any], Any], **options: Any) -> Any:
        """The work waits itself, so it is in a thread."""

        async def in_thread(attempt: aio.Attempt) -> Any:
            return await asyncio.to_thread(work, Driven(attempt))

        return drive(lambda: self.inner.once(contents, in_thread, **options))
