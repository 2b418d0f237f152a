"""A lease that is held, of one key or of several: what the blocking one and that of asyncio have in common."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from ._clock import now
from ._core import Core
from ._errors import Error, LeaseLost, Unavailable
from ._http import FOREIGN_ANSWER
from ._renewals import Flag, Keeper, Renewed

_log = logging.getLogger("latchgate")

Lost = TypeVar("Lost", bound=Flag)


@dataclass(frozen=True)
class Revocation:
    """An operator asks the holder to release. The lease ends at `deadline` (RFC 3339, by the store's clock)."""

    deadline: str
    reason: str | None
    by: str | None


@dataclass(frozen=True)
class Target:
    """Where the calls about a lease go, and what they carry."""

    core: Core
    keys: tuple[str, ...]
    lease_id: str
    many: bool

    def path(self, verb: str) -> str:
        if self.many:
            return f"/v1/{'multilocks' if verb == 'acquire' else 'leases'}/{verb}"
        return f"/v1/locks/{quote(self.keys[0], safe='')}/{verb}"

    @property
    def leases(self) -> list[dict[str, str]]:
        return [{"key": key, "lease_id": self.lease_id} for key in self.keys]

    def body(self) -> dict[str, Any]:
        """Of a renewal or a release."""
        return {"leases": self.leases} if self.many else {"lease_id": self.lease_id}

    async def renew(self, until: float) -> Renewed:
        answer = await self.core.call(self.path("renew"), self.body(), until=until, needs={"results": list} if self.many else {"ttl_ms": int})
        leases: list[Any] = answer.body["results"] if self.many else [answer.body]
        all_ms = [lease.get("ttl_ms") for lease in leases if isinstance(lease, dict)]
        left_ms = [ms for ms in all_ms if type(ms) is int and ms > 0]
        if len(left_ms) != len(self.keys):
            raise Unavailable(FOREIGN_ANSWER, f"the answer to a renewal of {self} does not say how long each lease lasts")
        return Renewed(answer.sent, min(left_ms) / 1000, answer.body)

    async def release(self, until: float) -> None:
        await self.core.call(self.path("release"), self.body(), until=until)

    def __str__(self) -> str:
        return ", ".join(self.keys)


@dataclass(frozen=True)
class Granted:
    """What an acquire has got, for which length, and whether the caller has named the owner. Then it may be that of other leases, too."""

    target: Target
    answer: Mapping[str, Any]
    length: float
    first: Renewed
    has_named_owner: bool


class LeaseBase(Generic[Lost]):
    """A lease that renews itself in the background until it is released. Leaving its `with` block releases it.

    - `token` is higher than that of every earlier lease of the key: send it with each write. For several keys it is that of the
      first; `tokens` has all.
    - `lost` is set when the lease has ended before it was released.

    It belongs to its process: in one that is forked from it, `remaining` is 0, and the end of the block and a release do nothing.
    """

    def __init__(self, granted: Granted, lost: Lost) -> None:
        self._target = target = granted.target
        self.lost: Lost = lost
        self._keeper = Keeper(str(target), granted.length, granted.first, lost, leases=target.leases)
        target.core.renewals.keep(self._keeper)
        self.has_named_owner = granted.has_named_owner
        self._ended = weakref.finalize(self, self._keeper.stop)
        self._released = False
        self._pid = os.getpid()
        self.keys: tuple[str, ...] = target.keys
        self.lease_id: str = target.lease_id
        self.owner: str = granted.answer["owner"]
        locks = granted.answer["locks"] if target.many else [granted.answer]
        self.tokens: dict[str, int] = {lock["key"]: lock["token"] for lock in locks}

    @property
    def key(self) -> str:
        """The key; the first one if there are several."""
        return self.keys[0]

    @property
    def token(self) -> int:
        return self.tokens[self.key]

    @property
    def revocation(self) -> Revocation | None:
        """Set when a renewal has shown that an operator asks for the lock: finish, and release it."""
        asked = self._keeper.last.revocation
        return Revocation(asked["deadline"], asked.get("reason"), asked.get("by")) if asked else None

    def remaining(self) -> float:
        """Seconds for which the lease is surely live; 0 if it is lost or released, and in a process that was forked from the holder's."""
        return self._keeper.remaining() if self._is_here and not self._released else 0.0

    def check(self) -> None:
        """Raises `LeaseLost` if the lease may have ended. Call it before each step that cannot be undone."""
        if self.remaining() <= 0:
            raise self._loss()

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that took the lease, and not one that was forked from it."""
        return self._pid == os.getpid()

    def is_of(self, core: Core) -> bool:
        return self._target.core is core

    async def _release(self) -> None:
        if self._released or not self._is_here:
            return
        left = self.remaining()
        self._released = True
        self._ended()
        loss = self._keeper.loss
        try:
            if not isinstance(loss, LeaseLost) or loss.status is None or self._target.many:
                # Also if the loss is only presumed, or of one key of several: no lease shall stay behind.
                until = now() + min(left or 1.0, self._target.core.retry_for)
                await self._target.core.insist(f"the release of {self._target}", lambda: self._target.release(until))
        except Error:
            if loss is None:
                raise
        if loss is not None:
            raise self._loss()

    async def _leave(self, error: BaseException | None) -> None:
        """An error of the block is more important than that of the release."""
        try:
            await self._release()
        except LeaseLost:
            if error is None:
                raise
        except Error as failure:
            _log.warning("the lease of %s is not released, and ends by its TTL: %s", self._target, failure)

    def _loss(self) -> LeaseLost:
        loss = self._keeper.loss
        if isinstance(loss, LeaseLost):
            return LeaseLost(loss.code, loss.detail, loss.status, loss.fields)
        if not self._is_here:
            return LeaseLost("lease-lost", f"the lease of {self._target} belongs to the process {self._pid}", None, {"why": "unknown"})
        return LeaseLost("lease-lost", f"the lease of {self._target} is released", None, {"why": "released"})

    def __repr__(self) -> str:
        return f"<Lease of {self._target}, token {self.token}, {self.remaining():.1f} s left>"
