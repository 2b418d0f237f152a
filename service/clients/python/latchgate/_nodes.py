"""Requests to any of the nodes. Nearly every request of this package can be repeated, so a call goes on until a node has answered it."""

from __future__ import annotations

import asyncio
import math
import os
import random
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ._clock import now
from ._errors import Error, Refused, Unavailable, is_transient, of_problem
from ._http import FOREIGN_ANSWER, NO_ANSWER, NoAnswer, Node, Stream

_PAUSE_MIN, _PAUSE_MAX = 0.1, 1.0
# The last request of a call has this time, too: with less, an answer of an outage would be cut.
_REQUEST_MIN = 0.1
# The first request of a wait is short: its answer has a ticket, with which the position in the queue survives the node.
_FIRST_WAIT = 0.5
_NOTHING: Mapping[str, type] = {}


@dataclass(frozen=True)
class Answer:
    """An answer, and when its request was sent. What a lease has left counts from there."""

    sent: float
    status: int
    body: dict[str, Any]


class Doubt:
    """Whether a node may have carried out a call, though no answer says so."""

    def __init__(self) -> None:
        self.is_set = False
        # A node has said that another attempt runs.
        self.is_taken = False

    def begin(self) -> bool:
        """A request is sent. Returns what was known before."""
        before, self.is_set = self.is_set, True
        return before

    def answered(self, error: Error, before: bool) -> None:
        """Only a decision about this very call ends a doubt: a refusal for another reason says nothing about earlier requests."""
        if error.status in (409, 410, 422, 423):
            self.is_set = False
        # Of the answers of 500 and above, those of a gateway and those about a defect say nothing.
        elif (error.status or 500) < 500 or error.code in ("overloaded", "store-unavailable", "shutting-down", "state-unreadable"):
            self.is_set = before


