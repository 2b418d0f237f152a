"""A lease that is held, of one key or of several."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

from ._clock import now
from ._errors import Error, LeaseLost
from ._nodes import Nodes
from ._renewals import Keeper, Renewals, Renewed
from ._scope import enter, leave

_log = logging.getLogger("latchgate")


@dataclass(frozen=True)
class Revocation:
    """An operator asks the holder to release. The lease ends at `deadline` (RFC 3339, by the store's clock)."""

    deadline: str
    reason: str | None
    by: str | None


@dataclass(frozen=True)
class Target:
    """Where the calls about a lease go, and what they carry."""

    nodes: Nodes
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

    def renew(self, until: float) -> Renewed:
        answer = self.nodes.call(self.path("renew"), self.body(), until=until)
        left_ms = min(lease["ttl_ms"] for lease in answer.body.get("results", [answer.body]))
        return Renewed(answer.sent, left_ms / 1000, answer.body)

    def __str__(self) -> str:
        return ", ".join(self.keys)


class Lease:
    """A lease that renews itself in the background until it is released. Leaving its `with` block releases it.

    - `token` is higher than that of every earlier lease of the key: send it with each write. For several keys it is that of the
      first; `tokens` has all.
    - `lost` is set when the lease has ended before it was released. `lost.wait(seconds)` waits for that.
    """

    def __init__(
        self, target: Target, granted: Mapping[str, Any], length: float, first: Renewed, renewals: Renewals, has_named_owner: bool
    ) -> None:
        self._target = target
        self._keeper = Keeper(str(target), length, first, leases=target.leases)
        renewals.keep(self._keeper)
        # Whether the caller has named the owner. Then it may be that of other leases, too.
        self.has_named_owner = has_named_owner
        self._ended = weakref.finalize(self, self._keeper.stop)
        self._released = False
        self.keys: tuple[str, ...] = target.keys
        self.lease_id: str = target.lease_id
        self.owner: str = granted["owner"]
        locks = granted["locks"] if target.many else [granted]
        self.tokens: dict[str, int] = {lock["key"]: lock["token"] for lock in locks}
        self.lost: threading.Event = self._keeper.lost

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
        body = self._keeper.last.body
        for lease in body.get("results", [body]):
            asked = lease.get("revocation")
            if asked:
                return Revocation(asked["deadline"], asked.get("reason"), asked.get("by"))
        return None

    def remaining(self) -> float:
        """Seconds for which the lease is surely live; 0 if it is lost or released."""
        return 0.0 if self._released else self._keeper.remaining()

    def check(self) -> None:
        """Raises `LeaseLost` if the lease may have ended. Call it before each step that cannot be undone."""
        if self.remaining() <= 0:
            raise self._loss()

    def release(self) -> None:
        """Releases the lease. Raises `LeaseLost` if it had ended before, and `Unavailable` if no node answers; then the lease
        ends by its TTL. A second release does nothing."""
        if self._released:
            return
        left = self.remaining()
        self._released = True
        self._ended()
        loss = self._keeper.loss
        try:
            if not isinstance(loss, LeaseLost) or loss.status is None or self._target.many:
                # Also if the loss is only presumed, or of one key of several: no lease shall stay behind.
                nodes = self._target.nodes
                until = now() + min(left or 1.0, nodes.retry_for)
                nodes.call(self._target.path("release"), self._target.body(), until=until)
        except Error:
            if loss is None:
                raise
        if loss is not None:
            raise self._loss()

    def is_of(self, nodes: Nodes) -> bool:
        return self._target.nodes is nodes

    def _loss(self) -> LeaseLost:
        loss = self._keeper.loss
        if isinstance(loss, LeaseLost):
            return LeaseLost(loss.code, loss.detail, loss.status, loss.fields)
        return LeaseLost("lease-lost", f"the lease of {self._target} is released", None, {"why": "released"})

    def __enter__(self) -> Lease:
        enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """An error of the block is more important than that of the release."""
        leave(self)
        try:
            self.release()
        except LeaseLost:
            if error is None:
                raise
        except Error as failure:
            _log.warning("the lease of %s is not released, and ends by its TTL: %s", self._target, failure)

    def __repr__(self) -> str:
        return f"<Lease of {self._target}, token {self.token}, {self.remaining():.1f} s left>"
