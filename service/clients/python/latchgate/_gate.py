"""`once`, work that is done once: the calls before and after the work."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import inspect
import logging
import os
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar, Union

from ._clock import now
from ._core import Core
from ._entries import ATTEMPT_UNKNOWN, RECORDED, Entry
from ._errors import AttemptLost, Error, LeaseLost, NotDone, NotRecorded, Unavailable
from ._http import NO_ANSWER, encoded
from ._json import json_of
from ._lease import Lost
from ._nodes import Answer, Doubt
from ._renewals import Keeper, Renewed

_log = logging.getLogger("latchgate")

Result = TypeVar("Result")
OnExpiry = Literal["retry", "block"]
Durability = Literal["fast", "durable"]
OnOutage = Literal["proceed"]

# What of the request for a claim says which operation an unguarded run has done.
_ENTERED = ("operation", "contents", "checked", "attempt_id", "label", "durability", "retention_ms", "permanent")
# The most that a node stores of a result, as JSON.
_RESULT_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The operation has been done, now or earlier.

    `duplicate`: an earlier attempt has done it, and `result` is what that attempt stored. `result_omitted`: the result is not
    stored, because it is longer than 64 KiB or no JSON; a duplicate's `result` is then None.
    """

    result: Union[Result, Any]
    duplicate: bool
    result_omitted: bool


@dataclass(frozen=True)
class Claim:
    """What a pre has granted, for an attempt of this length. Nothing if the gate is away, and the work runs unguarded."""

    core: Core
    request: dict[str, Any]
    granted: dict[str, Any]
    length: float
    # Until when the attempt lasts; None if it is not guarded.
    first: Renewed | None = None
    # A node may have granted it, though no answer says so.
    is_in_doubt: bool = False
    # A success that no node records is reported later.
    proceeds: bool = False

    @property
    def heartbeat(self) -> tuple[str, dict[str, Any]]:
        return f"/v1/operations/{self.granted['id']}/heartbeat", {"stamp": self.granted["stamp"]}


class AttemptBase(Generic[Lost]):
    """Permission to do the operation, kept by heartbeats while the work runs."""

    def __init__(self, claim: Claim, lost: Lost) -> None:
        granted = claim.granted
        self._began = datetime.datetime.now(datetime.timezone.utc)
        self._claim = claim
        self._pid = os.getpid()
        # None if it is not guarded.
        self.id: str | None = granted.get("id")
        # Which attempt this is, from 1; None if it is not guarded.
        self.number: int | None = granted.get("attempt")
        # False: the gate was away, and the call said `on_outage="proceed"`, so other callers may proceed too.
        self.guarded: bool = bool(granted)
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
        await self._not_done(NotDone())

    async def _failed(self, error: BaseException) -> None:
        if self._is_here:
            await self._not_done(error)

    async def _not_done(self, error: BaseException) -> None:
        # For `block`, a second run is worse than none; and only the work can know that nothing was done.
        unsure = self._claim.request["on_expiry"] == "block" and not isinstance(error, NotDone)
        detail = self._detail(error)
        self._stop()
        core, request = self._claim.core, self._claim.request
        if self.guarded:
            return await _post_quietly(self._claim, "unknown" if unsure else "failure", detail=detail if unsure else None)
        core.entries.end()
        if unsure:
            _log.warning("an unguarded run of %s has an unknown outcome: %s", request["operation"], detail)
        elif self._claim.is_in_doubt:
            core.background("the claim of an operation", lambda: _give_back(core, request, self._claim.length))

    def _detail(self, error: BaseException) -> str:
        """For the person who must find out what became of the work."""
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        beat = ""
        if self._keeper:
            silent = int(now() - self._keeper.last.sent)
            beat = f"\nThe last heartbeat that was answered was sent {silent} s before this report."
        # Of a long message, its beginning. What is no text for others is shown escaped.
        return text.encode("utf-8", "backslashreplace")[:1500].decode("utf-8", "ignore") + beat

    async def _succeeded(self, result: Result, held: object) -> Done[Result]:
        """`held` is what must live until the run is entered."""
        if not self._is_here:
            self.check()
        self._stop()
        claim, operation = self._claim, self._claim.request["operation"]
        kept = _kept(result, self.id or operation)
        named = {name: value for name, value in claim.request.items() if name in _ENTERED}
        entry = Entry(operation, [("/v1/operations/enter", {**named, **kept, "ran_at": self._began.isoformat()})], held)
        if self.guarded:
            omitted = await claim.core.insist(f"the success of operation {self.id}", lambda: _post_success(claim, kept, result, entry))
        else:
            claim.core.entries.add(entry)
            omitted = "result_omitted" in kept
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
    core: Core, request: dict[str, Any], make: Callable[[Claim], Attempt], *, length: float, wait: float, on_outage: OnOutage | None
) -> Union[Attempt, Done[Any]]:
    """An attempt if the gate permits the work, or what an earlier one has done."""
    wait_until = now() + wait
    until = now() + core.retry_for
    # Names this attempt: a repeated pre gets the same stamp.
    request["attempt_id"] = str(uuid.uuid4())
    doubt = Doubt()
    try:
        answer = await _pre(core, request, doubt, until, wait_until)
    except BaseException as error:
        if isinstance(error, Error) and error.code == "operation-duplicate":
            return Done(error.fields.get("result"), True, bool(error.fields.get("result_omitted")))
        # Not for another reason, and not beside an attempt that is known to run.
        if on_outage == "proceed" and _is_away(error) and not doubt.is_taken and core.entries.begin():
            _log.warning("%s runs unguarded, because the gate is away: %s", request["operation"], error)
            return make(Claim(core, request, {}, length, is_in_doubt=doubt.is_set))
        if doubt.is_set:
            await core.give_back(error, "the claim of an operation", lambda: _give_back(core, request, length))
        raise
    claimed = Claim(core, request, answer.body, length, proceeds=on_outage == "proceed")
    try:
        first = Renewed(answer.sent, answer.body["ttl_ms"] / 1000, answer.body)
        # After a wait, the lease began long after the pre was sent: a heartbeat tells until when it lasts.
        if first.until - now() < length * 2 / 3:
            path, body = claimed.heartbeat
            beat = await core.call(path, body, until=now() + min(length, core.retry_for), needs={"ttl_ms": int})
            first = Renewed(beat.sent, beat.body["ttl_ms"] / 1000, beat.body)
        return make(replace(claimed, first=first))
    except AttemptLost:
        raise
    except BaseException:
        # The work has not begun.
        await _post_quietly(claimed, "failure")
        raise


