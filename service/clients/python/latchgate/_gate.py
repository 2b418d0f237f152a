"""`once`, work that is done once: the calls before and after the work."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, Union

from ._clock import now
from ._core import Core
from ._errors import AttemptLost, Error, LeaseLost, NotDone, NotRecorded
from ._lease import Lost
from ._nodes import Doubt
from ._renewals import Keeper, Renewed

_log = logging.getLogger("latchgate")

Result = TypeVar("Result")
OnExpiry = Literal["retry", "block"]
Durability = Literal["fast", "durable"]
OnOutage = Literal["closed", "fallback", "open"]


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The operation has been done, now or earlier.

    `duplicate`: an earlier attempt has done it, and `result` is what that attempt stored. `result_omitted`: the result is not
    stored, because it is too long or no JSON; a duplicate's `result` is then None.
    """

    result: Union[Result, Any]
    duplicate: bool
    result_omitted: bool


@dataclass(frozen=True)
class Claim:
    """What a pre has granted, for an attempt of this length."""

    core: Core
    request: dict[str, Any]
    granted: dict[str, Any]
    length: float = 0.0
    # How long the record of a success is kept.
    keep: Mapping[str, Any] = field(default_factory=dict)
    # Until when the attempt lasts; None if it is not guarded.
    first: Renewed | None = None

    @property
    def heartbeat(self) -> tuple[str, dict[str, Any]]:
        return f"/v1/operations/{self.granted['id']}/heartbeat", {"stamp": self.granted["stamp"]}


