"""The scenarios in which nodes are killed or freeze: see ../../SCENARIOS.md."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

from latchgate import Error, LeaseLost, Unavailable
from latchgate._clock import now

from .world import GATEWAYS, Background, Node, Scenario, eventually, only, problem


class Faults(Scenario):
    def test_04_06_a_node_is_killed_or_freezes_while_a_lease_is_held(self) -> None:
        for harm in (Node.kill, Node.freeze):
            with self.subTest(harm=harm):
                a, b = self.pair()
                with self.client(a, b).lock(self.key, ttl=9) as lease:
                    harm(a)
                    self.until_renewed(lease)
                    self.assertEqual([holder["token"] for holder in b.lock(self.key)["holders"]], [lease.token])
                self.free(self.key)

    def test_05_the_position_in_the_queue_survives_the_node(self) -> None:
        a, b = self.pair()
        proxy = self.proxy(a)
        holder = self.client(b).lock(self.key)
        first = Background(lambda: self.client(proxy, b).lock(self.key, owner="first"))
        eventually(lambda: any("ticket" in body for body in proxy.requests("/acquire")), "it has a ticket", within=10)
        second = Background(lambda: self.client(b).lock(self.key, owner="second"))
        eventually(lambda: b.lock(self.key)["waiters"] == 2, "both wait")
        a.kill()
        eventually(lambda: len(b.lock(self.key)["waiting"]) == 2, "both wait at B")
        holder.release()
        with first.result() as lease:
            self.assertGreater(lease.token, holder.token)
            # Between two of its requests, a waiter is not in the list.
            eventually(lambda: [waiter["owner"] for waiter in b.lock(self.key)["waiting"]] == ["second"], "second still waits")
        second.result().release()

    def test_06_a_renewal_asks_each_node_in_turn_whatever_other_calls_find(self) -> None:
        nodes = [self.proxy(self.a) for _ in range(3)]
        refusing = {2}

        def answers_of(node: int) -> Any:
            def answers(path: str, body: Any) -> Any:
                nonlocal refusing
                if path.endswith("/renew") and node < 2:
                    # Meanwhile another call finds that the other one of these two is to be asked first.
                    refusing = {1, 2} if node == 1 else {0}
                    client.lock(f"{self.key}/{uuid.uuid4()}").release()
                elif path.endswith("/renew") or node not in refusing:
                    return None
                return 503, problem("overloaded")

            return answers

        for node, proxy in enumerate(nodes):
            proxy.answers = answers_of(node)
        client = self.client(*nodes)
        with client.lock(self.key, ttl=9) as lease:
            self.until_renewed(lease)

    def test_07_every_node_freezes_for_longer_than_the_ttl(self) -> None:
        a, b = self.pair()
        lease = self.client(a, b).lock(self.key, ttl=2)
        # What is left of it counts from when the request was sent.
        ends = time.monotonic() + lease.remaining()
        a.freeze()
        b.freeze()
        self.assertTrue(lease.lost.wait(60))
        self.assertGreaterEqual(time.monotonic(), ends - 0.01)
        self.assertEqual(lease.remaining(), 0)
        with self.assertRaises(LeaseLost) as raised:
            lease.check()
        self.assertEqual(raised.exception.why, "unanswered")
        with self.assertRaises(LeaseLost):
            lease.release()

    def test_08_a_lease_is_ended_by_force(self) -> None:
        with self.assertRaises(LeaseLost) as raised:
            with self.client().lock(self.key, ttl=9) as lease:
                self.b.force(self.key)
                self.assertTrue(lease.lost.wait(60))
                self.assertEqual(lease.remaining(), 0)
        self.assertEqual((raised.exception.why, raised.exception.status), ("forced", 410))
        # A release says so too, if no renewal has noticed it before.
        lease = self.client().lock(self.key)
        self.b.force(self.key)
        with self.assertRaises(LeaseLost) as raised:
            lease.release()
        self.assertEqual(raised.exception.why, "forced")

    def test_19_a_node_is_killed_while_the_work_runs(self) -> None:
        a, b = self.pair()

        def work(_: object) -> str:
            a.kill()
            return "done"

        self.assertEqual(self.client(a, b).once(self.key, work, operation="test").result, "done")
        again = self.client(b).once(self.key, work, operation="test")
        self.assertEqual((again.result, again.duplicate), ("done", True))

    def test_23_a_claim_in_doubt_is_given_back(self) -> None:
        for refusal in (None, *GATEWAYS, (429, "rate-limited"), (500, "internal-error"), (401, "unauthorized"), (409, {"code": "conflict"})):
            with self.subTest(refusal=refusal):
                proxy, contents = self.proxy(self.a), f"{self.key} {refusal}"
                proxy.hides = GATEWAYS.get(str(refusal))
                proxy.lose("pre", 1_000_000)
                if isinstance(refusal, tuple):
                    proxy.lose("pre", 1)
                    proxy.then_refuse["pre"] = refusal
                client = self.client(proxy, retry_for=1)
                with self.assertRaises(Error):
                    client.once(contents, lambda _: self.fail("it runs"), operation="test", wait=0)
                proxy.lose("pre", 0)
                proxy.then_refuse.clear()

                def is_done() -> bool:
                    try:
                        return bool(self.client(self.a).once(contents, lambda _: 7, operation="test", wait=0).result == 7)
                    except Error:
                        return False

                eventually(is_done, "the operation is free")

    @only("aio", "blocking")
    def test_24_the_machine_was_suspended_for_longer_than_the_lease(self) -> None:
        lease = self.client().lock(self.key, ttl=300)
        with mock.patch("latchgate._renewals.now", lambda: now() + 601):
            self.assertTrue(lease.lost.wait(60))

    def test_27_a_lease_whose_renewal_hangs_takes_no_other_with_it(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy)
        leases = [client.lock(f"{self.key}/{number}", ttl=9) for number in range(4)]
        proxy.hangs = leases[0].lease_id
        self.assertTrue(leases[0].lost.wait(60))
        with self.assertRaises(LeaseLost) as raised:
            leases[0].check()
        self.assertEqual(raised.exception.why, "unanswered")
        self.until_renewed(*leases[1:])
        for lease in leases[1:]:
            lease.release()

    def test_27_a_key_that_the_api_key_may_not_use_takes_no_other_with_it(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy)
        leases = [client.lock(f"{self.key}/{number}", ttl=6) for number in range(20)]
        refused = leases[7].key

        def keys(body: dict[str, Any]) -> list[str]:
            return [lease["key"] for lease in body["leases"]]

        def answers(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
            if path.endswith("/renew") and refused in keys(body):
                return 403, {**problem("forbidden"), "index": keys(body).index(refused)}
            return None

        proxy.answers = answers
        self.assertTrue(leases[7].lost.wait(60))
        others = leases[:7] + leases[8:]
        self.until_renewed(*others)
        for lease in others:
            lease.release()

    def test_28_each_call_ends_in_time_when_no_node_answers(self) -> None:
        a, b = self.pair()
        client = self.hasty_client(a, b)
        lease = client.lock(self.key, ttl=50)
        a.freeze()
        b.freeze()

        def ends_in_time(call: Callable[[], object]) -> None:
            began = time.monotonic()
            with self.assertRaises(Unavailable):
                call()
            self.assertLess(time.monotonic() - began, 10)

        calls: list[Callable[[], object]] = [
            # Go and Java: also those behind another one of the process.
            *[lambda: client.lock(self.key, wait=600)] * 3,
            lambda: client.once(self.key, lambda _: 7, operation="test", ttl=5),
            lambda: client.fence(self.key, lease.token),
            lease.release,
        ]
        for ended in [Background(lambda call=call: ends_in_time(call)) for call in calls]:  # type: ignore[misc]
            ended.result()
