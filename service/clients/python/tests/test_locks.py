"""The scenarios of locks without faults: see ../../SCENARIOS.md."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

from latchgate import Error, Key, LeaseLost, LockHeld, StaleToken, Unavailable, WaitTimeout

from .remote import Cancelled, numbers
from .world import GATEWAYS, KIND, Background, Scenario, eventually, only, problem


class Locks(Scenario):
    def test_01_a_lease_is_renewed_for_longer_than_its_ttl(self) -> None:
        with self.client(self.a).lock(self.key, ttl=6) as lease:
            token, other = lease.token, self.client(self.b)
            until = time.monotonic() + 12.5
            while time.monotonic() < until:
                self.assertIsNone(other.try_lock(self.key))
                self.assertGreater(lease.remaining(), 0)
                time.sleep(0.1)
            lease.check()
            self.assertEqual([holder["token"] for holder in self.b.lock(self.key)["holders"]], [token])
        self.free(self.key)

    def test_02_03_a_long_wait_goes_on_with_tickets_until_the_lock_is_released(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy, wait_per_call=0.5)
        first = self.client(self.b).lock(self.key, owner="first")
        second = Background(lambda: client.lock(self.key, ttl=3))
        eventually(lambda: len([body for body in proxy.requests("/acquire") if "ticket" in body]) >= 2, "two tickets")
        first.release()
        with second.result() as lease:
            self.assertGreater(lease.token, first.token)
            self.assertGreater(lease.remaining(), 0)
        self.assertEqual(len({body["lease_id"] for body in proxy.requests("/acquire")}), 1)

    def test_03_a_wait_that_ends_names_the_holders(self) -> None:
        client = self.client(wait_per_call=0.5)
        with self.client(self.b).lock(self.key, owner="first"):
            # Go and Java: also those that wait for their turn in the process.
            for waiting in [Background(lambda: client.lock(self.key, ttl=1.5, wait=1.2)) for _ in range(3)]:
                with self.assertRaises(WaitTimeout) as raised:
                    waiting.result()
                self.assertEqual([holder["owner"] for holder in raised.exception.holders], ["first"])
                self.assertEqual((raised.exception.code, raised.exception.status), ("wait-timeout", 423))
        self.free(self.key)

    def test_03_a_node_that_ends_waits_at_once_is_left_for_another_one(self) -> None:
        proxy = self.proxy(self.a)
        proxy.ends_waits = True
        first = self.client(self.b).lock(self.key)
        second = Background(lambda: self.client(proxy, self.b, wait_per_call=50).lock(self.key))
        eventually(lambda: proxy.requests("/acquire"), "the proxy is asked")
        eventually(lambda: self.b.lock(self.key)["waiters"] == 1, "it waits")
        first.release()
        second.result().release()
        # On a busy machine, an answer can take so long that it looks like the end of a wait.
        self.assertLess(len(proxy.requests("/acquire")), 5)

    def test_03_a_wait_that_ends_during_an_outage_is_a_wait_that_ended(self) -> None:
        proxy = self.proxy(self.a)
        proxy.answers = lambda path, body: (503, problem("overloaded", 1_000)) if len(proxy.requests("/acquire")) == 1 else None
        with self.client(self.b).lock(self.key):
            with self.assertRaises(WaitTimeout):
                self.client(proxy).lock(self.key, wait=0.5)
        self.free(self.key)

    def test_09_the_answer_to_an_acquire_is_lost(self) -> None:
        proxy = self.proxy(self.a)
        proxy.lose("acquire")
        with self.client(proxy, self.b).lock(self.key) as lease:
            holders = self.b.lock(self.key)["holders"]
            self.assertEqual([holder["token"] for holder in holders], [lease.token])
            self.assertEqual([body["lease_id"] for body in proxy.requests("/acquire")], [lease.lease_id])
        self.free(self.key)

    def test_10_the_answers_to_a_renewal_and_a_release_are_lost(self) -> None:
        proxy = self.proxy(self.a)
        lease = self.client(proxy).lock(self.key, ttl=6)
        proxy.lose("renew")
        eventually(lambda: len(proxy.requests("/renew")) == 2, "the renewal is repeated")
        lease.check()
        proxy.lose("release")
        lease.release()
        self.assertEqual(len(proxy.requests("/release")), 2)
        self.free(self.key)

    def test_11_nothing_is_left_behind(self) -> None:
        client = self.client()
        with self.assertRaises(ZeroDivisionError), client.lock(self.key):
            1 / 0
        self.free(self.key)
        with self.client(self.b).lock(self.key):
            with self.assertRaises(WaitTimeout):
                client.lock(self.key, wait=0.5)
            self.assertEqual(self.b.lock(self.key)["waiters"], 0)
        if KIND != "typescript":
            # Nobody releases this one: without its holder it is not renewed, and expires.
            client.lock(self.key, ttl=0.5)
        self.free(self.key)

    @only("go", "java", "rust", "typescript")
    def test_11_a_caller_that_is_cancelled_leaves_nothing_behind(self) -> None:
        client = self.client()
        with self.client(self.b).lock(self.key):
            number = next(numbers)
            waiting = Background(lambda: client.lock(self.key, call=number))
            eventually(lambda: self.b.lock(self.key)["waiters"] == 1, "it waits")
            client.cancel(number)
            with self.assertRaises(Cancelled):
                waiting.result()
            eventually(lambda: self.b.lock(self.key)["waiters"] == 0, "the waiter has left")
        self.free(self.key)

    def test_11_an_acquire_that_may_have_been_granted_is_given_back(self) -> None:
        for refusal in (None, *GATEWAYS, (429, "rate-limited"), (500, "internal-error"), (401, "unauthorized"), (423, {"code": "locked"})):
            with self.subTest(refusal=refusal):
                proxy = self.proxy(self.a)
                proxy.lose("acquire", times=1 if isinstance(refusal, tuple) else 1_000)
                proxy.hides = GATEWAYS.get(str(refusal))
                if isinstance(refusal, tuple):
                    proxy.then_refuse["acquire"] = refusal
                with self.assertRaises(Error):
                    self.client(proxy, retry_for=1).lock(self.key, wait=0, ttl=600)
                eventually(lambda: proxy.requests("/release"), "it is released")
                self.free(self.key)

    def test_11_a_lease_that_has_ended_before_its_answer_is_taken_again(self) -> None:
        proxy = self.proxy(self.a)
        proxy.late = 1
        lease = self.client(proxy).lock(self.key, ttl=3)
        lease.check()
        self.assertEqual(len(proxy.requests("/acquire")), 2)
        with suppress(LeaseLost, Unavailable):  # on a busy machine it may have ended
            lease.release()
        self.free(self.key)

    def test_12_shared_leases_and_permits(self) -> None:
        client = self.client()
        with client.lock(self.key, shared=True), client.lock(self.key, shared=True):
            self.assertIsNone(client.try_lock(self.key))
        permits = self.key + "/permits"
        with client.lock(permits, permits=2, limit=3) as two, client.lock(permits, limit=3) as one:
            if KIND in ("go", "java"):
                self.assertEqual((two.slots, one.slots), ([0, 1], [2]))
            self.assertIsNone(client.try_lock(permits, limit=3))
        self.free(permits)

    def test_12_a_group_has_no_more_permits_than_its_limit(self) -> None:
        client = self.client()
        with client.lock(self.key, limit=3, group="a", group_limit=1):
            self.assertIsNone(client.try_lock(self.key, limit=3, group="a", group_limit=1))
            with client.lock(self.key, limit=3, group="b", group_limit=1):
                pass
            with client.multilock([Key(self.key, limit=3, group="c"), self.key + "/other"]):
                pass
        self.free(self.key)

    def test_12_a_multilock_is_renewed_and_released_as_one(self) -> None:
        client = self.client()
        other = self.key + "/other"
        with client.multilock([self.key, Key(other, shared=True)], ttl=6) as lease:
            self.until_renewed(lease)
            self.assertEqual(set(lease.tokens), {self.key, other})
            with self.assertRaises(LockHeld):
                client.lock(self.key, wait=0)
            with client.lock(other, shared=True):
                pass
        self.free(self.key)
        self.free(other)
        lease = client.multilock([self.key, other], ttl=6)
        self.a.force(other)
        self.assertTrue(lease.lost.wait(60))
        with self.assertRaises(LeaseLost) as raised:
            lease.release()
        self.assertEqual(raised.exception.why, "forced")
        self.free(self.key)

    def test_12_a_multilock_that_only_a_gateway_renews_is_not_held_for_ever(self) -> None:
        proxy, holder = self.proxy(self.a), self.client(self.b).lock(self.key)
        proxy.answers = lambda path, body: (200, {}) if path.endswith("/renew") else None
        waiting = Background(lambda: self.client(proxy, retry_for=3).multilock([self.key, self.key + "/other"], ttl=3))
        eventually(lambda: proxy.seen and time.monotonic() - proxy.seen[0][1] > 3, "a request that waits for longer than a third of the lease")
        holder.release()
        with suppress(Unavailable):
            self.assertTrue(waiting.result().lost.wait(60))
        self.free(self.key)
        self.free(self.key + "/other")

    def test_46_a_holder_that_ignores_a_revocation_learns_why_its_lease_ended(self) -> None:
        client = self.client()
        for take in (lambda: client.lock(self.key, ttl=9), lambda: client.multilock([self.key, self.key + "/2"], ttl=9)):
            lease = take()
            self.b.revoke(self.key, reason="hotfix", by="ann", grace_ms=6_000)  # after the first renewal
            self.assertTrue(lease.lost.wait(60))
            with self.assertRaises(LeaseLost) as raised:
                lease.release()
            self.assertEqual(raised.exception.why, "revoked")
            if raised.exception.status is None:
                self.assertIn("ann has revoked the lease of", str(raised.exception))

    def test_13_a_client_revokes_a_lock(self) -> None:
        client = self.client()
        self.assertEqual(client.revoke(self.key).leases, 0)
        with client.lock(self.key, ttl=9) as lease:
            revoking = client.revoke(self.key, reason="hotfix", by="ann", grace=30, token=lease.token)
            self.assertEqual(revoking.leases, 1)
            eventually(lambda: lease.revocation, "the revocation")
            assert lease.revocation is not None
            seen = (lease.revocation.reason, lease.revocation.by, lease.revocation.deadline)
            self.assertEqual(seen, ("hotfix", "ann", revoking.deadline))
            self.assertLessEqual(lease.remaining(), 30)

    @only("blocking")
    def test_25_a_lock_inside_of_itself_is_nested_on_request(self) -> None:
        client = self.client()
        with client.lock(self.key) as outer:
            with client.lock(self.key, reentrant=True, wait=0) as inner:
                self.assertEqual((inner.token, inner.owner), (outer.token, outer.owner))
            with client.multilock([self.key, self.key + "/other"], reentrant=True, wait=0) as both:
                self.assertEqual(both.tokens[self.key], outer.token)
            self.assertIsNone(client.try_lock(self.key))
            self.assertIsNone(self.client().try_lock(self.key, reentrant=True))
            self.assertIsNone(Background(lambda: client.try_lock(self.key, reentrant=True)).result())
            outer.check()
        self.free(self.key)
        with client.lock(self.key, reentrant=True), self.client().lock(self.key + "/other"):
            self.assertIsNone(client.try_lock(self.key + "/other", reentrant=True))
        with client.lock(self.key, owner="worker"), self.assertRaises(ValueError):
            client.lock(self.key, reentrant=True)
        lease = client.lock(self.key)
        # Outside of `with`, nothing says who holds it.
        self.assertIsNone(client.try_lock(self.key, reentrant=True))
        lease.release()

    @only("blocking")
    def test_25_another_task_is_not_inside(self) -> None:
        client = self.client()

        async def other() -> object:
            return client.try_lock(self.key, reentrant=True)

        async def run() -> None:
            with client.lock(self.key):
                self.assertIsNone(await asyncio.create_task(other()))
                self.assertIsNone(await asyncio.to_thread(client.try_lock, self.key, reentrant=True))
                with client.lock(self.key, reentrant=True, wait=0):
                    pass

        asyncio.run(run())
        self.free(self.key)

    def test_26_the_leases_of_a_client_are_renewed_together(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy)
        leases = [client.lock(f"{self.key}/{number}", ttl=6) for number in range(20)]
        for _ in range(2):
            self.until_renewed(*leases)
        self.assertLess(len(proxy.requests("/renew")), 12)
        self.assertEqual({path for path, _, _ in proxy.seen if path.endswith("/renew")}, {"/v1/leases/renew"})
        self.b.force(leases[7].key)
        self.assertTrue(leases[7].lost.wait(60))
        with self.assertRaises(LeaseLost) as raised:
            leases[7].check()
        self.assertEqual(raised.exception.why, "forced")
        others = leases[:7] + leases[8:]
        self.until_renewed(*others)
        for lease in others:
            lease.release()

    @only("aio", "blocking")
    def test_26_a_client_has_one_thread_however_many_leases_it_has(self) -> None:
        client = self.client()
        before = set(threading.enumerate())
        leases = [client.lock(f"{self.key}/{number}", ttl=6) for number in range(50)]
        until = time.monotonic() + 3
        most = 0
        while time.monotonic() < until:
            most = max(most, len(set(threading.enumerate()) - before))
        self.assertLessEqual(most, 1)
        for lease in leases:
            lease.release()

    def test_35_no_request_is_longer_than_nodes_and_proxies_accept(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy)
        # 500 of the longest keys are too long for one request: in JSON a quotation mark has two bytes.
        keys = [[f"{self.key}/{number}/{key}".ljust(512, '"') for key in range(60)] for number in range(10)]
        leases = [client.multilock(each, ttl=12) for each in keys]
        self.until_renewed(*leases)
        self.assertLessEqual(max(len(body["leases"]) for body in proxy.requests("/renew")), 500)
        self.assertLessEqual(proxy.longest, 500_000)
        for lease in leases:
            lease.release()

    def test_29_a_lock_stays_taken_for_its_shortest_hold(self) -> None:
        client = self.client()
        client.lock(self.key, min_hold=600).release()
        with self.assertRaises(LockHeld) as raised:
            client.lock(self.key, wait=0)
        self.assertEqual(raised.exception.code, "lock-delayed")
        self.b.force(self.key)

    @only("aio", "blocking", "rust", "typescript")
    def test_30_events_continue_behind_the_last_one_at_another_node(self) -> None:
        a, b = self.pair()
        events = self.client(a, b).events(self.key)
        first = Background(lambda: next(events))

        def is_seen() -> bool:
            self.client(b).lock(self.key).release()
            return not first.is_running()

        eventually(is_seen, "an event")
        event = first.result()
        self.assertEqual((event.data["key"], event.data["id"]), (self.key, event.id))
        a.kill()
        with self.client(b).lock(self.key, owner="last"), events, self.client(b).events(self.key, after=event.id) as again:
            for expected in again:
                self.assertEqual(vars(next(events)), vars(expected))
                if expected.data["owner"] == "last":
                    break
            self.assertEqual(expected.kind, "granted")

    @only("aio", "blocking", "rust", "typescript")
    def test_30_a_frozen_node_and_a_page_in_place_of_events_are_left(self) -> None:
        with self.assertRaises(Unavailable):
            next(self.client(self.proxy(self.a), retry_for=1).events(self.key))
        a, b = self.pair()
        a.freeze()
        client, events = self.client(b), self.client(a, b, timeout=60, retry_for=20).events(self.key)
        first = Background(lambda: next(events))

        def is_seen() -> bool:
            client.lock(self.key).release()
            return not first.is_running()

        eventually(is_seen, "an event")
        with events:
            self.assertEqual(first.result().data["key"], self.key)

    @only("aio", "blocking", "rust", "typescript")
    def test_30_a_stream_that_ends_at_once_is_called_again_after_a_pause(self) -> None:
        proxy = self.proxy(self.a)
        proxy.page_type = "text/event-stream"
        events = self.client(proxy, retry_for=1).events(self.key)
        first = Background(lambda: next(events))
        eventually(lambda: len(proxy.seen) > 2, "three calls")
        proxy.stop()
        with self.assertRaises(Unavailable):
            first.result()
        at = [at for _, at, _ in proxy.seen]
        self.assertGreater(min(later - earlier for earlier, later in zip(at, at[1:])), 0.09)

    def test_31_a_token_that_is_too_low_does_not_pass(self) -> None:
        client = self.client()
        with client.lock(self.key) as first:
            client.fence(self.key, first.token)
        with client.lock(self.key) as second:
            with self.assertRaises(StaleToken) as raised:
                client.fence(self.key, first.token)
            self.assertEqual((raised.exception.status, raised.exception.current), (412, second.token))

    @only("go", "java")
    def test_32_one_caller_of_a_process_stands_in_the_queue(self) -> None:
        client, holder = self.client(), self.client(self.b).lock(self.key)

        def hold() -> int:
            with client.lock(self.key) as lease:
                return int(lease.token)

        mine = [Background(hold) for _ in range(8)]
        eventually(lambda: client.queued() == 8, "all wait here")
        eventually(lambda: self.b.lock(self.key)["waiters"] == 1, "one waits there")
        remote = Background(lambda: self.client(self.b).lock(self.key))
        eventually(lambda: self.b.lock(self.key)["waiters"] == 2, "another process waits")
        holder.release()
        lease = remote.result()
        lease.release()
        # And not all eight before the other process.
        self.assertEqual(sum(caller.result() < lease.token for caller in mine), 1)
        self.free(self.key)

    @only("go", "java")
    def test_32_a_caller_has_a_ticket_soon_after_its_turn(self) -> None:
        proxy, holder = self.proxy(self.a), self.client(self.b).lock(self.key)
        client, number = self.client(proxy), next(numbers)
        first = Background(lambda: client.lock(self.key, call=number))
        eventually(lambda: self.b.lock(self.key)["waiters"] == 1, "the first waits there")
        second = Background(lambda: client.lock(self.key))
        eventually(lambda: client.queued() == 2, "the second waits here")
        client.cancel(number)
        with self.assertRaises(Cancelled):
            first.result()

        def waits() -> list[dict[str, Any]]:
            """The second's requests."""
            sent = proxy.requests("/acquire")
            return [body for body in sent if body["lease_id"] != sent[0]["lease_id"] and "wait_ms" in body]

        eventually(lambda: waits() and "ticket" in waits()[-1], "it has a ticket")
        self.assertLessEqual(waits()[0]["wait_ms"], 500)
        holder.release()
        second.result().release()
