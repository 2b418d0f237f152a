"""The scenarios of the gate: see ../../SCENARIOS.md."""

from __future__ import annotations

import os
import signal
import threading
import unittest
from typing import Any
from unittest.mock import patch

from latchgate import NotDone, OperationInProgress, OperationUnknown

from .world import IS_AIO, Background, Scenario, eventually


class Gate(Scenario):
    def test_14_parallel_callers_run_the_work_once(self) -> None:
        runs: list[object] = []

        def work(_: object) -> dict[str, int]:
            runs.append(1)
            return {"receipt": 7}

        def call(index: int) -> Background:
            node = (self.a, self.b)[index % 2]
            return Background(lambda: self.client(node).once({"order": self.key}, work, operation="charge"))

        results = [call.result() for call in [call(index) for index in range(20)]]
        self.assertEqual(len(runs), 1)
        self.assertEqual([done.result for done in results], [{"receipt": 7}] * 20)
        self.assertEqual(sum(not done.duplicate for done in results), 1)

    def test_15_a_duplicate_gets_the_stored_result(self) -> None:
        client = self.client()
        done = client.once({"a": self.key, "b": [1]}, lambda _: "receipt 7", operation="charge")
        self.assertEqual((done.result, done.duplicate), ("receipt 7", False))
        done = client.once({"b": [1.0], "a": self.key}, lambda _: "receipt 8", operation="charge")
        self.assertEqual((done.result, done.duplicate, done.result_omitted), ("receipt 7", True, False))

    def test_15_a_result_that_cannot_be_stored_is_omitted(self) -> None:
        for number, result in enumerate([object(), float("nan"), "too long for a request" * 10_000, "too long" * 10_000]):
            contents = [self.key, number]
            done: Any = self.client().once(contents, lambda _: result, operation="test")
            self.assertEqual((done.result is result, done.result_omitted), (True, True))
            done = self.client().once(contents, lambda _: "again", operation="test")
            self.assertEqual((done.result, done.duplicate), (None, True))

    def test_16_work_that_fails_may_run_again_unless_its_outcome_is_unknown(self) -> None:
        client = self.client()

        def fail(_: object) -> None:
            raise ZeroDivisionError

        def nothing_done(_: object) -> None:
            raise NotDone

        with self.assertRaises(ZeroDivisionError):
            client.once(self.key, fail, operation="retry", on_expiry="retry")
        self.assertEqual(client.once(self.key, lambda _: 1, operation="retry", on_expiry="retry").result, 1)
        with self.assertRaises(NotDone):
            client.once(self.key, nothing_done, operation="block")
        with self.assertRaises(ZeroDivisionError):
            client.once(self.key, fail, operation="block")
        with self.assertRaises(OperationUnknown) as raised:
            client.once(self.key, lambda _: 1, operation="block")
        self.assertEqual(raised.exception.fields["why"], "reported")

    @unittest.skipIf(IS_AIO, "its calls are cancelled: see test_aio.py")
    def test_16_a_call_that_is_interrupted_before_the_work_lets_the_next_one_run(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy)
        client.lock(self.key).release()  # its thread runs
        wait = threading.Event.wait

        def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
            is_set = wait(event, timeout)
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return is_set

        # In the very moment of the answer.
        with patch.object(threading.Event, "wait", interrupted):
            with self.assertRaises(KeyboardInterrupt):
                client.once(self.key, lambda _: 1, operation="test")
            with self.assertRaises(KeyboardInterrupt):
                client.lock(self.key)
        proxy.hangs = f"{self.key}/hangs"

        def interrupt() -> None:
            eventually(lambda: len(proxy.requests("/pre")) > before, "a pre")
            os.kill(os.getpid(), signal.SIGINT)

        before = len(proxy.requests("/pre"))
        background = Background(interrupt)
        with self.assertRaises(KeyboardInterrupt):
            client.once(proxy.hangs, lambda _: 1, operation="test")
        background.result()
        for contents in (self.key, proxy.hangs):
            self.assertEqual(self.client(self.b).once(contents, lambda _: 2, operation="test").result, 2)
        self.free(self.key)

    def test_17_heartbeats_keep_the_attempt(self) -> None:
        def work(attempt: Any) -> int:
            beats = 0
            for _ in range(4):
                before = attempt._keeper.last.sent
                eventually(lambda: attempt._keeper.last.sent > before or attempt.lost.is_set(), "a heartbeat")
                with self.assertRaises(OperationInProgress):
                    self.client(self.b).once(self.key, lambda _: 0, operation="test", wait=0)
                attempt.check()
                beats += 1
            return beats

        self.assertEqual(self.client(self.a).once(self.key, work, operation="test", ttl=6).result, 4)

    def test_18_the_answers_to_a_pre_and_a_post_are_lost(self) -> None:
        proxy = self.proxy(self.a)
        runs: list[object] = []
        proxy.lose("pre")
        proxy.lose("post")
        done = self.client(proxy).once(self.key, runs.append, operation="test")
        self.assertEqual((len(runs), done.duplicate), (1, False))
        self.assertEqual(len({body["attempt_id"] for body in proxy.requests("/pre")}), 1)
        self.assertEqual((len(proxy.requests("/pre")), len(proxy.requests("/post"))), (2, 2))
        self.assertTrue(self.client(self.b).once(self.key, runs.append, operation="test").duplicate)
        self.assertEqual(len(runs), 1)
