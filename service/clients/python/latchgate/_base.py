"""What the blocking client and that of asyncio have in common: what they can do, and the requests for it."""

from __future__ import annotations

import os
import ssl
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Union
from urllib.parse import quote

from ._clock import now
from ._core import Core
from ._errors import Error, LeaseLost
from ._events import Reading
from ._gate import Attempt, Claim, Done, Durability, OnExpiry, OnOutage, claim
from ._http import check_no_login
from ._json import json_of, ms, one_of, says_nothing, seconds, typed
from ._lease import Granted, LeaseBase, Target
from ._nodes import Doubt
from ._renewals import Renewed
from ._scope import owner_of

# For giving back a lease that may have been granted to a caller that has gone. Without it, the lease ends by its TTL.
_GIVE_BACK_SECONDS = 2.0

Held = TypeVar("Held", bound=LeaseBase[Any])
Taken = TypeVar("Taken")


@dataclass(frozen=True)
class Revoking:
    """How many leases are revoked, and when the last of them ends: RFC 3339, by the store's clock; None if the lock was free."""

    leases: int
    deadline: str | None


@dataclass(frozen=True)
class Key:
    """A key of a multilock, with its mode: exclusive, or `shared`, or `permits` out of `limit`, for a `group`."""

    key: str
    shared: bool = False
    permits: int | None = None
    limit: int | None = None
    group: str | None = None
    group_limit: int | None = None


def _variable(name: str) -> str | None:
    value = os.environ.get(name)
    # The default would be another service, or other authorities.
    if value is not None and not value.strip():
        raise ValueError(f"{name} is set and empty")
    return value


def _authorities() -> ssl.SSLContext | None:
    path = (_variable("LATCHGATE_CA") or "").strip()
    try:
        return ssl.create_default_context(cafile=path) if path else None
    except OSError as error:
        raise ValueError(f"cannot read certificates from {path} (LATCHGATE_CA): {error}") from error


