"""A driver of tooz for locks: `tooz.coordination.get_coordinator("latchgate://node-1:7070", member_id)`."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import latchgate
import tooz
from tooz import coordination, locking, utils


class LatchgateLock(locking.Lock):
    """Its leases renew themselves, so nothing need beat: `heartbeat` only says whether it is held."""

    def __init__(self, coordinator: LatchgateDriver, name: bytes) -> None:
        super().__init__(name)
        self._coordinator = coordinator
        self._key = coordinator.prefix + quote(name, safe="/:@")  # names are bytes, and keys are text
        self._leases: list[latchgate.Lease] = []  # several if it is shared

    def acquire(self, blocking: bool | float = True, shared: bool = False, timeout: float | None = None) -> bool:
        blocking, timeout = utils.convert_blocking(blocking, timeout)
        wait = 0.0 if not blocking else math.inf if timeout is None else timeout
        try:
            with _translated():
                lease = self._coordinator.client.lock(self._key, ttl=self._coordinator.ttl, wait=wait, shared=shared)
        except coordination.LockAcquireFailed:
            return False
        with self._coordinator.mutex:
            self._leases.append(lease)
            self._coordinator.held.add(self)
        return True

    def release(self) -> bool:
        """False if it is not held, or was lost."""
        with self._coordinator.mutex:
            if not self._leases:
                return False
            lease = self._leases.pop()
            if not self._leases:
                self._coordinator.held.discard(self)
        try:
            with _translated():
                lease.release()
        except coordination.LockAcquireFailed:
            return False
        return True

    def break_(self) -> bool:
        """Ends all leases of the lock. The API key needs the scope admin."""
        client = self._coordinator.client
        with _translated():
            broken = client.revoke(self._key, reason="broken", grace=0).leases > 0
            # They end 100 ms later. Until then, a waiter may get the lock.
            with contextlib.suppress(latchgate.LockHeld):
                client.lock(self._key, wait=1.0 if broken else 0.0).release()
        return broken

    def is_still_owner(self) -> bool:
        return any(lease.remaining() > 0 for lease in self._leases)

    acquired = property(is_still_owner)
    heartbeat = is_still_owner


class LatchgateDriver(coordination.CoordinationDriver):
    """`latchgate://HOST:PORT[,HOST:PORT…][?api_key=…&ttl=30&prefix=tooz/]`; with `latchgate+https`, TLS."""

    CHARACTERISTICS = (
        coordination.Characteristics.DISTRIBUTED_ACROSS_THREADS,
        coordination.Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        coordination.Characteristics.DISTRIBUTED_ACROSS_HOSTS,
    )

    def __init__(self, member_id: bytes, parsed_url: Any, options: dict[str, Any]) -> None:
        super().__init__(member_id, parsed_url, options)
        options = utils.collapse(options)
        scheme = "https" if parsed_url.scheme.endswith("https") else "http"
        urls = [f"{scheme}://{host}{parsed_url.path}" for host in parsed_url.netloc.split(",") if host]
        self.client = latchgate.Client(urls or None, api_key=options.get("api_key"))
        self.ttl = float(options.get("ttl", 30))
        self.prefix = str(options.get("prefix", "tooz/"))
        self.mutex = threading.Lock()
        self.held: set[LatchgateLock] = set()  # until they are released, also if the caller forgets them

    def _start(self) -> None:
        """Shows that a node answers, and takes the API key."""
        with _translated():
            self.client.lock(f"{self.prefix}start", shared=True).release()

    def _stop(self) -> None:
        for lock in list(self.held):
            with contextlib.suppress(tooz.ToozError):
                while lock.release():
                    pass

    def get_lock(self, name: bytes) -> LatchgateLock:
        return LatchgateLock(self, name)

    def watch_join_group(self, group_id: bytes, callback: Any) -> None:
        raise tooz.NotImplemented("this driver has locks, and no groups")

    watch_leave_group = watch_elected_as_leader = watch_join_group


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (latchgate.LockHeld, latchgate.LeaseLost) as error:
        raise coordination.LockAcquireFailed(str(error)) from error
    except latchgate.Unavailable as error:
        raise coordination.ToozConnectionError(str(error)) from error
    except latchgate.Error as error:
        raise tooz.ToozError(str(error)) from error
