"""The one thread of a blocking client: it has the event loop in which the client's calls and renewals run."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ._core import AT_EXIT

T = TypeVar("T")

_log = logging.getLogger("latchgate")


class Runner:
    """The thread begins with the first call, and ends when the client and its leases are forgotten. A forked process gets its own."""

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        self._at_end = at_end
        # By process: `setdefault` is atomic, and unlike a mutex it cannot be held by another thread in the moment of a fork.
        self._threads: dict[int, _Thread] = {}

    def run(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None) -> T:
        """Runs it in the thread, and waits for its end. If the wait is interrupted (Ctrl-C), the coroutine is cancelled; if it has a result
        all the same, `undo` gets it, in the thread."""
        thread = self._thread()
        if thread.ident == threading.get_ident():
            coroutine.close()
            raise RuntimeError("a call in the client's own thread, for example in a finaliser, would wait for itself")
        done = threading.Event()
        task: list[asyncio.Task[T]] = []

        def begin() -> None:
            task.append(thread.loop.create_task(coroutine))
            task[0].add_done_callback(lambda _: done.set())

        def give_up() -> None:
            task[0].cancel()
            if undo is not None:
                task[0].add_done_callback(lambda task: task.cancelled() or task.exception() or undo(task.result()))

        # In a context of its own, because it may outlive that of the caller.
        thread.loop.call_soon_threadsafe(begin, context=contextvars.Context())
        try:
            done.wait()
        except BaseException:
            thread.loop.call_soon_threadsafe(give_up)
            raise
        return task[0].result()

    def _thread(self) -> _Thread:
        pid = os.getpid()
        thread = self._threads.get(pid)
        if thread is None:
            new = _Thread(self._at_end)
            thread = self._threads.setdefault(pid, new)
            if thread is new:
                end = weakref.finalize(self, _end, thread, pid)
                try:
                    thread.start()
                except RuntimeError:
                    end.detach()
                    del self._threads[pid]
                    raise
            else:
                new.loop.close()
        return thread


class _Thread(threading.Thread):
    def __init__(self, at_end: Callable[[], None]) -> None:
        super().__init__(name="latchgate", daemon=True)
        self.loop = _Loop()
        self._at_end = at_end

    def run(self) -> None:
        is_ended = False
        while not is_ended:
            try:
                self.loop.run_forever()
                is_ended = True
            except BaseException:
                _log.exception("the thread of the client goes on after an error")
        self.loop.run_until_complete(self.finish())
        self.loop.close()

    async def finish(self) -> None:
        # Those that end leave others behind, which give back.
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)
        self._at_end()
        # What it has closed ends in the next round of the loop.
        await asyncio.sleep(0)


class _Loop(asyncio.SelectorEventLoop):
    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        """In a thread for this one name, for which the end of the program does not wait."""
        found: asyncio.Future[Any] = self.create_future()

        def tell(how: Callable[[Any], None], what: Any) -> None:
            if not found.done():
                how(what)

        def look_up() -> None:
            try:
                answer = (found.set_result, socket.getaddrinfo(host, port, **hints))
            except (OSError, ValueError) as error:
                answer = (found.set_exception, error)  # type: ignore[assignment]
            try:
                self.call_soon_threadsafe(tell, *answer)
            except RuntimeError:
                pass  # the loop is closed

        try:
            threading.Thread(target=look_up, name="latchgate looks up a name", daemon=True).start()
        except RuntimeError:
            look_up()  # no thread can begin at the end of the program
        return await found


def _end(thread: _Thread, pid: int) -> None:
    """In a finaliser, the thread ends. At the end of the program it stays, for other `atexit` functions, but the program waits for what must
    reach a node."""
    if os.getpid() != pid:
        return
    done = threading.Event()

    def finish() -> None:
        thread.loop.create_task(thread.finish()).add_done_callback(lambda _: done.set())

    is_exit = not threading.main_thread().is_alive()
    thread.loop.call_soon_threadsafe(finish if is_exit else thread.loop.stop)
    if is_exit and thread is not threading.current_thread():
        done.wait(AT_EXIT + 1)