class ClientBase(Generic[Held, Taken]):
    """A client of the nodes with these base URLs. All durations are in seconds.

    - `urls`: one URL or several; if absent, those in the variable LATCHGATE_URL with commas in between, or
      http://127.0.0.1:7070. If a node does not answer, the next one is called.
    - `api_key`: if absent, that in the variable LATCHGATE_API_KEY, or none.
    - `retry_for`: when no node answers, a call ends after this time in all: beyond its wait, if a node has answered it before. A
      renewal is repeated until the lease ends, and the report that work was done for as long as the attempt lasts.
    - `timeout`: how long one node may take to answer, beyond the time that a call waits there; a third of the time that the call has
      left if that is less.
    - `wait_per_call`: how long one call waits at a node. Longer waits go on with tickets.
    - `ssl_context`: if absent, the authorities in the file that the variable LATCHGATE_CA names are trusted, or those of the system.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 5.0,
        retry_for: float = 2.0,
        wait_per_call: float = 20.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if urls is None:
            urls = _variable("LATCHGATE_URL") or "http://127.0.0.1:7070"
        if not isinstance(api_key, (str, type(None))):
            raise TypeError("api_key must be of the type str")
        texts = list(urls) if isinstance(urls, Iterable) and not isinstance(urls, str) else [urls]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("urls must be of the type str, or several of that type")
        for text in texts:
            check_no_login(text)
        urls = [url.strip() for text in texts for url in text.split(",")]
        api_key = (api_key or os.environ.get("LATCHGATE_API_KEY") or "").strip() or None
        ssl_context = ssl_context or _authorities()
        seconds(timeout=timeout, retry_for=retry_for, wait_per_call=wait_per_call)
        self._core = Core([url for url in urls if url], api_key, timeout, retry_for, wait_per_call, ssl_context)
        self._begin()

    def _begin(self) -> None:
        pass

    def lock(
        self,
        key: str,
        *,
        ttl: float = 30.0,
        wait: float = 60.0,
        shared: bool = False,
        permits: int | None = None,
        limit: int | None = None,
        group: str | None = None,
        group_limit: int | None = None,
        owner: str | None = None,
        priority: int | None = None,
        reentrant: bool = False,
        barge: bool = False,
        delay: float | None = None,
        min_hold: float | None = None,
        max_hold: float | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Taken:
        """Takes the lock, and returns a lease that renews itself until it is released.

        Waits in the queue for `wait` seconds (`math.inf`: without a limit), and then raises `WaitTimeout`; without a wait, a lock
        that is held raises `LockHeld`. With `shared`, other readers may hold it too; with `permits` (of `limit`) it is a
        semaphore: free permits go to the waiting `group` that has fewest, and with `group_limit` the lock is not granted if the
        group would have more. With `min_hold` the lock stays taken until so long after the grant, also after an earlier release. The other
        fields are those of Latchgate's API.

        With `reentrant`, a thread or asyncio task that is inside of `with client.lock(key)` gets a nested lease with the same token
        at once. With a named `owner`, so does every caller that names it.
        """
        typed(bool, barge=barge)
        lock = {**_mode(shared, permits, limit, group, group_limit), "barge": barge or None}
        common = _common(ttl, priority, delay, min_hold, max_hold, metadata)
        return self._acquire((key,), False, ttl, wait, owner, reentrant, {**lock, **common})

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
        min_hold: float | None = None,
        max_hold: float | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Taken:
        """Takes all locks or none, up to 64. A `Key` says in which mode. Otherwise like `lock`."""
        if isinstance(keys, str):
            raise TypeError(f"keys is {keys!r}, and must be several keys")
        each = [key if isinstance(key, Key) else Key(key) for key in keys]
        locks = [
            _present({"key": key.key, **_mode(key.shared, key.permits, key.limit, key.group, key.group_limit)})
            for key in each
        ]
        common = _common(ttl, priority, delay, min_hold, max_hold, metadata)
        return self._acquire(tuple(key.key for key in each), True, ttl, wait, owner, reentrant, {"locks": locks, **common})

    def _claim(
        self,
        make: Callable[[Claim], Attempt],
        contents: Any,
        operation: str,
        checked: Any,
        ttl: float,
        wait: float,
        on_expiry: OnExpiry,
        durability: Durability | None,
        on_outage: OnOutage | None,
        retention: float | None,
        permanent: bool,
        label: str | None,
    ) -> Coroutine[Any, Any, Union[Attempt, Done[Any]]]:
        typed(str, operation=operation)
        if not operation:
            raise TypeError("an operation needs a name: operation is missing")
        typed(bool, permanent=permanent)
        typed(str, label=label)
        seconds(ttl=ttl, wait=wait)
        if permanent and retention is not None:
            raise ValueError("a success that is permanent has no retention")
        one_of(OnExpiry, on_expiry=on_expiry)
        one_of(Durability, **_present({"durability": durability}))
        one_of(OnOutage, **_present({"on_outage": on_outage}))
        # A repeat is about the same operation, whatever the caller does with its contents meanwhile. Copied here, in the caller's thread:
        # large contents must not keep the renewals of other leases waiting.
        request = _present(
            {
                "operation": operation,
                "contents": contents,
                "checked": checked,
                "ttl_ms": ms("ttl", ttl),
                "on_expiry": on_expiry,
                "durability": durability,
                "retention_ms": ms("retention", retention),
                "permanent": permanent or None,
                "label": label,
            }
        )
        if says_nothing(request.get("contents")):
            raise ValueError(f"the contents {contents!r} say nothing: all callers that have lost theirs would share one operation")
        return claim(self._core, request, make, length=ttl, wait=wait, on_outage=on_outage)

    async def _fence(self, key: str, token: int) -> None:
        typed(str, key=key)
        typed(int, token=token)
        await self._core.call(_path(key, "fence"), {"token": token}, until=now() + self._core.retry_for)

    async def _revoke(self, key: str, reason: str | None, by: str | None, grace: float | None, token: int | None) -> Revoking:
        body = _present({"reason": reason, "by": by, "grace_ms": ms("grace", grace), "token": token})
        until = now() + self._core.retry_for
        answer = await self._core.call(_path(key, "revoke"), body, until=until, repeat_in_doubt=token is not None)
        return Revoking(answer.body["leases"], answer.body["deadline"])

    def _reading(self, key: str | None, prefix: str, after: str | None) -> Reading:
        path = f"/v1/events?prefix={quote(prefix, safe='')}" if key is None else _path(key, "events")
        return Reading(self._core, path, after)

    def _lease(self, granted: Granted) -> Held:
        raise NotImplementedError

    def _take(self, lease: Coroutine[Any, Any, Held]) -> Taken:
        raise NotImplementedError

    def _acquire(
        self, keys: tuple[str, ...], many: bool, ttl: float, wait: float, named: str | None, reentrant: bool, fields: dict[str, Any]
    ) -> Taken:
        # Here and not in the coroutine, which may run in another thread or task than the caller.
        for key in keys:
            typed(str, key=key)
            if key is None:
                raise TypeError("a lock needs a key")
        typed(str, owner=named)
        typed(bool, reentrant=reentrant)
        seconds(ttl=ttl, wait=wait)
        owner, is_nested = (named, reentrant) if named is not None else owner_of(self._core, keys, reentrant)
        fields = _present({**fields, "owner": owner, "reentrant": is_nested or None})
        return self._take(self._acquired(keys, many, ttl, wait, named is not None, fields))

    async def _acquired(
        self, keys: tuple[str, ...], many: bool, ttl: float, wait: float, has_named_owner: bool, fields: dict[str, Any]
    ) -> Held:
        core = self._core
        wait_until = now() + wait
        until = now() + core.retry_for
        while True:
            # A fresh id for each lease: a repeated acquire gets the same grant.
            target = Target(core, keys, str(uuid.uuid4()), many)
            body = {**fields, "lease_id": target.lease_id}
            doubt = Doubt()
            try:
                answer = await core.call(target.path("acquire"), body, until=until, wait_until=wait_until, doubt=doubt, needs={"ttl_ms": int})
                first = Renewed(answer.sent, answer.body["ttl_ms"] / 1000, answer.body)
                # After a wait, the lease began long after the request was sent: a renewal tells until when it lasts.
                if first.until - now() < ttl * 2 / 3:
                    ends = max(until, wait_until + core.retry_for)
                    first = await target.renew(min(now() + min(ttl, core.retry_for), ends))
                return self._lease(Granted(target, answer.body, ttl, first, has_named_owner))
            except LeaseLost:
                # It was granted in an answer that was lost, and has ended since.
                if now() >= max(until, wait_until):
                    raise
                until = now() + core.retry_for
            except BaseException as error:
                if doubt.is_set or not isinstance(error, Error):
                    give_up_at = now() + max(_GIVE_BACK_SECONDS, core.retry_for)
                    await core.give_back(error, f"a lease of {target}", lambda: target.release(give_up_at))
                raise

    def __repr__(self) -> str:
        return f"Client({self._core!r})"


def _path(key: str, verb: str) -> str:
    return f"/v1/locks/{quote(key, safe='')}/{verb}"


def _mode(
    shared: bool, permits: int | None, limit: int | None, group: str | None, group_limit: int | None
) -> dict[str, Any]:
    typed(bool, shared=shared)
    typed(int, permits=permits, limit=limit, group_limit=group_limit)
    typed(str, group=group)
    fields = {"permits": permits, "limit": limit, "group": group, "group_limit": group_limit}
    if all(value is None for value in fields.values()):
        return {"mode": "shared" if shared else None}
    if shared:
        raise ValueError("a lock is either shared or has permits")
    return {"mode": "permits", **fields}


def _common(
    ttl: float,
    priority: int | None,
    delay: float | None,
    min_hold: float | None,
    max_hold: float | None,
    metadata: dict[str, Any] | None,
) -> dict[str, Any]:
    typed(int, priority=priority)
    typed(dict, metadata=metadata)
    return {
        "ttl_ms": ms("ttl", ttl),
        "priority": priority,
        "delay_ms": ms("delay", delay),
        "min_hold_ms": ms("min_hold", min_hold),
        "max_hold_ms": ms("max_hold", max_hold),
        "metadata": metadata,
    }


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that are not absent. Raises TypeError or ValueError with the name of a field that JSON cannot say."""
    return {name: json_of(value, name) for name, value in fields.items() if value is not None}
