"""`latchgate mcp`, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, MCPError
from world import BINARY, Case, Node, Session, until, words


class Locks(Case):
    async def test_a_model_finds_tools_and_takes_a_lock(self) -> None:
        for mode in ["auto", "legacy"]:
            async with self.session(mode=mode) as agent:
                tools = (await agent.client.list_tools()).tools
                self.assertEqual(
                    sorted(tool.name for tool in tools),
                    ["acquire", "begin_once", "finish_once", "release", "status_of", "who_holds"],
                )
                self.assertIn("Other agents", agent.client.instructions or "")
                lease = await agent.ok("acquire", keys=["deploy"], note="version 7")
                self.assertEqual(lease["keys"], ["deploy"])
                self.assertTrue(self.held("deploy"))
                self.assertEqual((await agent.ok("acquire", keys=["deploy"]))["lease"], lease["lease"], "a repeated call")
                self.assertEqual(await agent.ok("release", lease=lease["lease"]), {"released": [lease["lease"]], "lost": []})
                self.assertFalse(self.held("deploy"))

    async def test_a_refusal_says_who_holds_it_and_what_to_do(self) -> None:
        async with self.session(name="first") as first, self.session(name="second") as second:
            await first.ok("acquire", keys=["db", "cache"], note="migrating the schema")
            said, data = await second.refused("acquire", keys=["db"])
            self.assertIn("migrating the schema", said)
            self.assertIn("wait_s", said)
            holder = data["holders"][0]
            self.assertTrue(holder["owner"].startswith("first/"))
            self.assertEqual((holder["metadata"]["note"], holder["metadata"]["client"]), ("migrating the schema", "first 1.0"))
            self.assertTrue(holder["granted_at"] and holder["expires_at"])
            self.assertEqual((await second.ok("who_holds", key="db"))["locks"][0]["holders"][0]["owner"], holder["owner"])
            waiting = asyncio.create_task(second.ok("acquire", keys=["db"], wait_s=40))
            await until("a waiter", lambda: self.node.lock("db")["waiters"] == 1)
            await first.ok("release")
            self.assertTrue((await waiting)["acquired"])

    async def test_a_ticket_keeps_the_place_in_the_queue(self) -> None:
        async with self.session(name="first") as first, self.session(name="second") as second, self.session(name="third") as third:
            await first.ok("acquire", keys=["queue"])
            said, data = await second.refused("acquire", keys=["queue"], wait_s=2)
            self.assertIn(f"ticket {data['ticket']}", said)
            behind = asyncio.create_task(third.ok("acquire", keys=["queue"], wait_s=40))
            await until("a waiter", lambda: self.node.lock("queue")["waiters"] >= 1)
            again = asyncio.create_task(second.ok("acquire", keys=["queue"], wait_s=40, ticket=data["ticket"]))
            await until("two waiters", lambda: self.node.lock("queue")["waiters"] == 2)
            await first.ok("release")
            self.assertTrue((await again)["acquired"])
            self.assertFalse(behind.done())
            await second.ok("release")
            self.assertTrue((await behind)["acquired"])

    async def test_what_a_session_holds_ends_with_it(self) -> None:
        async with self.session() as agent:
            await agent.ok("acquire", keys=["closed"])
        self.assertFalse(self.held("closed"))
        try:
            async with self.session("--ttl", "2s") as agent:
                await agent.ok("acquire", keys=["killed"])
                agent.kill()
                await until("the lease of a killed session ends", lambda: not self.held("killed"))
        except* Exception:  # the SDK finds the end of the process
            pass
        self.assertFalse(self.held("killed"))

    async def test_a_loss_is_told_first_thing_though_calls_fail_meanwhile(self) -> None:
        async with self.session("--ttl", "1s") as agent, self.session() as other:
            await other.ok("acquire", keys=["taken"])
            await agent.ok("acquire", paths=["src/lost"])
            self.node.force("path/" + self.directory.name + ":src/lost")
            await asyncio.sleep(3)
            with self.assertRaises(MCPError):
                await agent.call("no_such_tool")
            with anyio.move_on_after(1):
                await agent.call("acquire", keys=["taken"], wait_s=20)
            self.assertRegex(words(await agent.call("who_holds", key="other")).splitlines()[0], "LOST.*src/lost")
            self.assertNotIn("LOST", words(await agent.call("who_holds", key="other")))

    async def test_an_operator_can_ask_for_a_lock(self) -> None:
        async with self.session("--ttl", "6s") as agent:
            await agent.ok("acquire", keys=["wanted"])
            self.node.revoke("wanted", reason="release 8 is urgent", grace_ms=60_000)
            result = await agent.ok("who_holds", key="other")
            while "notices" not in result:
                result = await agent.ok("who_holds", key="other")
            self.assertIn("release 8 is urgent", result["notices"][0])
            self.assertFalse((await agent.ok("release"))["lost"])

    async def test_subtrees_are_apart_and_a_folder_waits_for_both(self) -> None:
        repository = ("--repository", "shop")
        one, two, three = (self.session(*repository, name=name) for name in ["one", "two", "three"])
        async with one as one, two as two, three as three:
            first = await one.ok("acquire", paths=["src/billing/", "docs/billing.md"], note="new tax")
            self.assertEqual(sorted(first["tokens"]), ["path/shop:docs/billing.md", "path/shop:src/billing"])
            await two.ok("acquire", paths=[f"{self.directory}/src/web"])
            said, data = await three.refused("acquire", paths=["src"])
            self.assertEqual(data["path"], "src")
            self.assertIn("src/billing", said)
            self.assertIn("src/web", said)
            said, data = await three.refused("acquire", paths=["src/billing/tax.rs"])
            self.assertEqual((data["path"], data["holders"][0]["metadata"]["note"]), ("src/billing", "new tax"))
            for asked, names in [({"prefix": "path/shop:src/"}, ["billing", "web"]), ({"path": "src/billing/tax.rs"}, ["billing"]), ({"path": "src/bill"}, [])]:
                held = (await three.ok("who_holds", **asked))["locks"]
                self.assertEqual([lock["key"] for lock in held], [f"path/shop:src/{name}" for name in names])
            waiting = asyncio.create_task(three.ok("acquire", paths=["src"], wait_s=40))
            await until("a waiter", lambda: self.node.lock("path/shop:src")["waiters"] == 1)
            await one.ok("release")
            self.assertFalse(waiting.done())
            await two.ok("release")
            await waiting
            said, data = await three.refused("acquire", paths=["src/web"])
            self.assertEqual(data["code"], "held-by-you")

    async def test_a_holder_of_many_paths_is_named(self) -> None:
        paths = [f"src/{'x' * 60}/{number}.rs" for number in range(20)]
        async with self.session(name="first") as first, self.session(name="second") as second:
            await first.ok("acquire", paths=paths, note="all of it")
            for wanted in ["src", paths[19], paths[19] + "/a"]:
                said, data = await second.refused("acquire", paths=[wanted])
                self.assertIn("first/", said)
                self.assertIn("all of it", said)
                self.assertIn("…", said)
                self.assertEqual(len(data["holders"]), 1)

    async def test_sessions_that_wait_for_each_other_are_told(self) -> None:
        async with self.session(name="first") as first, self.session(name="second") as second:
            await first.ok("acquire", keys=["a", "c"])
            await first.ok("acquire", paths=["src/a"])
            await second.ok("acquire", keys=["b"])
            said, data = await first.refused("acquire", keys=["b"])
            self.assertEqual(data["waited_for"], [])
            for wanted, waited in [({"keys": ["a"]}, "a"), ({"paths": ["src"]}, f"path/{self.directory.name}:src")]:
                waiting = asyncio.create_task(second.call("acquire", wait_s=40, **wanted))
                await until("a waiter", lambda: self.node.lock(waited)["waiters"] == 1)
                # A call for several locks leaves the queue for a moment, whenever its turn has come at one of them.
                for _ in range(20):
                    said, data = await first.refused("acquire", keys=["b"], wait_s=1)
                    if data["waited_for"]:
                        break
                self.assertEqual(data["waited_for"], [waited])
                self.assertIn(waited, said)
                self.assertIn("in one call", said)
                waiting.cancel()
                await until("no waiter", lambda: self.node.lock(waited)["waiters"] == 0)

    async def test_what_cannot_be_locked_is_refused_before_a_node_is_asked(self) -> None:
        async with self.session() as agent:
            for wrong in [{}, {"paths": ["../other"]}, {"paths": ["/etc/passwd"]}, {"paths": ["a/" * 70]}, {"keys": ["a"], "ticket": 9}]:
                said, data = await agent.refused("acquire", **wrong)
                self.assertEqual(data["code"], "refused", said)
            await agent.refused("who_holds", path="../other")

    async def test_work_is_done_once(self) -> None:
        async with self.session() as one, self.session() as two:
            work = {"operation": "invoice", "contents": {"order": 42}}
            begun = await one.ok("begin_once", **work)
            self.assertTrue(begun["go"])
            said, data = await two.refused("begin_once", **work)
            self.assertEqual(data["code"], "operation-in-progress", said)
            await one.ok("finish_once", id=begun["id"], outcome="done", result={"invoice": 7})
            again = await two.ok("begin_once", **work)
            self.assertEqual((again["go"], again["result"]), (False, {"invoice": 7}))
            self.assertEqual((await two.ok("status_of", id=begun["id"]))["state"], "succeeded")
            other = await two.ok("begin_once", operation="invoice", contents={"order": 43})
            await two.ok("finish_once", id=other["id"], outcome="nothing_done")
            self.assertTrue((await one.ok("begin_once", operation="invoice", contents={"order": 43}))["go"])
        async with self.session() as three:
            said, data = await three.refused("begin_once", operation="invoice", contents={"order": 43})
            self.assertEqual(data["code"], "operation-unknown", "the session has ended without a word")
            self.assertIn("latchgate operations resolve", said)


class Http(Case):
    def serve(self, *arguments: str) -> str:
        arguments = arguments if "--url" in arguments else ("--url", self.node.url, *arguments)
        command = ["setpriv", "--pdeathsig", "KILL", "--", BINARY, "mcp", *arguments]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=self.directory)
        assert server.stderr is not None
        line = server.stderr.readline().decode()
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        return line.split()[-1]

    async def test_each_client_over_http_is_a_session(self) -> None:
        url = self.serve("--http", "127.0.0.1:0", "--repository", "shop")
        async with Client(url) as first, Client(url) as second:
            one, two = Session(first, Path()), Session(second, Path())
            await one.ok("acquire", paths=["src"])
            said, _ = await two.refused("acquire", paths=["src/a"])
            self.assertIn("holds src", said)
            said, _ = await two.refused("acquire", paths=["/work/shop/src"])
            self.assertIn("relative", said)
        await until("the end of a session releases", lambda: not self.held("path/shop:src"))

    async def test_a_session_over_http_that_is_silent_ends(self) -> None:
        url = self.serve("--http", "127.0.0.1:0", "--repository", "shop", "--idle-max", "4s")
        async with Client(url) as client:
            await Session(client, Path()).ok("acquire", keys=["idle"])
            await until("the lease ends", lambda: not self.held("idle"))

    async def test_beyond_loopback_an_api_key_is_needed(self) -> None:
        generate = [BINARY, "api-key", "generate"]
        api_key, other = (subprocess.run(generate, check=True, capture_output=True, text=True).stdout.strip() for _ in range(2))
        node = Node("--locks", "sqlite:mcp.db", LATCHGATE_ADMIN_API_KEY=api_key)
        self.addCleanup(node.stop)
        info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}).encode()

        def status(url: str, key: str | None) -> int:
            headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            headers |= {} if key is None else {"Authorization": f"Bearer {key}"}
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST")) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        url = self.serve("--http", "0.0.0.0:0", "--url", node.url).replace("0.0.0.0", "127.0.0.1")
        for key, expected in [(None, 401), ("other", 401), ("lgk_a_b", 401), (other, 401), (f"{api_key}0", 401), (api_key, 200)]:
            self.assertEqual(await asyncio.to_thread(status, url, key), expected, key)
        node.kill()
        self.assertEqual(await asyncio.to_thread(status, url, api_key), 503, "whether the key is good is not known")
