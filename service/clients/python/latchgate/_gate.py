"""`once`: work that is done once."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Union

from ._clock import now
from ._errors import AttemptLost, Error, LeaseLost, NotDone, NotRecorded
from ._nodes import Doubt, Nodes
from ._renewals import Keeper, Renewals, Renewed

_log = logging.getLogger("latchgate")

Result = TypeVar("Result")
OnExpiry = Literal["retry", "block"]

# How long the end of the process waits until a claim is given back.
_GIVE_BACK_AT_EXIT = 5.0


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The operation has been done, now or earlier.

    `duplicate`: an earlier attempt has done it, and `result` is what that attempt stored. `result_omitted`: the result is not
    stored, because it is too long or no JSON; a duplicate's `result` is then None.
    """

    result: Union[Result, Any]
    duplicate: bool
    result_omitted: bool


class Attempt:
    """Permission to do the operation, kept by heartbeats while the work runs."""

    def __init__(self, nodes: Nodes, renewals: Renewals, granted: dict[str, Any], length: float, sent: float) -> None:
        self.id: str = granted["id"]
        # Which attempt this is, from 1; None if it is not guarded.
        self.number: int | None = granted.get("attempt")
        # False: the store does not answer, and the call said `on_outage="open"`, so other callers may proceed too.
        self.guarded: bool = granted["guarded"]
        # An earlier attempt may have done part of the work.
        self.reentry: bool = granted.get("reentry", False)
        # The store may have lost the record of an earlier attempt.
        self.possibly_repeated: bool = granted.get("possibly_repeated", False)
        self._keeper: Keeper | None = None
        if self.guarded:
            path, body = f"/v1/operations/{self.id}/heartbeat", {"stamp": granted["stamp"]}
            first = Renewed(sent, granted["ttl_ms"] / 1000, granted)
            # After a wait, the lease began long after the pre was sent: a heartbeat tells until when it lasts.
            if first.until - now() < length * 2 / 3:
                beat = nodes.call(path, body, until=now() + min(length, nodes.retry_for))
                first = Renewed(beat.sent, beat.body["ttl_ms"] / 1000, beat.body)
            self._keeper = Keeper(f"operation {self.id}", length, first, heartbeat=(path, body))
            renewals.keep(self._keeper)
        self.lost: threading.Event = self._keeper.lost if self._keeper else threading.Event()

    def remaining(self) -> float:
        """Seconds for which no other attempt can begin; 0 if it is lost, or not guarded."""
        return self._keeper.remaining() if self._keeper else 0.0

    def check(self) -> None:
        """Raises `AttemptLost` if another attempt may have begun. Call it before each step that cannot be undone."""
        if self._keeper and self._keeper.remaining() <= 0:
            loss = self._keeper.loss or LeaseLost("lease-lost", "the attempt has ended")
            raise AttemptLost(loss.code, loss.detail, loss.status, loss.fields)

    def _stop(self) -> None:
        if self._keeper:
            self._keeper.stop()


def once(
    nodes: Nodes,
    renewals: Renewals,
    request: dict[str, Any],
    work: Callable[[Attempt], Result],
    *,
    length: float,
    wait: float,
    keep: dict[str, Any],
) -> Done[Result]:
    """Runs the work if the gate permits it, and posts its outcome."""
    wait_until = now() + wait
    until = now() + nodes.retry_for
    # Names this attempt: a repeated pre gets the same stamp.
    request["attempt_id"] = str(uuid.uuid4())
    doubt = Doubt()
    try:
        answer = nodes.call("/v1/operations/pre", request, until=until, wait_until=wait_until, doubt=doubt)
    except BaseException as error:
        if isinstance(error, Error) and error.code == "operation-duplicate":
            return Done(error.fields.get("result"), True, bool(error.fields.get("result_omitted")))
        if doubt.is_set:
            # No daemon, so the end of the process waits for it: a claim that stays would block the operation.
            arguments = (nodes, request, length)
            threading.Thread(target=_give_back, args=arguments, name="latchgate giving back", daemon=False).start()
        raise
    granted = answer.body
    try:
        attempt = Attempt(nodes, renewals, granted, length, answer.sent)
    except AttemptLost:
        raise
    except BaseException:
        # The work has not begun.
        _post_quietly(nodes, granted["id"], granted["stamp"], "failure")
        raise
    try:
        result = work(attempt)
    except BaseException as error:
        # For `block`, a second run is worse than none; and only the work can know that nothing was done.
        unsure = request["on_expiry"] == "block" and not isinstance(error, NotDone)
        attempt._stop()
        _post_quietly(nodes, granted["id"], granted["stamp"], "unknown" if unsure else "failure")
        raise
    attempt._stop()
    return Done(result, False, _post_success(nodes, granted, result, keep))


def _give_back(nodes: Nodes, request: dict[str, Any], length: float) -> None:
    """Repeats a pre until a node says whether it was claimed, at most for the length of its lease. Its work has not begun, so the
    attempt is reported as a failure."""
    request = {**request, "wait_ms": 0}
    if request.get("on_outage") == "open":
        # An unguarded permission says nothing about the claim.
        request["on_outage"] = "closed"
    began = now()
    until = began + length
    while now() < (until if threading.main_thread().is_alive() else min(until, began + _GIVE_BACK_AT_EXIT)):
        doubt = Doubt()
        doubt.begin()
        try:
            granted = nodes.call("/v1/operations/pre", request, until=now() + nodes.retry_for, doubt=doubt).body
        except Error as error:
            if not doubt.is_set:
                return
            _log.debug("an operation is not given back yet: %s", error)
            time.sleep(min(0.2, max(until - now(), 0)))
        except Exception:
            return  # the contents are no JSON: nothing was sent
        else:
            return _post_quietly(nodes, granted["id"], granted["stamp"], "failure")
    _log.warning("no node says whether an operation was claimed: it may stay blocked")


def _post_success(nodes: Nodes, granted: dict[str, Any], result: Any, keep: dict[str, Any]) -> bool:
    """Whether the result was omitted."""
    path = f"/v1/operations/{granted['id']}/post"
    success = {"stamp": granted["stamp"], "outcome": "success", **keep}
    until = now() + max(nodes.retry_for, granted.get("ttl_ms", 0) / 1000)
    try:
        try:
            body = nodes.call(path, {**success, "result": result}, until=until).body
            return bool(body.get("result_omitted"))
        except (TypeError, ValueError, RecursionError) as error:
            _log.warning("the result of operation %s is no JSON, and is not stored: %s", granted["id"], error)
        except Error as error:
            if error.status not in (400, 413):
                raise
            _log.warning("the result of operation %s is not stored: %s", granted["id"], error)
        nodes.call(path, success, until=until)
        return True
    except Error as error:
        raise NotRecorded(error, result) from error


def _post_quietly(nodes: Nodes, id: str, stamp: str, outcome: str) -> None:
    """After a failure, which is more important than that of the post."""
    try:
        nodes.call(f"/v1/operations/{id}/post", {"stamp": stamp, "outcome": outcome}, until=now() + nodes.retry_for)
    except Error as failure:
        _log.warning("the outcome %s of operation %s is not recorded: %s", outcome, id, failure)