async def _pre(core: Core, request: dict[str, Any], doubt: Doubt, until: float, wait_until: float | None = None) -> Answer:
    """What a node has granted."""
    needs = {"id": str, "stamp": str, "ttl_ms": int}
    return await core.call("/v1/operations/pre", request, until=until, wait_until=wait_until, doubt=doubt, needs=needs)


def _is_away(error: BaseException) -> bool:
    """Whether the gate's store, or every node, is away."""
    return isinstance(error, Unavailable) and error.code in ("store-unavailable", NO_ANSWER)


async def _give_back(core: Core, request: dict[str, Any], length: float) -> None:
    """Repeats a pre until a node says whether it was claimed, at most for the length of its lease. Its work has not begun, so the
    attempt is reported as a failure."""
    request = {**request, "wait_ms": 0}
    until, pause = now() + length, 0.2
    while now() < until:
        doubt = Doubt()
        doubt.begin()
        try:
            answer = await _pre(core, request, doubt, now() + core.retry_for)
        except Error as error:
            if error.code == "operation-unknown":
                break  # this claim may be what has ended
            if not doubt.is_set:
                return
            _log.debug("an operation is not given back yet: %s", error)
            await asyncio.sleep(min(pause, max(until - now(), 0)))
            pause = min(pause * 2, length / 10)
        else:
            return await _post_quietly(Claim(core, request, answer.body, length), "failure", length)
    _log.warning("no node says whether an operation was claimed: it may stay blocked")


def _kept(result: Any, what: str) -> dict[str, Any]:
    """What a report says of the result: that there is one that cannot be stored, if it cannot."""
    try:
        copy = json_of(result, "the result", is_exact=False)
        if len(encoded(copy)) <= _RESULT_BYTES_MAX:
            return {"result": copy}
        why = "it is longer than 64 KiB"
    except (TypeError, ValueError) as error:
        why = str(error)
    _log.warning("the result of operation %s is not stored: %s", what, why)
    return {"result_omitted": True}


async def _post_success(claim: Claim, kept: Mapping[str, Any], result: Any, entry: Entry) -> bool:
    """Whether the result was omitted. The entry is for later."""
    core, granted = claim.core, claim.granted
    path, success = f"/v1/operations/{granted['id']}/post", {"stamp": granted["stamp"], "outcome": "success", **kept}
    until = now() + max(core.retry_for, granted.get("ttl_ms", 0) / 1000)
    try:
        answer = await core.call(path, success, until=until, needs=RECORDED)
    except Error as error:
        is_unknown = error.code in ATTEMPT_UNKNOWN
        if claim.proceeds and (is_unknown or isinstance(error, Unavailable)) and core.entries.begin():
            if not is_unknown:
                entry.requests.insert(0, (path, success))
            core.entries.add(entry)
            return "result_omitted" in kept
        raise NotRecorded(error, result) from error
    return bool(answer.body.get("result_omitted"))


async def _post_quietly(claim: Claim, outcome: str, patience: float = 0.0, detail: str | None = None) -> None:
    """After a failure, which is more important than that of the post."""
    core, path = claim.core, f"/v1/operations/{claim.granted['id']}/post"
    body = {"stamp": claim.granted["stamp"], "outcome": outcome, **({"detail": detail} if detail else {})}
    until = now() + max(core.retry_for, patience)
    try:
        await core.insist(f"the outcome of operation {claim.granted['id']}", lambda: core.call(path, body, until=until, needs=RECORDED))
    except Error as failure:
        _log.warning("the outcome %s of operation %s is not recorded: %s", outcome, claim.granted["id"], failure)
