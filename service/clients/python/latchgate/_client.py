"""The client."""

from __future__ import annotations

import math
import os
import ssl
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union

from ._clock import now
from ._errors import LeaseLost, LockHeld, Refused
from ._gate import Attempt, Done, OnExpiry, once
from ._keeper import Renewed
from ._lease import Lease, Target
from ._nodes import Nodes, call_quietly

Result = TypeVar("Result")

# For giving back a lease that may have been granted to a caller that has gone.
_GIVE_BACK_SECONDS = 2.0


@dataclass(frozen=True)
class Key:
    """A key of a multilock, with its mode: exclusive, or `shared`, or `permits` out of `limit`."""

    key: str
    shared: bool = False
    permits: int | None = None
    limit: int | None = None


class Client:
    """A client of the nodes with these base URLs. Threads may share it. All durations are in seconds.

    - `urls`: one URL or several; if absent, those in the variable LATCHGATE_URL with commas in between, or
      http://127.0.0.1:7070. If a node does not answer, the next one is called.
    - `api_key`: if absent, that in the variable LATCHGATE_API_KEY, or none.
    - `timeout`: how long a node may take to answer, beyond the time that a call waits there.
    - `retry_for`: for how long a call is repeated when no node answers. A call that waits is repeated until its wait is over, and a
      renewal until the lease ends.
    - `wait_per_call`: how long one call waits at a node. Longer waits go on with tickets.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 5.0,
        retry_for: float = 15.0,
        wait_per_call: float = 20.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if urls is None:
            urls = os.environ.get("LATCHGATE_URL") or "http://127.0.0.1:7070"
        if isinstance(urls, str):
            urls = [url.strip() for url in urls.split(",")]
        api_key = api_key or os.environ.get("LATCHGATE_API_KEY")
        self._nodes = Nodes(urls, api_key, timeout, retry_for, wait_per_call, ssl_context)

    def lock(
        self,
        key: str,
        *,
        ttl: float = 30.0,
        wait: float = 60.0,
        shared: bool = False,
        permits: int | None = None,
        limit: int | None = None,
        owner: str | None = None,
        priority: int | None = None,
        reentrant: bool = False,
        barge: bool = False,
        delay: float | None = None,
        max_hold: float | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Lease:
        """Takes the lock, and returns a lease that renews itself until it is released.

        Waits in the queue for `wait` seconds (`math.inf`: without a limit), and then raises `WaitTimeout`; without a wait, a lock
        that is held raises `LockHeld`. With `shared`, other readers may hold it too; with `permits` (of `limit`) it is a
        semaphore. The other fields are those of Latchgate's API.
        """
        lock = {**_mode(shared, permits, limit), "barge": barge or None}
        common = _common(ttl, owner, priority, reentrant, delay, max_hold, metadata)
        return self._acquire((key,), False, ttl, wait, {**lock, **common})

    def try_lock(self, key: str, **options: Any) -> Lease | None:
        """Takes the lock if it is free; else returns None. Has the options of `lock` but `wait`."""
        try:
            return self.lock(key, wait=0.0, **options)
        except LockHeld:
            return None

    def multilock(
        self,
        keys: Sequence[Union[str, Key]],
        *,
        ttl: float = 30.0,
        wait: float = 60.0,
        owner: str | None = None,
        priority: int | None = None,
        reentrant: bool = False,
        delay: float | None = None,
        max_hold: float | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Lease:
        """Takes all locks or none, up to 64. A `Key` says in which mode. Otherwise like `lock`."""
        each = [key if isinstance(key, Key) else Key(key) for key in keys]
        locks = [_present({"key": key.key, **_mode(key.shared, key.permits, key.limit)}) for key in each]
        common = _common(ttl, owner, priority, reentrant, delay, max_hold, metadata)
        return self._acquire(tuple(key.key for key in each), True, ttl, wait, {"locks": locks, **common})

    def once(
        self,
        contents: Any,
        work: Callable[[Attempt], Result],
        *,
        operation: str,
        checked: Any = None,
        ttl: float = 60.0,
        wait: float = 60.0,
        on_expiry: OnExpiry = "retry",
        durability: Literal["fast", "durable"] | None = None,
        on_outage: Literal["closed", "fallback", "open"] | None = None,
        retention: float | None = None,
        permanent: bool = False,
    ) -> Done[Result]:
        """Runs `work(attempt)` if this operation with these contents (JSON) has not succeeded yet, and stores its result (JSON).

        If it has succeeded, returns the stored result. If another attempt runs, waits up to `wait` seconds for its end, and then
        raises `OperationInProgress`. Heartbeats keep the attempt while the work runs.

        If the work raises an exception, the next caller may run it again; with `on_expiry="block"` the outcome is unknown instead,
        and callers get `OperationUnknown` until an operator decides, unless the exception is a `NotDone`.
        """
        request = {
            "operation": operation,
            "contents": contents,
            "checked": checked,
            "ttl_ms": _ms(ttl),
            "on_expiry": on_expiry,
            "durability": durability,
            "on_outage": on_outage,
        }
        keep = _present({"retention_ms": _ms(retention), "permanent": permanent or None})
        return once(self._nodes, _present(request), work, length=ttl, wait=wait, keep=keep)

    def _acquire(self, keys: tuple[str, ...], many: bool, ttl: float, wait: float, fields: dict[str, Any]) -> Lease:
        wait_until = now() + wait
        until = max(wait_until, now() + self._nodes.retry_for)
        while True:
            # A fresh id for each lease: a repeated acquire gets the same grant.
            target = Target(self._nodes, keys, str(uuid.uuid4()), many)
            body = _present({**fields, "lease_id": target.lease_id})
            try:
                answer = self._nodes.call(target.path("acquire"), body, until=until, wait_until=wait_until)
                first = Renewed(answer.sent, answer.body["ttl_ms"] / 1000, answer.body)
                # After a wait, the lease began long after the request was sent: a renewal tells until when it lasts.
                if first.until - now() < ttl * 2 / 3:
                    first = target.renew(now() + ttl)
                return Lease(target, answer.body, ttl, first)
            except LeaseLost:
                # It was granted in an answer that was lost, and has ended since.
                if now() >= until:
                    raise
            except (LockHeld, Refused):
                raise
            except BaseException:
                call_quietly(self._nodes, target.path("release"), target.body(), _GIVE_BACK_SECONDS)
                raise

    def __repr__(self) -> str:
        return f"Client({self._nodes!r})"


def _mode(shared: bool, permits: int | None, limit: int | None) -> dict[str, Any]:
    if permits is None and limit is None:
        return {"mode": "shared" if shared else None}
    if shared:
        raise ValueError("a lock is either shared or has permits")
    return {"mode": "permits", "permits": permits, "limit": limit}


def _common(
    ttl: float,
    owner: str | None,
    priority: int | None,
    reentrant: bool,
    delay: float | None,
    max_hold: float | None,
    metadata: dict[str, Any] | None,
) -> dict[str, Any]:
    return {
        "ttl_ms": _ms(ttl),
        "owner": owner,
        "priority": priority,
        "reentrant": reentrant or None,
        "delay_ms": _ms(delay),
        "max_hold_ms": _ms(max_hold),
        "metadata": metadata,
    }


def _ms(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not math.isfinite(seconds):
        raise ValueError("the duration must be finite")
    return round(seconds * 1000)


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
