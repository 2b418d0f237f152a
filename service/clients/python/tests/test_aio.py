"""What only the client for asyncio has: cancellation, event loops that end, and tasks. The scenarios run with it by CLIENT_KIND=aio."""

from __future__ import annotations

import asyncio
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import latchgate
from latchgate import LockHeld, OperationUnknown, Unavailable, WaitTimeout
from latchgate.aio import Attempt, Client

from .world import IS_AIO, Node, Proxy, Scenario, eventually


async def until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(eventually, condition, what)


@unittest.skipIf(IS_AIO, "it is the same for both kinds")
class Aio(Scenario):
    def aio(self, *nodes: Node | Proxy, **options: Any) -> Client:
        return Client([node.url for node in nodes or (self.a, self.b)], **{"retry_for": 30.0, **options})

    def test_11_a_caller_that_is_cancelled_leaves_nothing_behind(self) -> None:
        async def run() -> None:
            async with self.aio() as client, client.lock(self.key):
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.lock(self.key), 0.3)
                lease = await client.lock(self.key + "/other")
                waiter = asyncio.ensure_future(self.wait_for_it(client))
                await until(lambda: self.b.lock(self.key)["waiters"] == 1, "it waits")
                waiter.cancel()
                await until(lambda: self.b.lock(self.key)["waiters"] == 0, "nothing waits")
                # A release goes on, too.
                releasing = asyncio.ensure_future(lease.release())
                await asyncio.sleep(0)
                releasing.cancel()
                await until(lambda: not self.b.lock(self.key + "/other")["held"], "it is released")

        asyncio.run(run())
        self.free(self.key)

    async def wait_for_it(self, client: Client) -> None:
        await client.lock(self.key)

    def test_11_a_cancelled_grant_is_given_back_before_the_event_loop_ends(self) -> None:
        proxy = self.proxy(self.a)
        proxy.lose("acquire", 1_000)

        async def run() -> None:
            waiter = asyncio.ensure_future(self.wait_for_it(self.aio(proxy)))
            await until(lambda: self.b.lock(self.key)["held"], "it is granted")
            waiter.cancel()

        asyncio.run(run())
        self.assertFalse(self.b.lock(self.key)["held"])

    def test_18_a_repeated_pre_has_the_contents_that_it_had_at_the_call(self) -> None:
        proxy = self.proxy(self.a)
        proxy.lose("pre")

        async def run() -> None:
            async with self.aio(proxy) as client:
                contents = {"order": self.key}

                async def work(_: Attempt) -> None:
                    pass

                running = asyncio.ensure_future(client.once(contents, work, operation="test"))
                await asyncio.sleep(0)
                contents["order"] = "another one"
                await running

        asyncio.run(run())
        sent = proxy.requests("/pre")
        self.assertEqual([body["contents"] for body in sent], [{"order": self.key}] * 2)

    def test_47_the_result_of_work_that_cannot_be_awaited_is_kept(self) -> None:
        async def run() -> None:
            async with self.aio() as client:
                done = await client.once(self.key, lambda _: {"receipt": 7}, operation="test")
                again = await client.once(self.key, lambda _: self.fail("it runs"), operation="test")
                self.assertEqual((done.result, again.result, again.duplicate), ({"receipt": 7}, {"receipt": 7}, True))

        asyncio.run(run())

    def test_16_work_that_is_cancelled_has_an_unknown_outcome(self) -> None:
        async def run() -> None:
            client = self.aio()
            for on_expiry in ("block", "retry"):
                begun = asyncio.Event()

                async def work(_: Attempt) -> None:
                    begun.set()
                    await asyncio.sleep(600)

                async def more(_: Attempt) -> int:
                    return 7

                options: Any = {"operation": on_expiry, "on_expiry": on_expiry}
                call = asyncio.ensure_future(client.once(self.key, work, **options))
                await begun.wait()
                call.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await call
                if on_expiry == "block":
                    with self.assertRaises(OperationUnknown):
                        await client.once(self.key, more, **options)
                else:
                    self.assertEqual((await client.once(self.key, more, **options)).result, 7)

        asyncio.run(run())

    def test_23_a_claim_in_doubt_is_given_back_before_the_event_loop_ends(self) -> None:
        proxy = self.proxy(self.a)
        proxy.lose("pre", 1)
        proxy.then_refuse["pre"] = (500, "internal-error")

        async def run() -> None:
            with self.assertRaises(Unavailable):
                await self.aio(proxy, retry_for=0.5).once(self.key, self.wait_for_it, operation="test")  # type: ignore[arg-type]
            proxy.then_refuse.clear()

        asyncio.run(run())
        self.assertEqual(self.client().once(self.key, lambda _: 7, operation="test", wait=0).result, 7)

    def test_25_a_lock_inside_of_itself_is_nested_on_request(self) -> None:
        async def run() -> None:
            client = self.aio()
            async with client.lock(self.key) as outer:
                async with client.lock(self.key, reentrant=True, wait=0) as inner:
                    self.assertEqual((inner.token, inner.owner), (outer.token, outer.owner))
                async with client.multilock([self.key, self.key + "/other"], reentrant=True, wait=0) as both:
                    self.assertEqual(both.tokens[self.key], outer.token)
                self.assertIsNone(await client.try_lock(self.key))
                self.assertIsNone(await self.aio().try_lock(self.key, reentrant=True))
                self.assertIsNone(await asyncio.create_task(client.try_lock(self.key, reentrant=True)))
                outer.check()
            lease = await client.lock(self.key)
            # Outside of `with`, nothing says who holds it.
            self.assertIsNone(await client.try_lock(self.key, reentrant=True))
            await lease.release()

        asyncio.run(run())
        self.free(self.key)

    def test_a_client_serves_one_event_loop_after_the_other(self) -> None:
        client = self.aio()

        async def run() -> None:
            async with client.lock(self.key):
                with self.assertRaises(RuntimeError):
                    await asyncio.to_thread(asyncio.run, self.wait_for_it(client))

        asyncio.run(run())
        asyncio.run(run())
        self.free(self.key)

    def test_24_a_loss_that_another_thread_finds_reaches_the_event_loop(self) -> None:
        a, b = self.pair()

        async def run() -> None:
            lease = await self.aio(a, b).lock(self.key, ttl=1)
            a.freeze()
            b.freeze()
            waiting = asyncio.ensure_future(lease.lost.wait())
            await asyncio.sleep(0)
            time.sleep(1.5)  # the event loop stands still
            self.assertEqual(await asyncio.to_thread(lease.remaining), 0)
            await asyncio.wait_for(waiting, 60)

        asyncio.run(run())


