"""The client of another language behind the interface of the blocking one, so that the same scenarios run with all of them.

CLIENT_AGENT is the command of that language's agent: a program that makes the calls it reads, each a line of JSON with a number, all at the same
time, and answers each with such a line. When the work of `once` begins, the agent says so, and the test sends how the work has ended."""

from __future__ import annotations

import functools
import itertools
import json
import os
import queue
import shlex
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import latchgate

numbers = itertools.count(1)
# Of options whose values are in seconds here, and in milliseconds there.
_DURATIONS = {"ttl", "wait", "min_hold", "grace", "retention", "retry_for", "timeout", "wait_per_call"}


class Cancelled(Exception):
    """The test has cancelled the call."""


class Agent:
    def __init__(self) -> None:
        command = shlex.split(os.environ["CLIENT_AGENT"])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._calls: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._sending = threading.RLock()  # a lease may be forgotten at any time
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, do: str, work: Callable[[Any], Any] | None = None, call: int = 0, **arguments: Any) -> Any:
        number = call or next(numbers)
        answers = self._calls[number] = queue.SimpleQueue()
        self.send({"number": number, "do": do, **arguments})
        thrown: BaseException = AssertionError("the work has not run")
        while True:
            answer = answers.get(timeout=120)
            if "work" not in answer:
                break
            assert work is not None
            try:
                ended = {"result": work(Lease(self, answer["work"]))}
            except BaseException as error:
                thrown = error
                ended = {"notDone" if isinstance(error, latchgate.NotDone) else "failed": str(error)}
            self.send({"number": 0, "do": "ended", "call": number, **ended})
        del self._calls[number]
        if "error" not in answer:
            return answer.get("value")
        raise thrown if answer["error"]["kind"] == "work" else _error(answer["error"])

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        line = json.dumps(message) + "\n"
        with self._sending:
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._calls[answer["number"]].put(answer)
        for answers in list(self._calls.values()):
            answers.put({"error": {"kind": "options", "detail": "the agent has ended"}})


@functools.cache
def _agent(environment: frozenset[tuple[str, str]]) -> Agent:
    """One for each environment of clients."""
    return Agent()


def _error(said: dict[str, Any]) -> BaseException:
    kind, detail = said["kind"], said["detail"]
    if kind == "cancelled":
        return Cancelled(detail)
    if kind == "options":  # an error for what the caller has written
        return ValueError(detail)
    error = latchgate.Error(said["code"], detail, said.get("status") or None, said.get("fields"))
    if kind == "NotRecorded":
        return latchgate.NotRecorded(error, said.get("result"))
    return getattr(latchgate, kind)(error.code, detail, error.status, error.fields)  # type: ignore[no-any-return]


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """As they are named there."""
    wire = {}
    for name, value in options.items():
        if name in _DURATIONS:
            name, value = name + "_ms", value and round(value * 1_000)
        first, *words = name.split("_")
        if value is not None:
            wire[first + "".join(word.capitalize() for word in words)] = value
    return wire


class Value:
    """What a call has returned."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__.get(name)


class Lease(Value):
    """A lease, or an attempt."""

    def __init__(self, agent: Agent, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.agent = agent
        self.lost = Loss(self)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.agent.call("state", lease=self.lease)
        return state

    def remaining(self) -> float:
        return float(self.state()["remaining_ms"] / 1_000)

    @property
    def revocation(self) -> Value | None:
        revocation = self.state().get("revocation")
        return revocation and Value(revocation)

    def check(self) -> None:
        if error := self.state().get("lost"):
            raise _error(error)

    def release(self) -> None:
        self.agent.call("release", lease=self.lease)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        try:
            self.release()
        except latchgate.Error:
            if kind is None:
                raise

    def __del__(self) -> None:
        self.agent.send({"number": 0, "do": "forget", "lease": self.lease})


class Loss:
    def __init__(self, lease: Lease) -> None:
        self._agent, self._lease = lease.agent, lease.lease

    def is_set(self) -> bool:
        return self._agent.call("state", lease=self._lease).get("lost") is not None

    def wait(self, seconds: float) -> bool:
        self._agent.call("lost", lease=self._lease)
        return True


class Client:
    def __init__(self, urls: Any = None, **options: Any) -> None:
        self._agent = _agent(frozenset((name, value) for name, value in os.environ.items() if name.startswith("LATCHGATE_")))
        self._number = next(numbers)
        urls = [urls] if isinstance(urls, str) else urls
        self._call("client", urls=urls, **_options(options))

    def _call(self, do: str, **arguments: Any) -> Any:
        return self._agent.call(do, client=self._number, **{name: value for name, value in arguments.items() if value is not None})

    def lock(self, key: str, call: int = 0, **options: Any) -> Lease:
        """The number of the call is for `cancel`."""
        return Lease(self._agent, self._call("lock", call=call, key=key, **_options(options)))

    def try_lock(self, key: str, **options: Any) -> Lease | None:
        try:
            return self.lock(key, wait=0, **options)
        except latchgate.LockHeld:
            return None

    def multilock(self, keys: list[Any], **options: Any) -> Lease:
        wire = [_options({"key": key} if isinstance(key, str) else {k: v or None for k, v in vars(key).items()}) for key in keys]
        return Lease(self._agent, self._call("multilock", keys=wire, **_options(options)))

    def once(self, contents: Any, work: Callable[[Any], Any], *, checked: Any = None, **options: Any) -> Value:
        return Value(self._call("once", work=work, contents=contents, checked=checked, **_options(options)))

    def cancel(self, call: int) -> None:
        self._agent.send({"number": 0, "do": "cancel", "call": call})

    def queued(self) -> int:
        """How many callers wait, or hold a turn, in the process."""
        return int(self._call("queued"))

    def fence(self, key: str, token: int) -> None:
        self._call("fence", key=key, token=token)

    def revoke(self, key: str, **options: Any) -> Value:
        return Value(self._call("revoke", key=key, **_options(options)))

    def events(self, key: str, after: str | None = None) -> Events:
        return Events(self._agent, self._call("events", key=key, after=after))


class Events:
    def __init__(self, agent: Agent, number: int) -> None:
        self._agent, self._number = agent, number

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Value:
        return Value(self._agent.call("next", events=self._number))
