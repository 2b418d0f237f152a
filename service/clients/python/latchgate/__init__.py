"""A client of Latchgate: distributed locks, and an idempotency gate.

    client = latchgate.Client(["http://node-1:7070", "http://node-2:7070"])
    with client.lock("orders/42", ttl=30, wait=600) as lease:
        save(order, fence=lease.token)
"""

from ._client import Client, Key, Revoking
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
from ._events import Event, Events
from ._gate import Attempt, Done
from ._lease import Lease, Revocation

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
]
