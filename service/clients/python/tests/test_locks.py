"""The scenarios of locks without faults: see ../../SCENARIOS.md."""

from __future__ import annotations

import time

from latchgate import Key, LeaseLost, LockHeld, WaitTimeout

from .world import Background, Scenario, eventually


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

    def test_02_a_waiter_gets_the_lock_when_it_is_released(self) -> None:
        first = self.client(self.a).lock(self.key)
        second = Background(lambda: self.client(self.b).lock(self.key))
        eventually(lambda: self.b.lock(self.key)["waiters"] == 1, "it waits")
        first.release()
        with second.result() as lease:
            self.assertGreater(lease.token, first.token)
            self.assertGreater(lease.remaining(), 15)

    def test_03_a_long_wait_goes_on_with_tickets(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy, wait_per_call=0.5)
        first = self.client(self.b).lock(self.key, owner="first")
        second = Background(lambda: client.lock(self.key))
        eventually(lambda: len([body for body in proxy.requests("/acquire") if "ticket" in body]) >= 2, "two tickets")
        first.release()
        second.result().release()
        self.assertEqual(len({body["lease_id"] for body in proxy.requests("/acquire")}), 1)

    def test_03_a_wait_that_ends_names_the_holders(self) -> None:
        with self.client(self.b).lock(self.key, owner="first"):
            with self.assertRaises(WaitTimeout) as raised:
                self.client(wait_per_call=0.5).lock(self.key, wait=1.2)
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
        self.assertEqual(len(proxy.requests("/acquire")), 1)

    def test_03_a_wait_that_ends_during_an_outage_is_a_wait_that_ended(self) -> None:
        proxy = self.proxy(self.a)
        proxy.refuse(1)
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
        # Nobody releases this one: without its holder it is not renewed, and expires.
        client.lock(self.key, ttl=0.5)
        self.free(self.key)

    def test_11_an_acquire_that_may_have_been_granted_is_given_back(self) -> None:
        proxy = self.proxy(self.a)
        proxy.lose("acquire", times=1_000)
        with self.assertRaises(Exception) as raised:
            self.client(proxy, retry_for=1).lock(self.key, wait=0)
        self.assertEqual(raised.exception.code, "no-answer")  # type: ignore[attr-defined]
        self.assertGreater(len(proxy.requests("/release")), 0)
        self.free(self.key)

    def test_12_shared_leases_and_permits(self) -> None:
        client = self.client()
        with client.lock(self.key, shared=True), client.lock(self.key, shared=True):
            self.assertIsNone(client.try_lock(self.key))
        permits = self.key + "/permits"
        with client.lock(permits, permits=2, limit=3), client.lock(permits, limit=3):
            self.assertIsNone(client.try_lock(permits, limit=3))
        self.free(permits)

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

    def test_13_the_holder_sees_a_revocation(self) -> None:
        with self.client().lock(self.key, ttl=6) as lease:
            self.assertIsNone(lease.revocation)
            self.b.revoke(self.key, reason="hotfix", by="ann", grace_ms=30_000)
            eventually(lambda: lease.revocation, "the revocation")
            assert lease.revocation is not None
            self.assertEqual((lease.revocation.reason, lease.revocation.by), ("hotfix", "ann"))
            self.assertLessEqual(lease.remaining(), 30)