@unittest.skipIf(IS_AIO, "it is the same for both kinds")
class Decorators(Scenario):
    def test_a_function_runs_under_its_lock(self) -> None:
        client = self.client()

        @latchgate.locked(self.key + "/{month}", client=client, wait=0)
        def report(month: int = 7) -> int:
            if month == 8:
                return report(8)  # it is not reentrant
            return threading.get_ident()

        self.assertEqual(report(), threading.get_ident())
        with self.assertRaises(LockHeld):
            report(8)
        with client.lock(f"{self.key}/7"), self.assertRaises(LockHeld):
            report()

        @latchgate.locked(self.key, client=self.aio_client(), wait=0.1)
        async def awaiting() -> bool:
            return bool(self.b.lock(self.key)["held"])

        self.assertTrue(asyncio.run(awaiting()))
        with client.lock(self.key), self.assertRaises(WaitTimeout):
            asyncio.run(awaiting())
        self.free(self.key)

    def test_42_a_key_that_names_no_parameter_is_refused_with_its_name(self) -> None:
        for key, named in (("r/{mnth}", "'mnth'"), ("r/{mnth.year}", "'mnth'"), ("r/{}", "''")):
            with self.assertRaisesRegex(ValueError, f"{key}.* names {named}"):
                latchgate.locked(key)(lambda month: month)
        with self.assertRaisesRegex(TypeError, "key"):
            latchgate.locked(7)  # type: ignore[arg-type]

    def test_a_function_runs_once_for_the_same_arguments(self) -> None:
        runs: list[int] = []

        @latchgate.once(self.key, client=self.client())
        def charge(order: int, amount: str = "1.00") -> dict[str, int]:
            runs.append(order)
            return {"receipt": len(runs)}

        results = [charge(42), charge(order=42), charge(42, "1.00"), charge(43)]
        self.assertEqual(results, [{"receipt": 1}] * 3 + [{"receipt": 2}])

        @latchgate.once(self.key, client=self.aio_client(), contents=lambda order: order % 2)
        async def awaiting(order: int) -> int:
            runs.append(order)
            return order

        self.assertEqual([asyncio.run(awaiting(order)) for order in (5, 6, 7)], [5, 6, 5])
        self.assertEqual(len(runs), 4)

    def test_a_later_caller_gets_no_none_in_place_of_an_omitted_result(self) -> None:
        @latchgate.once(self.key, client=self.client())
        def opened(path: str) -> object:
            return object()

        self.assertIsInstance(opened("a"), object)
        with self.assertRaises(latchgate.Error) as raised:
            opened("a")
        self.assertEqual(raised.exception.code, "result-omitted")

    def test_a_function_without_a_client_of_its_kind_is_refused(self) -> None:
        async def awaiting() -> None: ...

        def generator() -> Any:
            yield 1

        for function, client in ((awaiting, self.client()), (len, self.aio_client()), (generator, None)):
            for decorator in (latchgate.locked, latchgate.once):
                with self.assertRaises(TypeError):
                    decorator("name", client=client)(function)

    def aio_client(self) -> Client:
        return Client([self.a.url, self.b.url])
