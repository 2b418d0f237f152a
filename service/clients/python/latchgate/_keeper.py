"""Keeps a lease alive in the background, and notices when it is lost."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._clock import now
from ._errors import AttemptLost, Error, LeaseLost

_log = logging.getLogger("latchgate")

# Longest sleep at a time: while the machine is suspended, the waits of threads stand still, and the clock of leases does not.
_SLICE = 0.25


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


# Sends a renewal, and repeats it until the time given; stops early if the event is set.
Renew = Callable[[float, threading.Event], Renewed]


class Keeper:
    """Renews at a third of the lease, counted from the moment the last renewal was sent.

    It knows nothing of the object that the caller holds: when that is forgotten without a release, the renewals stop.
    """

    def __init__(self, name: str, length: float, first: Renewed, renew: Renew) -> None:
        self.lost = threading.Event()
        self.loss: Error | None = None
        self._name = name
        self._length = length
        self._renew = renew
        self._last = first
        self._stop = threading.Event()
        # Notified when the last renewal changes, and when the keeper stops.
        self._changed = threading.Condition()
        for run in (self._renew_all, self._watch):
            threading.Thread(target=run, name=f"latchgate {name}", daemon=True).start()

    @property
    def last(self) -> Renewed:
        return self._last

    def remaining(self) -> float:
        """Seconds until the lease may have ended; 0 if it is lost."""
        if self.lost.is_set():
            return 0.0
        left = self._last.until - now()
        if left <= 0 and not self._stop.is_set():
            self._lose(self._unanswered())
        return max(left, 0.0)

    def stop(self) -> None:
        """Ends the renewals. Afterwards the lease is not reported as lost."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()

    def _renew_all(self) -> None:
        while not self.lost.is_set():
            last = self._last
            # The lower bound is for leases that a revocation or `max_hold` is ending: each renewal leaves them shorter.
            pause = max(last.left / 3, self._length / 10) * random.uniform(0.9, 1.0)
            while (left := last.sent + pause - now()) > 0 and not self._stop.is_set():
                self._stop.wait(min(left, _SLICE))
            if self._stop.is_set():
                return
            try:
                renewed = self._renew(last.until, self._stop)
            except (LeaseLost, AttemptLost) as loss:
                return self._lose(loss)
            except Exception as error:
                # Not a loss yet: the watch reports that when the lease has ended.
                _log.warning("the lease of %s is not renewed: %s", self._name, error)
                self._stop.wait(max(min((last.until - now()) / 4, 1.0), 0.05))
                continue
            with self._changed:
                self._last = renewed
                self._changed.notify_all()

    def _watch(self) -> None:
        # A thread of its own, because a renewal can hang.
        with self._changed:
            while not self._stop.is_set() and not self.lost.is_set():
                left = self._last.until - now()
                if left > 0:
                    self._changed.wait(min(left, _SLICE))
                else:
                    self._lose(self._unanswered())

    def _lose(self, loss: Error) -> None:
        with self._changed:
            if self._stop.is_set() or self.lost.is_set():
                return
            self.loss = loss
            self.lost.set()
            self._changed.notify_all()
        _log.warning("the lease of %s is lost: %s", self._name, loss)

    def _unanswered(self) -> LeaseLost:
        fields = {"why": "unanswered"}
        return LeaseLost("lease-lost", f"no renewal of {self._name} was answered in time", None, fields)
