"""Which leases the current thread or task is inside of, and the names of owners."""

from __future__ import annotations

import os
import socket
import sys
import threading
import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core import Core
    from ._lease import LeaseBase


@dataclass(frozen=True)
class _Entered:
    """The thread and the task are named, because a task or a thread that this one starts may get a copy of its context."""

    lease: LeaseBase[Any]
    thread: int
    task: object


_entered: ContextVar[tuple[_Entered, ...]] = ContextVar("latchgate_entered", default=())


def enter(lease: LeaseBase[Any]) -> None:
    _entered.set((*_entered.get(), _Entered(lease, threading.get_ident(), _task())))


def leave(lease: LeaseBase[Any]) -> None:
    _entered.set(tuple(entered for entered in _entered.get() if entered.lease is not lease))


def owner_of(core: Core, keys: tuple[str, ...], reentrant: bool) -> tuple[str, bool]:
    """The owner for a lease of these keys, and whether it is to be nested in one that this thread or task is inside of.

    Only nested leases have the owner of another one: otherwise a nested lease could open a lock that another thread holds.
    """
    thread, task = threading.get_ident(), _task()
    mine = [entered.lease for entered in _entered.get() if entered.thread == thread and entered.task is task] if reentrant else []
    outer = [lease for lease in mine if lease.is_of(core) and lease.remaining() > 0 and not set(keys).isdisjoint(lease.keys)]
    if any(lease.has_named_owner for lease in outer):
        raise ValueError("the lease around this one has an owner that the caller has named: name it here too")
    owners = {lease.owner for lease in outer}
    if len(owners) > 1:
        raise ValueError("a multilock cannot be nested in several leases: name one owner for all of them")
    return (owners.pop(), True) if owners else (f"{_host()}:{os.getpid()}{_program()}/{uuid.uuid4().hex[:12]}", False)


def _task() -> Any:
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio and asyncio.current_task()
    except RuntimeError:
        return None


def _program() -> str:
    """The name of the script, after a space; nothing in an interactive session."""
    name = "".join(letter for letter in os.path.basename(sys.argv[0] if sys.argv else "") if letter.isprintable())[:40]
    return f" {name}" if name and not name.startswith("-") else ""


def _host() -> str:
    return "".join(letter for letter in socket.gethostname() if letter.isprintable())[:60] or "client"
