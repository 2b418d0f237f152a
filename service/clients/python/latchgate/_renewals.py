"""Keeps the leases and attempts of one client alive from its event loop, and notices when one is lost. Leases that are due go in one
request together."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ._clock import now
from ._errors import AttemptLost, Error, LeaseLost, Unavailable, of_problem
from ._http import NoAnswer, encoded
from ._nodes import Nodes

_log = logging.getLogger("latchgate")

# Longest sleep at a time: while the machine is suspended, timers stand still, and the clock of leases does not.
_SLICE = 0.25
# The most that a node accepts.
_LEASES_PER_CALL_MAX = 500
# Less than the longest body that a node reads, and than a proxy lets pass that is configured for 500 kB.
_BYTES_PER_CALL_MAX = 450_000
# A lease that has more than so many times the time left of another one goes in another request: the shortest decides how long an answer
# may take.
_SPREAD = 8
# A request without an answer is repeated in so many parts.
_PARTS = 16
_TIMEOUT_MIN = 0.02
_PAUSE_MIN, _PAUSE_MAX = 0.1, 1.0


class Flag(Protocol):
    """A `threading.Event`, or one of asyncio. `set` may be called in any thread."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


@dataclass(frozen=True)
class Renewed:
    """What a renewal has shown: when it was sent, and what the lease had left then, in seconds."""

    sent: float
    left: float
    body: dict[str, Any]

    @property
    def until(self) -> float:
        """The lease ends no earlier, by this machine's clock."""
        return self.sent + self.left

    @property
    def revocation(self) -> dict[str, Any] | None:
        """What an operator asks; of several keys, that with the earliest deadline."""
        asked = [lease["revocation"] for lease in self.body.get("results", [self.body]) if lease.get("revocation")]
        return min(asked, key=lambda revocation: revocation.get("deadline_ms", math.inf), default=None)

    def ended(self, name: str) -> LeaseLost:
        """Why the lease has ended now, for all that this machine knows."""
        asked = self.revocation
        if asked is None or asked.get("deadline_ms", math.inf) / 1000 > self.left:
            return LeaseLost("lease-lost", f"no renewal of {name} was answered in time", None, {"why": "unanswered"})
        by, reason = asked.get("by") or "an operator", f": {asked['reason']}" if asked.get("reason") else ""
        fields = {"why": "revoked", "by": asked.get("by"), "reason": asked.get("reason")}
        return LeaseLost("lease-lost", f"{by} has revoked the lease of {name}{reason}", None, fields)


