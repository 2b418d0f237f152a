"""The scenarios of the gate: see ../../SCENARIOS.md."""

from __future__ import annotations

import decimal
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from latchgate import Error, NotDone, NotRecorded, OperationInProgress, OperationUnknown, Refused, Unavailable

from .world import IS_PYTHON, KIND, PATIENCE, Background, Proxy, Scenario, eventually, only, problem, request

# How the detail of an unknown outcome names an error without a class of its own.
PREFIX = {"go": "*errors.errorString: ", "java": "io.latchgate.Agent$WorkFailed: ", "rust": "", "typescript": "Error: "}.get(KIND, "Exception: ")


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

    def test_36_every_caller_sees_that_a_result_could_not_be_stored(self) -> None:
        results: list[Any] = ["too long" * 10_000, "\0" * 30_000, "x" * 200_000, "too long for a request" * 100_000]
        if IS_PYTHON:
            results += [object(), float("nan"), decimal.Decimal(1), {1: 2}, b"7", "\ud800"]
        for number, result in enumerate(results):
            contents = [self.key, number]
            done: Any = self.client().once(contents, lambda _: result, operation="test")
            self.assertEqual((done.result == result or done.result is result, done.duplicate, done.result_omitted), (True, False, True))
            for _ in range(2):
                done = self.client().once(contents, lambda _: "again", operation="test")
                self.assertEqual((done.result, done.duplicate, done.result_omitted), (None, True, True))
        for number, result in enumerate([None, 2**60 if IS_PYTHON else 7, "x" * 65_534, {"a": [1e300]}]):
            done = self.client().once([self.key, -number], lambda _: result, operation="stored")
            again = self.client().once([self.key, -number], lambda _: "again", operation="stored")
            self.assertEqual((again.result, done.result_omitted, again.result_omitted), (result, False, False))

    def test_39_how_long_a_success_is_kept_is_checked_before_the_work(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy)
        with self.assertRaises(Refused) as raised:
            client.once(self.key, lambda _: self.fail("it runs"), operation="test", retention=10 * 366 * 86_400)
        self.assertEqual((raised.exception.status, raised.exception.fields["field"]), (400, "retention_ms"))
        with self.assertRaises(Refused):
            client.once(self.key, lambda _: self.fail("it runs"), operation="test", label="l" * 300)
        client.once(self.key, lambda _: 7, operation="test", retention=3_600)
        client.once([self.key, 1], lambda _: 7, operation="test", permanent=True)
        kept = [(body.get("retention_ms"), body.get("permanent")) for body in proxy.requests("/pre")]
        self.assertEqual(kept[2:], [(3_600_000, None), (None, True)])
        with self.assertRaises((Refused, ValueError)):
            client.once([self.key, 2], lambda _: self.fail("it runs"), operation="test", retention=60, permanent=True)

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

    def test_38_an_unknown_outcome_has_evidence_for_the_person_who_must_decide(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy)

        class Declined(Exception):
            pass

        # Another client throws an error of its own with the same text.
        errors: list[BaseException] = [Exception("7 by 0"), Declined("\ud800 \0\n" + "x" * 5_000), KeyError(self.key)]
        if KIND == "blocking":  # it would end the event loop of the tests
            errors.append(SystemExit(3))
        for number, error in enumerate(errors):

            def fail(_: object) -> None:
                raise error

            with self.assertRaises(type(error)):
                client.once([self.key, number], fail, operation="test", label="shop: order 7")
            with self.assertRaises(OperationUnknown) as raised:
                client.once([self.key, number], fail, operation="test")
            self.assertEqual(raised.exception.fields["label"], "shop: order 7")
        details = [body["detail"] for body in proxy.requests("/post")]
        for detail, said in zip(details, [PREFIX + "7 by 0", "Declined: " if IS_PYTHON else PREFIX, repr(self.key), "SystemExit: 3"]):
            self.assertIn(said, detail)
            self.assertRegex(detail, r"\nThe last heartbeat that was answered was sent \d+ s before this report\.$")
            self.assertLessEqual(len(detail.encode()), 2_048)

    @only("blocking")
    def test_16_a_call_interrupted_before_the_work_lets_the_next_one_run(self) -> None:
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

    def test_17_heartbeats_keep_the_attempt_and_a_waiter_gets_one_that_lasts(self) -> None:
        waiters: list[Background] = []
        options: dict[str, Any] = {"operation": "test", "on_expiry": "retry", "ttl": 6}

        def work(attempt: Any) -> None:
            waiters.append(Background(lambda: self.client(self.b).once(self.key, lasts, **options)))
            for _ in range(4):
                self.until_renewed(attempt)
                with self.assertRaises(OperationInProgress):
                    self.client(self.b).once(self.key, lambda _: 0, **options, wait=0)
            raise NotDone

        def lasts(attempt: Any) -> int:
            attempt.check()
            self.assertGreater(attempt.remaining(), 0)
            return 7

        with self.assertRaises(NotDone):
            self.client(self.a).once(self.key, work, **options)
        self.assertEqual(waiters[0].result().result, 7)

    def test_17_a_node_that_ends_waits_at_once_is_not_asked_again_at_once(self) -> None:
        proxy = self.proxy(self.a)
        proxy.ends_waits = True

        def work(_: object) -> None:
            with self.assertRaises(OperationInProgress):
                self.client(proxy).once(self.key, lambda _: 0, operation="test", wait=3)

        self.client(self.b).once(self.key, work, operation="test")
        self.assertLess(len(proxy.requests("/pre")), 20)

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