class AttemptBase(Generic[Lost]):
    """Permission to do the operation, kept by heartbeats while the work runs."""

    def __init__(self, claim: Claim, lost: Lost) -> None:
        granted = claim.granted
        self._claim = claim
        self._pid = os.getpid()
        self.id: str = granted["id"]
        # Which attempt this is, from 1; None if it is not guarded.
        self.number: int | None = granted.get("attempt")
        # False: the store does not answer, and the call said `on_outage="open"`, so other callers may proceed too.
        self.guarded: bool = granted["guarded"]
        # An earlier attempt may have done part of the work.
        self.reentry: bool = granted.get("reentry", False)
        # The store may have lost the record of an earlier attempt.
        self.possibly_repeated: bool = granted.get("possibly_repeated", False)
        self.lost: Lost = lost
        self._keeper: Keeper | None = None
        if claim.first:
            self._keeper = Keeper(f"operation {self.id}", claim.length, claim.first, lost, heartbeat=claim.heartbeat)
            claim.core.renewals.keep(self._keeper)

    def remaining(self) -> float:
        """Seconds for which no other attempt can begin; 0 if it is lost, or not guarded, and in a process that was forked from its own."""
        return self._keeper.remaining() if self._keeper and self._is_here else 0.0

    def check(self) -> None:
        """Raises `AttemptLost` if another attempt may have begun. Call it before each step that cannot be undone."""
        if not self._is_here:
            raise AttemptLost("lease-lost", f"the attempt belongs to the process {self._pid}")
        if self._keeper and self._keeper.remaining() <= 0:
            loss = self._keeper.loss or LeaseLost("lease-lost", "the attempt has ended")
            raise AttemptLost(loss.code, loss.detail, loss.status, loss.fields)

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that began the attempt, and not one that was forked from it: that one reports nothing."""
        return self._pid == os.getpid()

    async def _not_begun(self) -> None:
        self._stop()
        await _post_quietly(self._claim, "failure")

    async def _failed(self, error: BaseException) -> None:
        if not self._is_here:
            return
        # For `block`, a second run is worse than none; and only the work can know that nothing was done.
        unsure = self._claim.request["on_expiry"] == "block" and not isinstance(error, NotDone)
        self._stop()
        await _post_quietly(self._claim, "unknown" if unsure else "failure")

    async def _succeeded(self, result: Result) -> Done[Result]:
        if not self._is_here:
            self.check()
        self._stop()
        omitted = await self._claim.core.insist(f"the success of operation {self.id}", lambda: _post_success(self._claim, result))
        return Done(result, False, omitted)

    def _stop(self) -> None:
        if self._keeper:
            self._keeper.stop()


def check_work(work: Any, is_async: bool) -> None:
    """What could not run as the work is noticed before anything is claimed."""
    returns_early = inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work)
    if returns_early or (inspect.iscoroutinefunction(work) and not is_async):
        raise TypeError("the work returns before it has done anything: it is a generator, or a coroutine that nothing awaits")
    if not callable(work):
        raise TypeError(f"the work is {work!r}, and must be a function")
    with contextlib.suppress(ValueError):  # some built-in functions have no signature
        try:
            inspect.signature(work).bind(None)
        except TypeError as error:
            raise TypeError(f"the work is called with the attempt, as work(attempt): {error}") from None


Attempt = TypeVar("Attempt", bound=AttemptBase[Any])


async def claim(
    core: Core, request: dict[str, Any], make: Callable[[Claim], Attempt], *, length: float, wait: float, keep: Mapping[str, Any]
) -> Union[Attempt, Done[Any]]:
    """An attempt if the gate permits the work, or what an earlier one has done."""
    wait_until = now() + wait
    until = now() + core.retry_for
    # Names this attempt: a repeated pre gets the same stamp.
    request["attempt_id"] = str(uuid.uuid4())
    doubt = Doubt()
    try:
        answer = await core.call("/v1/operations/pre", request, until=until, wait_until=wait_until, doubt=doubt)
    except BaseException as error:
        if isinstance(error, Error) and error.code == "operation-duplicate":
            return Done(error.fields.get("result"), True, bool(error.fields.get("result_omitted")))
        if doubt.is_set:
            await core.give_back(error, "the claim of an operation", lambda: _give_back(core, request, length))
        raise
    claimed = Claim(core, request, answer.body, length, keep)
    try:
        if not answer.body["guarded"]:
            return make(claimed)
        first = Renewed(answer.sent, answer.body["ttl_ms"] / 1000, answer.body)
        # After a wait, the lease began long after the pre was sent: a heartbeat tells until when it lasts.
        if first.until - now() < length * 2 / 3:
            path, body = claimed.heartbeat
            beat = await core.call(path, body, until=now() + min(length, core.retry_for))
            first = Renewed(beat.sent, beat.body["ttl_ms"] / 1000, beat.body)
        return make(replace(claimed, first=first))
    except AttemptLost:
        raise
    except BaseException:
        # The work has not begun.
        await _post_quietly(claimed, "failure")
        raise


async def _give_back(core: Core, request: dict[str, Any], length: float) -> None:
    """Repeats a pre until a node says whether it was claimed, at most for the length of its lease. Its work has not begun, so the
    attempt is reported as a failure."""
    request = {**request, "wait_ms": 0}
    if request.get("on_outage") == "open":
        # An unguarded permission says nothing about the claim.
        request["on_outage"] = "closed"
    until = now() + length
    while now() < until:
        doubt = Doubt()
        doubt.begin()
        try:
            answer = await core.call("/v1/operations/pre", request, until=now() + core.retry_for, doubt=doubt)
        except Error as error:
            if not doubt.is_set:
                return
            _log.debug("an operation is not given back yet: %s", error)
            await asyncio.sleep(min(0.2, max(until - now(), 0)))
        except Exception:
            return  # the contents are no JSON: nothing was sent
        else:
            return await _post_quietly(Claim(core, request, answer.body), "failure", length)
    _log.warning("no node says whether an operation was claimed: it may stay blocked")


async def _post_success(claim: Claim, result: Any) -> bool:
    """Whether the result was omitted."""
    core, granted = claim.core, claim.granted
    path = f"/v1/operations/{granted['id']}/post"
    success = {"stamp": granted["stamp"], "outcome": "success", **claim.keep}
    until = now() + max(core.retry_for, granted.get("ttl_ms", 0) / 1000)
    try:
        try:
            answer = await core.call(path, {**success, "result": result}, until=until)
            return bool(answer.body.get("result_omitted"))
        except (TypeError, ValueError, RecursionError) as error:
            _log.warning("the result of operation %s is no JSON, and is not stored: %s", granted["id"], error)
        except Error as error:
            if error.status not in (400, 413):
                raise
            _log.warning("the result of operation %s is not stored: %s", granted["id"], error)
        await core.call(path, success, until=until)
        return True
    except Error as error:
        raise NotRecorded(error, result) from error


async def _post_quietly(claim: Claim, outcome: str, patience: float = 0.0) -> None:
    """After a failure, which is more important than that of the post."""
    core, path, body = claim.core, f"/v1/operations/{claim.granted['id']}/post", {"stamp": claim.granted["stamp"], "outcome": outcome}
    until = now() + max(core.retry_for, patience)
    try:
        await core.insist(f"the outcome of operation {claim.granted['id']}", lambda: core.call(path, body, until=until))
    except Error as failure:
        _log.warning("the outcome %s of operation %s is not recorded: %s", outcome, claim.granted["id"], failure)