class Keeper:
    """A lease (of one key or of several, in `leases`), or an attempt with its `heartbeat`: what is known of it, and when to renew it.

    It knows nothing of the object that the caller holds: when that is forgotten without a release, the renewals stop.
    """

    def __init__(
        self,
        name: str,
        length: float,
        first: Renewed,
        lost: Flag,
        *,
        leases: Sequence[dict[str, str]] = (),
        heartbeat: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self.name = name
        self.leases = leases
        self.bytes = len(encoded(leases))
        self.heartbeat = heartbeat
        self.lost = lost
        # Whether a request with it has no answer yet.
        self.is_sent = False
        # The index of the node that was asked last and has not renewed it: each is asked in turn, whatever other calls have found meanwhile.
        self.asked: int | None = None
        # With how many others it may go in one request. Less after a request without an answer, which may be the fault of one of them.
        self.together = _LEASES_PER_CALL_MAX
        self._length = length
        self._failures = 0
        # At most one entry, how it ended: the loss, or None for a stop. `setdefault` is atomic, so whichever comes first counts, also
        # in a finaliser, which must not wait for a mutex.
        self._end: dict[str, Error | None] = {}
        self.renewed(first)

    @property
    def loss(self) -> Error | None:
        return self._end.get("how")

    @property
    def is_over(self) -> bool:
        return bool(self._end)

    def remaining(self) -> float:
        """Seconds until the lease may have ended; 0 if it is lost."""
        if self.loss is not None:
            return 0.0
        left = self.last.until - now()
        if left <= 0:
            self.lose(self.last.ended(self.name))
        return max(left, 0.0)

    def stop(self) -> None:
        """Ends the renewals. Afterwards the lease is not reported as lost."""
        self._end.setdefault("how", None)

    def lose(self, loss: Error) -> None:
        if self._end.setdefault("how", loss) is loss:
            self.lost.set()
            _log.warning("the lease of %s is lost: %s", self.name, loss)

    def renewed(self, renewed: Renewed) -> None:
        # The lower bound is for leases that a revocation or `max_hold` is ending: each renewal leaves them shorter.
        pause = max(renewed.left / 3, self._length / 10) * random.uniform(0.9, 1.0)
        self.last = renewed
        self.due = renewed.sent + pause
        # From then on it goes with leases that are due, so that leases of one length soon go together.
        self.early = renewed.sent + pause / 2
        self._failures = 0
        self.asked = None
        self.together = _LEASES_PER_CALL_MAX

    def failed(self, error: Error, nodes: int, retry_after: float) -> None:
        """A renewal was not answered, or refused for another reason than a loss. `remaining` reports the loss when the lease has ended."""
        _log.log(logging.DEBUG if self._failures else logging.WARNING, "the lease of %s is not renewed: %s", self.name, error)
        self._failures += 1
        rounds, tried = divmod(self._failures, nodes)
        pause = 0.0
        if tried == 0:
            pause = max(min(_PAUSE_MIN * 2 ** min(rounds - 1, 10), _PAUSE_MAX), retry_after) * random.uniform(1.0, 1.5)
        at = now()
        self.due = self.early = at + max(min(pause, (self.last.until - at) / 4), 0.0)


class Renewals:
    """The timer of one client, in its event loop. It stands still when there is nothing to keep."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.forget()

    def forget(self) -> None:
        """Begins anew, in another event loop or process: the leases so far belong to the one before."""
        self._keepers: list[Keeper] = []
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._requests: set[asyncio.Task[None]] = set()

    def keep(self, keeper: Keeper) -> None:
        self._keepers.append(keeper)
        if self._timer is None or min(keeper.due, keeper.last.until) < self._wakes_at:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = (keeper.due for keeper in self._keepers if not keeper.is_sent)
        ends = (keeper.last.until for keeper in self._keepers)
        at = now()
        self._wakes_at = min([*due, *ends, at + _SLICE])
        # In a context of its own: that of the caller may have the leases that it is inside of, also those that it forgets.
        pause = max(self._wakes_at - at, 0.001)
        self._timer = asyncio.get_running_loop().call_later(pause, self._look, context=contextvars.Context())

    def _look(self) -> None:
        self._timer = None
        self._keepers = [keeper for keeper in self._keepers if not keeper.is_over and keeper.remaining() > 0]
        if not self._keepers:
            return
        try:
            for batch in _batches([keeper for keeper in self._keepers if not keeper.is_sent], now()):
                for keeper in batch:
                    keeper.is_sent = True
                request = asyncio.ensure_future(self._renew(batch))
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)
        finally:
            self._arm()

    async def _renew(self, batch: list[Keeper]) -> None:
        error: Error
        retry_after = 0.0
        try:
            path, body = _request(batch)
            left = min(keeper.last.until for keeper in batch) - now()
            # Other nodes can be tried before the first of them ends.
            index = self._nodes.after(batch[0].asked)
            for keeper in batch:
                keeper.asked = index
            reply = await self._nodes.send(path, body, min(self._nodes.timeout, max(left / 3, _TIMEOUT_MIN)), index)
            if batch[0].heartbeat:
                results = [[{"status": reply.status, **reply.body}]]
            else:
                results = _results(batch, reply.body)
            if results:
                return self._settle(batch, None, reply.sent, results)
            error = of_problem(reply.status, {"code": "no-answer", **reply.body})
            retry_after = _retry_after(reply.body)
            if _set_apart(batch, reply.body):
                for keeper in batch:
                    keeper.asked = None  # the node has answered
                return self._done(batch)
        except NoAnswer as no_answer:
            error, retry_after = Unavailable("no-answer", str(no_answer)), no_answer.retry_after
            for keeper in batch:
                keeper.together = max(len(batch) // _PARTS, 1)
        except Exception as unforeseen:
            _log.exception("a renewal has failed")
            error = Unavailable("no-answer", repr(unforeseen))
        self._settle(batch, error, retry_after=retry_after)

    def _settle(
        self,
        batch: list[Keeper],
        error: Error | None,
        sent: float = 0.0,
        results: list[list[dict[str, Any]]] | None = None,
        retry_after: float = 0.0,
    ) -> None:
        """Each of the batch gets its own result, or all get the error."""
        for index, keeper in enumerate(batch):
            if error or results is None:
                keeper.failed(error or Unavailable("no-answer", "no result"), len(self._nodes), retry_after)
            else:
                self._settle_one(keeper, sent, results[index])
        self._done(batch)

    def _done(self, batch: list[Keeper]) -> None:
        for keeper in batch:
            keeper.is_sent = False
        self._arm()

    def _settle_one(self, keeper: Keeper, sent: float, results: list[dict[str, Any]]) -> None:
        if all(200 <= result["status"] < 300 and isinstance(result.get("ttl_ms"), int) for result in results):
            left = min(result["ttl_ms"] for result in results) / 1000
            keeper.renewed(Renewed(sent, left, {"results": results}))
            return
        # A loss is more serious than what is not known of another key.
        failed = [result for result in results if not 200 <= result["status"] < 300] or results
        worst = next((result for result in failed if result["status"] == 410), failed[0])
        fields = worst if len(results) == 1 else {"results": results}
        error = of_problem(worst["status"], {"code": "no-answer", **worst})
        if isinstance(error, (LeaseLost, AttemptLost)):
            keeper.lose(type(error)(error.code, error.detail, error.status, fields))
        else:
            keeper.failed(error, len(self._nodes), _retry_after(worst))


def _batches(keepers: list[Keeper], at: float) -> Iterator[list[Keeper]]:
    """What to send now: each lease that is due, with others that soon are."""
    batch: list[Keeper] = []
    size = bytes = 0
    for keeper in sorted(keepers, key=lambda keeper: keeper.last.until):
        if keeper.heartbeat:
            if keeper.due <= at:
                yield [keeper]
            continue
        if keeper.early > at:
            continue
        is_full = size + len(keeper.leases) > _LEASES_PER_CALL_MAX or bytes + keeper.bytes > _BYTES_PER_CALL_MAX
        is_full = is_full or len(batch) >= min(keeper.together, batch[-1].together if batch else 1)
        if batch and (is_full or keeper.last.until - at > _SPREAD * (batch[0].last.until - at)):
            if any(member.due <= at for member in batch):
                yield batch
            batch, size, bytes = [], 0, 0
        batch.append(keeper)
        size += len(keeper.leases)
        bytes += keeper.bytes
    if any(member.due <= at for member in batch):
        yield batch


def _request(batch: list[Keeper]) -> tuple[str, dict[str, Any]]:
    if batch[0].heartbeat:
        return batch[0].heartbeat
    return "/v1/leases/renew", {"leases": [lease for keeper in batch for lease in keeper.leases]}


def _results(batch: list[Keeper], body: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The results of each of the batch; nothing if the answer does not have one for each lease."""
    results = body.get("results")
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        return []
    sent = [lease for keeper in batch for lease in keeper.leases]
    names = [(result.get("key"), result.get("lease_id")) for result in results]
    if names != [(lease["key"], lease["lease_id"]) for lease in sent] or not all(isinstance(result.get("status"), int) for result in results):
        return []
    rest = iter(results)
    return [[next(rest) for _ in keeper.leases] for keeper in batch]


def _set_apart(batch: list[Keeper], problem: dict[str, Any]) -> bool:
    """A request is refused as a whole if the API key may not use one of its keys: the others are sent again without that one."""
    index = problem.get("index")
    if not isinstance(index, int) or len(batch) == 1:
        return False
    for keeper in batch:
        index -= len(keeper.leases)
        if index < 0:
            keeper.together = 1
            return True
    return False


def _retry_after(problem: dict[str, Any]) -> float:
    ms = problem.get("retry_after_ms")
    return ms / 1000 if isinstance(ms, (int, float)) else 0.0