class Proceed(Scenario):
    """`on_outage="proceed"`: the work runs while the gate is away, and the run is entered afterwards."""

    def setUp(self) -> None:
        super().setUp()
        self.runs: list[bool] = []
        self.gate = self.proxy(self.a)

    def work(self, attempt: Any) -> str:
        attempt.check()
        self.runs.append(attempt.guarded)
        self.assertEqual((attempt.id is None, attempt.remaining() > 0), (not attempt.guarded, attempt.guarded))
        return "receipt 7"

    def once(self, **options: Any) -> Any:
        client = self.client(self.gate, retry_for=options.pop("retry_for", 30))
        return client.once(self.key, options.pop("work", self.work), **{"operation": "charge", "on_outage": "proceed", **options})

    def answering(self, answers: Callable[[str, Any], Any]) -> Proxy:
        gate = self.proxy(self.a)
        gate.answers = answers
        return gate

    def errors(self, gates: Iterable[Proxy]) -> Iterator[Error]:
        """Of a call through each gate, all at once."""
        clients = [self.client(gate, retry_for=6) for gate in gates]
        options = {"operation": "charge", "on_outage": "proceed", "ttl": 2}
        calls = [Background(partial(client.once, f"{self.key}/{number}", self.work, **options)) for number, client in enumerate(clients)]
        for number, call in enumerate(calls):
            with self.subTest(gate=number):
                with self.assertRaises(Error) as raised:
                    call.result()
                yield raised.exception

    def away(self, code: str = "store-unavailable", status: int = 503) -> None:
        # A pre need not be repeated: its time is over before.
        self.gate.then_refuse = {"pre": (status, code, 600_000), "enter": (status, code)}

    def back(self) -> None:
        self.gate.then_refuse.clear()
        for verb in ("pre", "post"):
            self.gate.lose(verb, 0)

    def test_40_the_work_runs_while_the_store_is_away_and_is_entered_later(self) -> None:
        self.away()
        with self.assertRaises(Unavailable):
            self.once(on_outage=None)
        self.assertEqual(self.runs, [])
        done = self.once(checked=[7], retention=3_600)
        self.assertEqual((done.result, done.duplicate, self.runs), ("receipt 7", False, [False]))
        eventually(lambda: len(self.gate.requests("/enter")) > 3, "entries are repeated")
        self.gate.then_refuse.clear()
        eventually(lambda: self.record().get("state") == "succeeded", "it is entered")
        done = self.client(self.b).once(self.key, self.work, operation="charge")
        self.assertEqual((done.result, done.duplicate, self.runs), ("receipt 7", True, [False]))
        self.assertEqual(len({body["attempt_id"] for body in self.gate.requests("/enter")}), 1)

    def record(self) -> dict[str, Any]:
        """What a node says of the operation; nothing if it knows nothing."""
        contents = {"operation": "charge", "contents": self.key}
        id = request(self.a.url, "POST", "/v1/operations/preview", contents)["id"]
        try:
            return self.b.get(f"/v1/operations/{id}")
        except AssertionError:
            return {}

    def test_40_one_request_that_hangs_is_no_outage(self) -> None:
        over = threading.Event()
        self.addCleanup(over.set)

        def hang_once(path: str, body: Any) -> None:
            if len(self.gate.seen) == 1:
                over.wait()

        self.gate.answers = hang_once
        self.assertEqual(self.once(retry_for=9).result, "receipt 7")
        self.assertEqual(self.runs, [True])

    def test_40_each_node_is_asked_before_the_work_runs_however_short_the_time(self) -> None:
        self.client(self.b).once(self.key, self.work, operation="charge")
        gone = SimpleNamespace(url="http://127.0.0.1:1")
        calls = [0.001, 0.05, 0.1, 0.001, 0.05, 0.1]
        for retry_for in calls:
            with suppress(Unavailable):  # the answer may be cut, if the call's time ends within it
                self.client(gone, self.gate, retry_for=retry_for).once(self.key, self.work, operation="charge", on_outage="proceed")
        eventually(lambda: len(self.gate.requests("/pre")) >= len(calls), "it is asked in each call")

    def test_40_each_node_is_asked_also_if_other_calls_move_on_meanwhile(self) -> None:
        self.client(self.b).once(self.key, self.work, operation="charge")
        nodes = [self.proxy(self.b) for _ in range(3)]
        asked: dict[str, list[int]] = {"charge": [], "other": []}
        moved, answered = threading.Event(), threading.Event()

        def answers_of(node: int) -> Any:
            def answers(path: str, body: Any) -> Any:
                if path.endswith("/pre"):
                    seen = asked[body["operation"]]
                    seen.append(node)
                    if body["operation"] == "charge":
                        if len(seen) == 1:
                            moved.wait(PATIENCE)
                        elif node == (seen[0] + 1) % 3:
                            return None  # which knows that it is done
                    elif len(seen) == 3:
                        moved.set()
                        answered.wait(PATIENCE)
                return 503, problem("store-unavailable", 60_000)

            return answers

        for node, proxy in enumerate(nodes):
            proxy.answers = answers_of(node)
        client = self.client(*nodes)
        charged = Background(lambda: client.once(self.key, self.work, operation="charge", on_outage="proceed"))
        eventually(lambda: asked["charge"], "the call that is to be answered")
        other = Background(lambda: client.once(self.key, self.work, operation="other"))
        done = charged.result()
        answered.set()
        self.assertTrue(done.duplicate)
        with self.assertRaises(Unavailable):
            other.result()

    def test_40_the_work_runs_if_no_node_answers(self) -> None:
        a, b = self.pair()
        a.kill()
        done = self.client(a, retry_for=0.5).once(self.key, self.work, operation="charge", on_outage="proceed")
        self.assertEqual((done.result, self.runs), ("receipt 7", [False]))
        # The claim is granted, and its answer is lost: the entry ends that very attempt.
        self.gate.lose("pre", 1_000_000)
        self.key += "/lost"
        self.once(retry_for=1)
        self.assertEqual(self.runs, [False, False])
        eventually(lambda: self.record().get("state") == "succeeded", "it is entered")
        self.assertEqual(self.record().get("suspected_double_runs", 0), 0)

    def test_40_the_work_does_not_run_for_another_reason(self) -> None:
        refusals = {"shutting-down": 503, "rate-limited": 429, "internal-error": 500, "unauthorized": 401, "operation-unknown": 409}
        for code, status in refusals.items():
            self.away(code, status)
            with self.subTest(code=code), self.assertRaises(Error):
                self.once()
        self.gate.then_refuse.clear()

        def beside(_: object) -> None:
            # Another attempt is known to run; then the gate goes away.
            self.gate.ends_waits = True
            call = Background(lambda: self.once(wait=6, retry_for=2))
            eventually(lambda: len(self.gate.requests("/pre")) > before + 1, "it is refused, and calls again")
            self.gate.then_refuse["pre"] = (503, "store-unavailable")
            refused = len(self.gate.requests("/pre"))
            with self.assertRaises((Unavailable, OperationInProgress)):
                call.result()
            self.assertGreater(len(self.gate.requests("/pre")), refused + 1)

        before = len(self.gate.requests("/pre"))
        self.client(self.b).once(self.key, beside, operation="charge")
        self.assertEqual(self.runs, [])

    def test_50_only_a_gateway_that_reaches_no_node_is_an_outage(self) -> None:
        def always(status: int, answer: dict[str, Any] | str) -> Any:
            return lambda path, body: (status, answer) if path.endswith("/pre") else None

        # A wrong route, a login page, a limit of the gateway; and what no gate says to a pre, which has no stamp.
        statuses = (200, 302, 401, 403, 404, 409, 413, 423, 429, 500)
        gates = [self.answering(always(status, {"ttl_ms": 60_000, "code": "FORBIDDEN"})) for status in statuses]
        # A body that is too long is not read to its end.
        gates.append(self.answering(always(502, " " * ((65 if KIND == "rust" else 5) << 20))))
        self.assertEqual(len(list(self.errors(gates))), 11)
        self.assertEqual(self.runs, [])
        for status, answer in ((502, {"code": "BAD_GATEWAY"}), (503, "busy"), (504, "<html>"), (200, "<html>")):
            self.gate.answers = always(status, answer)
            self.key += "/next"
            with self.subTest(answer=answer):
                self.assertEqual(self.once(retry_for=0.5).result, "receipt 7")
        self.assertEqual(self.runs, [False] * 4)

    def test_50_an_answer_whose_body_cannot_be_read_is_no_outage(self) -> None:
        refusals = {"operation-duplicate": 409, "unauthorized": 401, "moved": 302, "internal-error": 500, "outcome-unknown": 503}

        def refusing(code: str, breaks: str, then: str) -> Proxy:
            gate = self.proxy(self.a)
            gate.breaks = breaks
            if then == "silence":
                gate.hangs = self.key
            gate.answers = lambda path, body: (refusals[code], problem(code)) if then == "the same" or len(gate.requests("/pre")) == 1 else None
            return gate

        ways = (("cut", "the same"), ("hangs", "the same"), ("cut", "silence"))
        gates = [refusing(code, *way) for way in ways for code in refusals]
        for gate, error in zip(gates, self.errors(gates), strict=True):
            self.assertIsInstance(error, Unavailable)
            if KIND != "rust":
                self.assertEqual(error.code, "foreign-answer")
            self.assertGreater(len(gate.requests("/pre")), 1)
        self.assertEqual(self.runs, [])
        # As good as no answer: only a claim that can be read is one.
        gate = self.gate = self.proxy(self.a)
        gate.breaks = "cut"
        gate.answers = lambda path, body: (200, {"id": "a" * 32, "stamp": "s", "ttl_ms": 60_000}) if path.endswith("/pre") else None
        self.once(retry_for=0.6)
        self.assertEqual(self.runs, [False])

    def test_50_an_answer_in_JSON_that_is_no_claim_is_no_outage(self) -> None:
        claim = {"id": "a" * 32, "stamp": "s", "ttl_ms": 60_000}
        others: list[dict[str, Any] | str] = ["[]", '"ok"', "null", {}, {**claim, "ttl_ms": 0}, {**claim, "id": 7}, {**claim, "stamp": None}]
        others += [{other: claim[other] for other in claim if other != name} for name in claim]
        gates = [self.answering(lambda path, body, other=other: (200, other) if path.endswith("/pre") else None) for other in others]
        for error in self.errors(gates):
            self.assertIsInstance(error, Unavailable)
            if KIND != "rust":
                self.assertEqual(error.code, "foreign-answer")
        self.assertEqual(self.runs, [])

    def test_49_what_a_node_has_answered_counts_although_silence_follows(self) -> None:
        for code, runs in (("outcome-unknown", []), ("overloaded", []), ("store-unavailable", [False])):
            self.key += "/next"
            gate = self.gate = self.proxy(self.a)
            gate.hangs = self.key
            gate.answers = lambda path, body: (503, problem(code)) if len(gate.requests("/pre")) == 1 else None
            with self.subTest(code=code):
                try:
                    self.once(retry_for=2, ttl=2)
                except Unavailable:
                    pass
                self.assertGreater(len(gate.requests("/pre")), 1)
                self.assertEqual(self.runs, runs)

    def test_40_a_success_that_the_store_has_lost_is_entered(self) -> None:
        def work(attempt: Any) -> str:
            self.gate.then_refuse["post"] = (503, "store-unavailable")
            return self.work(attempt)

        for status, code in ((404, "operation-not-found"), (403, "stamp-mismatch")):
            self.key += "/next"
            self.once(work=work, ttl=4, retry_for=3)
            self.gate.then_refuse["post"] = (status, code)
            eventually(lambda: self.record().get("state") == "succeeded", "it is entered")
            self.assertEqual(self.record().get("suspected_double_runs", 0), 0)
        claimed = [body["attempt_id"] for body in self.gate.requests("/pre")]
        self.assertEqual([body["attempt_id"] for body in self.gate.requests("/enter")], claimed)

    def test_40_a_success_that_the_store_has_lost_at_the_first_post_is_entered(self) -> None:
        def work(attempt: Any) -> str:
            self.gate.then_refuse["post"] = (status, code)
            return self.work(attempt)

        entered = []
        for status, code in ((404, "operation-not-found"), (403, "stamp-mismatch")):
            self.key += "/next"
            with self.assertRaises(NotRecorded) as raised:
                self.once(work=work, on_outage=None)
            self.assertEqual((raised.exception.code, raised.exception.result), (code, "receipt 7"))
            self.back()
            self.key += "/next"
            done = self.once(work=work)
            self.assertEqual((done.result, done.duplicate, done.result_omitted), ("receipt 7", False, False))
            eventually(lambda: self.record().get("state") == "succeeded", "it is entered")
            self.assertEqual(self.record().get("suspected_double_runs", 0), 0)
            entered.append(self.gate.requests("/pre")[-1]["attempt_id"])
            self.back()
        self.assertEqual([body["attempt_id"] for body in self.gate.requests("/enter")], entered)
        self.assertEqual(self.runs, [True] * 4)

    def test_50_a_success_is_recorded_by_an_answer_that_has_its_outcome(self) -> None:
        times = 0

        def answers(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any] | str] | None:
            is_foreign = path.endswith(verb) and len(self.gate.requests(verb)) <= times
            return (200, {}) if is_foreign else None

        verb, times, self.gate.answers = "/post", 2, answers
        self.assertEqual(self.once().result, "receipt 7")
        self.assertEqual((self.record()["state"], len(self.gate.requests("/post"))), ("succeeded", 3))
        self.key, times = f"{self.key}/next", 1_000_000
        with self.assertRaises(NotRecorded) as raised:
            self.once(on_outage=None, retry_for=2, ttl=6)
        if KIND != "rust":
            self.assertEqual(raised.exception.code, "foreign-answer")
        # Later is not too late.
        self.key += "/next"
        self.once(retry_for=2, ttl=6)
        times = 0
        eventually(lambda: self.record().get("state") == "succeeded", "it is recorded")
        self.key, verb, times = f"{self.key}/next", "/enter", 2
        self.away()
        self.once()
        self.gate.then_refuse.clear()
        eventually(lambda: self.record().get("state") == "succeeded", "it is entered")

    @patch("latchgate._entries._log.log")
    def test_40_a_run_that_cannot_be_entered_stays_and_no_other_waits_for_it(self, log: Any) -> None:
        first = self.key

        def answers(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any] | str] | None:
            return refusal if path.endswith("/enter") and body["contents"] == first else None

        self.away()
        self.gate.answers = answers
        client = self.client(self.gate, retry_for=0.5)
        for status, code in ((503, "store-unavailable"), (401, "unauthorized"), (403, "forbidden")):
            refusal = (status, problem(code))
            client.once(first, self.work, operation="charge", on_outage="proceed")
            self.key = f"{first}/next"
            client.once(self.key, self.work, operation="charge", on_outage="proceed")
            self.gate.then_refuse.clear()
            eventually(lambda: self.record().get("state") == "succeeded", "the second is entered")
            self.key = first
            eventually(lambda: sum(body["contents"] == first for body in self.gate.requests("/enter")) > 2, "it is tried again")
            self.assertEqual(self.record(), {})
            self.gate.answers = lambda path, body: None
            eventually(lambda: self.record().get("state") == "succeeded", "the first is entered")
            first = self.key = f"{first}/{code}"
            self.away()
            self.gate.answers = answers
        if IS_PYTHON:
            # A refusal is said once.
            self.assertEqual(sum(call.args[0] == logging.WARNING for call in log.call_args_list), 2)

    def test_40_a_success_that_no_node_records_is_entered_afterwards(self) -> None:
        client = self.client(self.gate, retry_for=5)

        def once(**options: Any) -> Any:
            self.key += "/next"
            return client.once(self.key, work, operation="charge", ttl=5, **options)

        def work(attempt: Any) -> str:
            if is_lost:
                self.gate.lose("post", 1_000_000)
            else:
                self.gate.then_refuse["post"] = (503, "store-unavailable")
            return self.work(attempt)

        # The last one is recorded after the others.
        for is_lost in (True, False):
            with self.assertRaises(NotRecorded) as raised:
                once()
            self.assertEqual(raised.exception.result, "receipt 7")
            self.back()
            done = once(on_outage="proceed")
            self.assertEqual((done.result, done.duplicate), ("receipt 7", False))
            self.back()
            eventually(lambda: self.record().get("state") == "succeeded", "it is recorded")
            self.assertEqual(self.record().get("suspected_double_runs", 0), 0)
        self.assertEqual((self.runs, self.gate.requests("/enter")), ([True] * 4, []))

    def test_40_a_second_success_is_counted(self) -> None:
        self.away()
        self.once()
        self.client(self.b).once(self.key, self.work, operation="charge")
        self.gate.then_refuse.clear()
        eventually(lambda: self.record().get("suspected_double_runs"), "it is counted")
        self.assertEqual(self.runs, [False, True])

    def test_40_an_unguarded_run_that_fails_is_not_entered(self) -> None:
        def nothing_done(_: object) -> None:
            raise NotDone

        self.away()
        for error, work in ((NotDone, nothing_done), (ZeroDivisionError, lambda _: 1 / 0)):
            with self.assertRaises(error):
                self.once(work=work)
        # A claim whose answer was lost is given back.
        self.gate.then_refuse.clear()
        self.gate.lose("pre", 1_000_000)
        with self.assertRaises(NotDone):
            self.once(work=nothing_done, retry_for=1)
        self.gate.lose("pre", 0)
        self.assertEqual(self.once().result, "receipt 7")
        if KIND in ("go", "java"):
            # One that may have been claimed is for an operator.
            self.gate.lose("pre", 1_000_000)
            self.key += "/lost"
            with self.assertRaises(ZeroDivisionError):
                self.once(work=lambda _: 1 / 0, retry_for=1)
            self.gate.lose("pre", 0)
            eventually(lambda: self.record().get("state") == "unknown", "an operator must decide")
        self.assertEqual((self.runs, self.gate.requests("/enter")), ([True], []))

    @only("aio", "blocking")
    def test_40_when_too_many_runs_are_not_entered_no_other_one_begins(self) -> None:
        self.away()
        client = self.client(self.gate, retry_for=0.1)
        with patch("latchgate._entries._OPEN_MAX", 2):
            for number in range(2):
                client.once([self.key, number], self.work, operation="charge", on_outage="proceed")
            with self.assertRaises(Unavailable):
                client.once([self.key, 2], self.work, operation="charge", on_outage="proceed")
            self.gate.then_refuse.clear()
            eventually(lambda: client._core.entries.open == 0, "both are entered")
        self.assertEqual(self.runs, [False] * 2)
