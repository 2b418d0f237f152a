"""The blocking client."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

from ._base import ClientBase, Revoking
from ._errors import LockHeld
from ._events import Event, Reading
from ._gate import AttemptBase, Claim, Done, Durability, OnExpiry, OnOutage, check_work
from ._lease import Granted, LeaseBase
from ._scope import enter, leave
from ._thread import Runner

Result = TypeVar("Result")


class Lease(LeaseBase[threading.Event]):
    __doc__ = f"{LeaseBase.__doc__}    `lost.wait(seconds)` waits for that.\n"

    def __init__(self, granted: Granted, runner: Runner) -> None:
        super().__init__(granted, threading.Event())
        self._runner = runner

    def release(self) -> None:
        """Releases the lease. Raises `LeaseLost` if it had ended before, and `Unavailable` if no node answers; then the lease
        ends by its TTL. A second release does nothing."""
        self._runner.run(self._release())

    def __enter__(self) -> Lease:
        enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        leave(self)
        self._runner.run(self._leave(error))


class Attempt(AttemptBase[threading.Event]):
    def __init__(self, claim: Claim) -> None:
        super().__init__(claim, threading.Event())


class Events(Iterator[Event]):
    """Iterates over the events, without end. After a broken connection it goes on at another node, behind the last event.

    Raises `Unavailable` when no node has answered for `retry_for`; iterate again to go on.
    """

    def __init__(self, reading: Reading, runner: Runner) -> None:
        self._reading = reading
        self._runner = runner

    @property
    def last_id(self) -> str | None:
        """Of the last event that came whole, or how far the stream has been read beyond it: `after` of a later iterator."""
        return self._reading.last_id

    def __next__(self) -> Event:
        event = self._runner.run(self._reading.next())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Ends the iteration, also in another thread."""
        self._runner.run(self._reading.close())

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Client(ClientBase[Lease, Lease]):
    __doc__ = f"{ClientBase.__doc__}\n    Threads may share it. It has one thread in the background, from its first call on.\n    "

    def _begin(self) -> None:
        self._runner = Runner(self._core.close)

    def try_lock(self, key: str, **options: Any) -> Lease | None:
        """Takes the lock if it is free; else returns None. Has the options of `lock` but `wait`."""
        try:
            return self.lock(key, wait=0.0, **options)
        except LockHeld:
            return None

    def once(
        self,
        contents: Any,
        work: Callable[[Attempt], Result],
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
        """Runs `work(attempt)` if this operation with these contents (JSON) has not succeeded yet, and stores its result (JSON).

        If it has succeeded, returns the stored result, for `retention` (a day if absent), or for ever if `permanent`. If another attempt
        runs, waits up to `wait` seconds for its end, and then raises `OperationInProgress`. Heartbeats keep the attempt while the work runs.

        If the work raises an exception or its process dies, the outcome is unknown: callers get `OperationUnknown` until an operator
        decides, who sees the `label` (a line of at most 256 bytes) and the exception. If the work raises `NotDone`, or with `on_expiry="retry"`, the next caller runs it again.

        While the gate is away (503 `store-unavailable`, or no node answers), raises `Unavailable`. With `on_outage="proceed"` the work runs
        all the same, unguarded, and the run is entered in the background when the gate is back, for as long as the process lives.
        """
        check_work(work, is_async=False)
        claim = self._claim(
            Attempt, contents, operation, checked, ttl, wait, on_expiry, durability, on_outage, retention, permanent, label
        )
        attempt = self._runner.run(claim, lambda late: isinstance(late, Done) or self._core.background("an attempt", late._not_begun))
        if isinstance(attempt, Done):
            return attempt
        try:
            result = work(attempt)
            if inspect.isawaitable(result):
                raise TypeError("the work has returned what must be awaited: it belongs to a client of latchgate.aio")
        except BaseException as error:
            self._runner.run(attempt._failed(error))
            raise
        return self._runner.run(attempt._succeeded(result, self._runner))

    def fence(self, key: str, token: int) -> None:
        """For a resource that cannot store tokens: raises `StaleToken` if a higher token has been granted or presented for the key."""
        self._runner.run(self._fence(key, token))

    def revoke(
        self, key: str, *, reason: str | None = None, by: str | None = None, grace: float | None = None, token: int | None = None
    ) -> Revoking:
        """Asks the holders to release, or only those with this token. Their leases end after `grace` seconds (10 if absent).

        If the answer is lost, that is an `Unavailable`, and not repeated without a `token`: it could ask the next holder.
        """
        return self._runner.run(self._revoke(key, reason, by, grace, token))

    def events(self, key: str | None = None, *, prefix: str = "", after: str | None = None) -> Events:
        """Iterates over the events of a key, or of all keys that begin with `prefix`, from now on; with the `id` of an event as `after`,
        from the next one on."""
        return Events(self._reading(key, prefix, after), self._runner)

    def _lease(self, granted: Granted) -> Lease:
        return Lease(granted, self._runner)

    def _take(self, lease: Coroutine[Any, Any, Lease]) -> Lease:
        return self._runner.run(lease, _release_late)


def _release_late(lease: Lease) -> None:
    lease._target.core.background("a lease", lease._release)
