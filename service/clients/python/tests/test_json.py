"""What JSON cannot say, and options of a wrong type: refused before anything is sent, with the name of the member."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import math
import unittest
from typing import Any, NamedTuple

import latchgate
from latchgate._json import json_of

# No node listens there: what is sent all the same is an Unavailable.
NOWHERE = "http://127.0.0.1:9"


@dataclasses.dataclass
class Order:
    number: int


class Amount(NamedTuple):
    value: int


class Unset(enum.Enum):
    VALUE = 1


SAID_BY_NO_JSON: list[tuple[Any, str]] = [
    (math.nan, ""),
    (-math.inf, ""),
    ({1, 2}, ""),
    (b"order 42", ""),
    ({1: "a"}, ""),
    (Order(42), ""),
    (Amount(7), ""),
    (Unset.VALUE, ""),
    (datetime.datetime(2026, 11, 28), ""),
    (decimal.Decimal("19.90"), ""),
    (2**53, ""),
    (-1e300, ""),
    ("\ud800", ""),
    ({"a\udc00": 1}, ""),
    (iter([1]), ""),
    (lambda: 7, ""),
    (object(), ""),
    ({"lines": [{"amount": decimal.Decimal(1)}]}, ".lines[0].amount"),
    ([0, (1, {"a": {"b": b""}})], "[1][1].a.b"),
]


class Json(unittest.TestCase):
    def setUp(self) -> None:
        self.client = latchgate.Client(NOWHERE, retry_for=0.01)
        self.aio = latchgate.aio.Client(NOWHERE, retry_for=0.01)

    def once(self, contents: Any = "contents", **options: Any) -> None:
        """Both clients refuse it before anything is sent."""
        work = options.pop("work", lambda _: self.fail("it runs"))
        with self.assertRaises((TypeError, ValueError)) as raised:
            self.client.once(contents, work, **{"operation": "test", **options})
        with self.assertRaises((TypeError, ValueError)) as again:
            asyncio.run(self.aio.once(contents, work, **{"operation": "test", **options}))
        self.assertEqual(str(raised.exception), str(again.exception))
        self.said = str(raised.exception)

    def test_37_what_json_cannot_say_is_refused_with_its_place(self) -> None:
        for value, place in SAID_BY_NO_JSON:
            with self.subTest(value=repr(value)):
                self.once(value)
                self.assertRegex(self.said, f"^(a key of )?contents{place} ".replace("[", r"\[").replace("]", r"\]"))
                self.once(checked={"a": value})
                self.assertIn("checked.a", self.said)
                with self.assertRaisesRegex((TypeError, ValueError), r"metadata\.a"):
                    self.client.lock("k", metadata={"a": value})
        endless: list[Any] = []
        endless.append(endless)
        self.once(endless)
        self.assertIn("contents", self.said)

    def test_what_json_can_say_is_copied(self) -> None:
        class Text(str, enum.Enum):
            A = "a"

        for value in (None, True, 7, -0.5, "ü\N{GRINNING FACE}\0", [], {}, {"a": [1, {"b": None}]}, Text.A):
            self.assertEqual(json_of(value, "value"), value)
        self.assertEqual(json_of((1, (2,)), "value"), [1, [2]])
        self.assertEqual(json_of(10**400, "result", is_exact=False), 10**400)

    def test_37_contents_that_say_nothing_are_refused(self) -> None:
        for contents in (None, "", {}, [], (), {"order": None}, [None, None], {"a": [{"b": ""}, [], None]}):
            with self.subTest(contents=contents):
                self.once(contents)
                self.assertIn("contents", self.said)

    def test_42_options_of_a_wrong_type_are_named(self) -> None:
        wrong: dict[str, list[Any]] = {
            "wait": ["5", math.nan, -1, True],
            "ttl": ["60", math.inf, math.nan, None, -1],
            "retention": ["1d", datetime.timedelta(days=1), math.nan, math.inf],
            "permanent": ["no", 1],
            "operation": [7, b"charge", None],
            "on_expiry": ["never", None, True],
            "on_outage": ["open", "fallback", "closed", True],
            "durability": ["sturdy", 7],
        }
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name=name, value=value):
                    self.once(**{name: value})
                    self.assertIn(name, self.said)
        wrong = {
            "key": [7, None, b"orders"],
            "wait": ["5", math.nan, -0.1],
            "ttl": ["30", math.nan, None],
            "shared": ["yes", 1],
            "reentrant": ["no", 0],
            "barge": ["no"],
            "permits": ["2", 1.5, True],
            "limit": [b"3", math.nan],
            "group_limit": ["3"],
            "group": [7],
            "owner": [7, b"me"],
            "priority": ["high", math.nan, 1.5],
            "delay": ["1", math.inf],
            "min_hold": [math.nan],
            "max_hold": ["1h"],
            "metadata": ["text", [1]],
        }
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name=name, value=value), self.assertRaisesRegex((TypeError, ValueError), name):
                    self.client.lock(**{"key": "k", **{name: value}})
                if name not in ("key", "shared", "barge", "permits", "limit", "group", "group_limit"):
                    with self.assertRaisesRegex((TypeError, ValueError), name):
                        self.client.multilock(["k"], **{name: value})
        with self.assertRaisesRegex(TypeError, "key"):
            self.client.multilock([latchgate.Key(7)])  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "keys"):
            self.client.multilock("orders")
        with self.assertRaises(TypeError):
            self.client.lock("k", wait_ms="5")  # type: ignore[call-arg]
        for name in ("timeout", "retry_for", "wait_per_call"):
            for value in ("5", math.nan, -1, None):
                with self.assertRaisesRegex((TypeError, ValueError), name):
                    latchgate.Client(NOWHERE, **{name: value})  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "token"):
            self.client.fence("k", "7")  # type: ignore[arg-type]
        for urls in (5, b"http://127.0.0.1:1", [], [NOWHERE, None]):
            with self.assertRaisesRegex((TypeError, ValueError), "urls" if urls else "URL"):
                latchgate.Client(urls)  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "api_key") as raised:
            latchgate.Client(NOWHERE, api_key=b"lgk_0123456789ab_c0ffee")  # type: ignore[arg-type]
        self.assertNotIn("0ffee", str(raised.exception))
        for after in ("a\nb", "\0", 7):
            with self.assertRaises((ValueError, TypeError)):
                self.client.events("k", after=after)  # type: ignore[arg-type]

    def test_42_work_that_cannot_be_called_is_noticed_before_the_pre(self) -> None:
        def generator(_: object) -> Any:
            yield self.fail("it runs")

        for work in (lambda: 7, lambda a, b: 7, lambda *, attempt: 7, divmod, generator, 7, None):
            with self.subTest(work=work):
                self.once(work=work)
                self.assertIn("work", self.said)

        async def awaited(_: object) -> None: ...

        with self.assertRaisesRegex(TypeError, "work"):
            self.client.once("contents", awaited, operation="test")

        calls: list[int] = []

        @latchgate.once("test", client=self.client, contents=lambda *_: calls.append(1) or "contents")  # type: ignore[func-returns-value]
        def charge(order: int) -> int:
            return order

        with self.assertRaisesRegex(TypeError, "order"):
            charge()  # type: ignore[call-arg]
        self.assertEqual(calls, [])
