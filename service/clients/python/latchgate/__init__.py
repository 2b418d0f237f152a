"""A client of Latchgate: distributed locks, and an idempotency gate.

    client = latchgate.Client(["http://node-1:7070", "http://node-2:7070"])
    with client.lock("orders/42", ttl=30, wait=600) as lease:
        save(order, fence=lease.token)
"""

from . import aio
from ._base import Key, Revoking
from ._client import Attempt, Client, Events, Lease
from ._decorators import locked, once
from ._errors import (
    AttemptLost,
    Error,
    LeaseLost,
    LockHeld,
    NotDone,
    NotRecorded,
    OperationInProgress,
    OperationUnknown,
    Refused,
    StaleToken,
    Unavailable,
    WaitTimeout,
)
from ._events import Event
from ._gate import Done
from ._lease import Revocation

__all__ = [
    "Attempt",
    "AttemptLost",
    "Client",
    "Done",
    "Error",
    "Event",
    "Events",
    "Key",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "NotDone",
    "NotRecorded",
    "OperationInProgress",
    "OperationUnknown",
    "Refused",
    "Revocation",
    "Revoking",
    "StaleToken",
    "Unavailable",
    "WaitTimeout",
    "aio",
    "locked",
    "once",
]