class Nodes:
    """The nodes of one cluster. All durations are in seconds, as in `Client`."""

    def __init__(
        self,
        urls: Sequence[str],
        api_key: str | None,
        timeout: float,
        retry_for: float,
        wait_per_call: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        if not urls:
            raise ValueError("at least one URL is needed")
        if retry_for <= 0:
            raise ValueError("retry_for is the time for a whole call: it must be more than 0")
        self._nodes = [Node(url, api_key, ssl_context) for url in urls]
        self.retry_for = retry_for
        self.timeout = timeout
        self._wait_per_call = wait_per_call
        # The node that a call asks first. Another one takes its place when it does not answer.
        self._first = 0
        # The process and the event loop, to which the connections belong.
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def _enter(self) -> None:
        here = (os.getpid(), asyncio.get_running_loop())
        if self._home == here:
            return
        if self._home is not None and self._home[0] == here[0] and not self._home[1].is_closed():
            raise RuntimeError("another event loop uses this client: each needs its own")
        if self._home is not None:
            self.forget()
        self._home = here

    def forget(self) -> None:
        """Begins anew: after a fork, or when the event loop has ended."""
        for node in self._nodes:
            node.forget()

    def close(self) -> None:
        # Those of the process before a fork must stay in its event loop, which shares its selector with this process.
        are_ours = self._home is None or self._home[0] == os.getpid()
        for node in self._nodes:
            node.close() if are_ours else node.forget()

    async def send(
        self, path: str, body: dict[str, Any], timeout: float, index: int, fresh: bool = False, needs: Mapping[str, type] = _NOTHING
    ) -> Answer:
        """One request to one node. Raises `NoAnswer`, also after a 2xx without what it `needs`, which is none
        of this service. If that node cannot serve, the next call begins at another one."""
        sent = now()
        try:
            status, answer = await self._nodes[index].post(path, body, timeout, fresh)
            if status < 300 and not all(type(answer.get(name)) is kind and answer[name] for name, kind in needs.items()):
                raise NoAnswer(f"{self._nodes[index].name}: the answer has no {', '.join(needs)}", code=FOREIGN_ANSWER)
        except NoAnswer:
            self.avoid(index)
            raise
        if is_transient(status):
            self.avoid(index)
        return Answer(sent, status, answer)

    def after(self, asked: int | None) -> int:
        """The index of the node to ask after another one; that of the first if none was asked."""
        return self._first if asked is None else (asked + 1) % len(self._nodes)

    def avoid(self, index: int) -> None:
        # Other calls may have moved on already.
        if self._first == index:
            self._first = self.after(index)

    async def stream(self, path: str, last_id: str | None, index: int, until: float) -> Stream:
        """A response whose body is read by the caller. Raises `NoAnswer`, and the error of an answer but 200."""
        self._enter()
        timeout = min(self.timeout, max((until - now()) / len(self._nodes), _REQUEST_MIN))
        try:
            return await self._nodes[index].stream(path, last_id, timeout)
        except (NoAnswer, Unavailable):
            self.avoid(index)
            raise

    async def call(
        self,
        path: str,
        body: dict[str, Any],
        *,
        until: float,
        wait_until: float | None = None,
        repeat_in_doubt: bool = True,
        doubt: Doubt | None = None,
        needs: Mapping[str, type] = _NOTHING,
    ) -> Answer:
        """Posts the request, and repeats it until a node has answered it or it is `until`. Each node gets a part of that time, so that
        others can be tried.

        With `wait_until`, each request waits at the node, and the call goes on with tickets until then, and for `retry_for` after
        that while no node answers. A wait does not begin in an outage: until a node has answered, `until` counts. `needs`: the members, and
        their types, without which no answer lets the caller proceed.

        Raises the error of the last answer that does not let the caller proceed, and `Unavailable` if there was none.
        """
        self._enter()
        # Other calls change which node is the first: this one asks each in turn.
        tried, index = 0, self._first
        # The longest that a node has asked for since the last pause.
        pause, retry_after = _PAUSE_MIN, 0.0
        doubt = doubt or Doubt()
        waits = wait_until is not None and wait_until > now()
        was_answered = False
        # The last answer; if there was none, why.
        error: Error | None = None
        while True:
            left = until - now()
            wait = 0.0
            if wait_until is not None:
                longest = self._wait_per_call if was_answered else min(_FIRST_WAIT, left / 4, self._wait_per_call)
                wait = max(min(wait_until - now(), longest), 0.0)
                # A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
                body["wait_ms"] = max(math.ceil(wait * 1000), 1) if waits else 0
            timeout = min(self.timeout, max(min(left / 3, left - wait), _REQUEST_MIN))
            before = doubt.begin()
            sent = now()
            try:
                answer = await self.send(path, body, timeout + wait, index, fresh=not repeat_in_doubt, needs=needs)
                _check_keys(path, body, answer)
                if 200 <= answer.status < 300:
                    return answer
                refusal = of_problem(answer.status, answer.body)
                doubt.answered(refusal, before)
                # A wait that ended leaves a ticket, with which the next request returns to its position.
                if "ticket" in answer.body:
                    body["ticket"] = answer.body["ticket"]
                if refusal.code == "invalid-ticket" and body.pop("ticket", None):
                    continue
                error = refusal
                is_of_wait = answer.status == 423 or error.code == "operation-in-progress"
                if is_of_wait and wait_until is not None and now() < wait_until:
                    was_answered = doubt.is_taken = True
                    until = wait_until + self.retry_for
                    # A node that is about to stop ends waits early.
                    if now() - sent >= wait / 2:
                        tried = 0
                        pause, retry_after = _PAUSE_MIN, 0.0
                        continue
                    self.avoid(index)
                elif not is_transient(answer.status):
                    raise error
                elif error.code == "quota-reached" and wait_until is not None and now() < wait_until:
                    until = wait_until + self.retry_for
                if is_transient(answer.status):
                    retry_after = max(retry_after, float(answer.body.get("retry_after_ms", 0)) / 1000)
            except NoAnswer as no_answer:
                # Silence is no outage once a node has answered. And the last of the time is too short for an answer: why there was none
                # before says more.
                is_late = isinstance(no_answer.__cause__, asyncio.TimeoutError)
                if error is None or no_answer.code != NO_ANSWER or (error.code == NO_ANSWER and not is_late):
                    error = Unavailable(no_answer.code, str(no_answer))
                retry_after = max(retry_after, no_answer.retry_after)
                doubt.is_set = before or no_answer.sent
            tried, index = tried + 1, self.after(index)
            left = until - now()
            if doubt.is_set and not repeat_in_doubt:
                raise error
            # As many requests as nodes are made in any case, so that each of them is asked.
            if tried >= len(self._nodes) and retry_after > left - _REQUEST_MIN:
                raise error
            if tried % len(self._nodes) == 0:
                await asyncio.sleep(min(max(retry_after, pause) * random.uniform(1.0, 1.5), left - _REQUEST_MIN))
                pause, retry_after = min(pause * 2, _PAUSE_MAX), 0.0

    def __repr__(self) -> str:
        return ", ".join(node.name for node in self._nodes)



def _check_keys(path: str, body: Mapping[str, Any], answer: Answer) -> None:
    """Raises `Refused` if the answer is about another key than the request. A refusal need not name its key, nor a release."""
    asked = [lock["key"] for lock in body.get("locks", [])] or key_of(path)
    answered = [lock.get("key") for lock in answer.body.get("locks", [answer.body])]
    may_lack = [None] if answer.status >= 300 or path.endswith("/release") else []
    if asked and not {*asked, *may_lack}.issuperset(answered):
        raise other_key(asked, answered)


def key_of(path: str) -> list[str]:
    """The key that the path of a request names; none if it names none."""
    return [unquote(path.split("/")[3])] if path.startswith("/v1/locks/") else []


def other_key(asked: list[str], answered: list[Any]) -> Refused:
    why = "a proxy in front of the node changes paths (see DEPLOYMENT.md)"
    return Refused("other-key", f"the client asked for {asked}, and the answer is about {answered}: {why}")
