"""What can go wrong: one class for each decision that a caller takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Error(Exception):
    """The base of all errors of this package.

    `code` is stable, and explained in Latchgate's list of error codes. `status` is that of the answer, and None if the error is
    none of an answer. `fields` has all fields of the answer's problem.
    """

    def __init__(self, code: str, detail: str, status: int | None = None, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.status = status
        self.fields: dict[str, Any] = dict(fields or {})


class Refused(Error):
    """The request cannot be granted as it is, for example because its key is not valid: `code` says why."""


class LockHeld(Error):
    """The caller does not have the lock, because another one has it or comes first."""

    @property
    def holders(self) -> list[dict[str, Any]]:
        """The first holders: `owner`, `mode`, `token`, `granted_at`, `expires_at`, `ttl_ms`."""
        return list(self.fields.get("holders", []))


class WaitTimeout(LockHeld):
    """The caller's wait has ended without the lock."""


class StaleToken(Error):
    """A higher token than this one has been granted or presented: refuse what its holder wants to do."""

    @property
    def current(self) -> int:
        return int(self.fields.get("current", 0))


class LeaseLost(Error):
    """The lease has ended before it was released: stop the work that it protects.

    `why` is `expired`, `released`, `revoked`, `forced` or `unknown` if a node has said so, and `unanswered` if no renewal was
    answered in time. `revoked` is also that of a lease whose last renewal has shown that it would end by a revocation.
    """

    @property
    def why(self) -> str:
        leases: list[dict[str, Any]] = self.fields.get("results") or [self.fields]
        return str(next((lease["why"] for lease in leases if lease.get("why")), "unknown"))


class OperationInProgress(Error):
    """Another attempt runs, and the caller's wait has ended."""


class OperationUnknown(Error):
    """An earlier attempt may have done the operation: an operator finds out, and resolves it."""


class AttemptLost(Error):
    """Another attempt may have the operation: stop."""


class NotRecorded(Error):
    """The work has succeeded, but the gate does not know it. `result` is what the work returned."""

    def __init__(self, cause: Error, result: Any) -> None:
        super().__init__(cause.code, f"the work was done, but its outcome is not recorded: {cause.detail}", cause.status, cause.fields)
        self.result = result


class Unavailable(Error):
    """No node has given an answer to rely on, in all the time for repeating the call, or the app has used up a quota (`quota-reached`).
    Without an answer, the call may have been carried out."""


class NotDone(Exception):
    """Raise this in the work of `once` to say that surely nothing was done: the next caller may proceed at once."""


_BY_CODE: dict[str, type[Error]] = {
    "stale-token": StaleToken,
    "wait-timeout": WaitTimeout,
    "lease-lost": LeaseLost,
    "operation-in-progress": OperationInProgress,
    "operation-unknown": OperationUnknown,
    "operation-superseded": AttemptLost,
    "operation-ended": AttemptLost,
    "operation-not-found": AttemptLost,
    "stamp-mismatch": AttemptLost,
}


def of_problem(status: int, problem: Mapping[str, Any]) -> Error:
    """The error for an answer that is `application/problem+json`."""
    code = str(problem["code"])
    detail = str(problem.get("detail", problem.get("title", "")))
    kind = Unavailable if status >= 500 or is_transient(status) else _BY_CODE.get(code, LockHeld if status == 423 else Refused)
    return kind(code, detail, status, problem)


def is_transient(status: int) -> bool:
    """Whether the same request may pass later. A node sends 503; a proxy in front of it may send the others."""
    return status in (429, 502, 503, 504)
