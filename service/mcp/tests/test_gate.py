"""`latchgate mcp-gate` in front of a server of the official SDK."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import unittest.mock
from typing import Any

import anyio
from mcp.types import ElicitResult
from raw import Raw
from tests.world import Proxy
from world import BINARY, Case, python_server, request, until, words


class World(Case):
    def effects(self) -> list[str]:
        file = self.directory / "effects"
        return file.read_text().splitlines() if file.exists() else []


class Gate(World):
    def shop(self, *arguments: str, **options: Any) -> Any:
        # Each test has works of its own.
        arguments = ("--name", f"shop-{self.directory.name}", *arguments)
        return self.behind(*arguments, server=python_server("shop.py", str(self.directory / "effects")), **options)

    async def test_a_retry_gets_the_first_result(self) -> None:
        for mode in ["auto", "legacy"]:
            async with self.shop(mode=mode) as agent:
                tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
                self.assertIn("SAME key", tools["pay"].input_schema["properties"]["idempotency_key"]["description"])
                for passes in ["look", "put"]:
                    self.assertNotIn("idempotency_key", tools[passes].input_schema.get("properties", {}))
                before = len(self.effects())
                first = await agent.call("pay", amount=7.25, idempotency_key=mode)
                self.assertEqual(first.structured_content, {"number": before + 1, "amount": 7.25})
                again = await agent.call("pay", amount=7.25, idempotency_key=mode)
                self.assertEqual((again.structured_content, again.content), (first.structured_content, first.content))
                self.assertIn("latchgate/duplicate", again.meta or {})
                self.assertNotIn("latchgate/duplicate", first.meta or {})
                self.assertEqual(len(self.effects()), before + 1)
                said, _ = await agent.refused("pay", amount=8, idempotency_key=mode)
                self.assertIn("other arguments", said)
                await agent.call("pay", amount=7.25, idempotency_key=f"{mode} 2")
                self.assertEqual(len(self.effects()), before + 2)

    async def test_without_a_key_equal_arguments_are_a_retry_for_a_while(self) -> None:
        async with self.shop("--window", "2s") as agent, self.shop(name="other") as other:
            await agent.call("pay", amount=1, to="bob")
            await agent.call("pay", to="bob", amount=1.0)
            self.assertEqual(len(self.effects()), 1)
            await other.call("pay", amount=1, to="bob")
            self.assertEqual(len(self.effects()), 2, "another session")

            async def paid_again() -> bool:
                return "latchgate/duplicate" not in ((await agent.call("pay", amount=1, to="bob")).meta or {})

            while not await paid_again():
                await asyncio.sleep(0.05)
            self.assertEqual(len(self.effects()), 3)

    async def test_two_sessions_with_one_scope_do_it_once(self) -> None:
        scope = ("--scope", "conversation 9")
        async with self.shop(*scope) as one, self.shop(*scope) as two:
            calls = [agent.call("slow", seconds=1, idempotency_key="k") for agent in [one, two]]
            results = await asyncio.gather(*calls)
            self.assertEqual([words(result) for result in results], ["slept", "slept"])
            self.assertEqual(self.effects(), ["slow"])
        async with self.shop(*scope) as three:
            self.assertIn("latchgate/duplicate", (await three.call("slow", seconds=1, idempotency_key="k")).meta or {})

    async def test_tools_that_read_pass_and_options_choose(self) -> None:
        async with self.shop("--except", "pay", "--treat", "put=once") as agent:
            await agent.client.list_tools()
            for _ in range(2):
                await agent.call("look")
                await agent.call("put", name="a")
                await agent.call("pay", amount=1)
            self.assertEqual(self.effects(), ["look", "put", "pay 1.0 ann", "look", "pay 1.0 ann"])

    async def test_everything_else_of_the_protocol_passes(self) -> None:
        seen: list[float] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            seen.append(done)

        async def size(context: Any, params: Any) -> ElicitResult:
            return ElicitResult(action="accept", content={"size": "XL"})

        async with self.shop(mode="legacy", elicitation_callback=size) as agent:
            self.assertEqual(words(await agent.client.call_tool("slow", {"seconds": 0}, progress_callback=progress)), "slept")
            self.assertEqual(seen, [1])
            # The retry asks nothing.
            self.assertEqual([words(await agent.call("order")) for _ in range(2)], ["ordered XL"] * 2)
            self.assertEqual(len(words(await agent.call("export", size=70_000))), 70_000)
            self.assertIn("DONE BEFORE", words(await agent.call("export", size=70_000)))
            self.assertEqual(self.effects(), ["slow", "order", "export"])

    async def test_an_error_of_the_tool_is_its_result(self) -> None:
        async with self.shop() as agent:
            for shown in ["", "stored answer"]:
                said, _ = await agent.refused("fail", idempotency_key="a")
                self.assertIn("Error executing tool fail", said)
                self.assertIn(shown, said)
            await agent.refused("fail", idempotency_key="b")
            self.assertEqual(self.effects(), ["fail", "fail"])
            result = await agent.call("pay", amount="much", idempotency_key="c")
            self.assertTrue(result.is_error)

    async def test_a_cancelled_call_is_recorded_if_the_server_answers(self) -> None:
        async with self.shop("--call-timeout", "3s") as agent:
            with anyio.move_on_after(1):
                await agent.call("slow", seconds=30, idempotency_key="k")
            said, _ = await agent.refused("slow", seconds=30, idempotency_key="k")
            self.assertIn("UNKNOWN", said)
            self.assertEqual(self.effects(), ["slow"])
            self.assertEqual(words(await agent.call("slow", seconds=0, idempotency_key="l")), "slept", "the session goes on")

    async def test_an_unknown_outcome_waits_for_a_person(self) -> None:
        said, operation = "", ""
        try:
            async with self.shop() as agent:
                result = await agent.call("crash", idempotency_key="k")
                said, operation = words(result), (result.meta or {})["latchgate/refusal"]["operation"]
        except* Exception:  # the SDK finds the end of the process
            pass
        self.assertIn("UNKNOWN", said)
        # After a restart, a call with a key is the same.
        async with self.shop() as agent:
            for arguments in [{}, {"times": 2}]:
                said, _ = await agent.refused("crash", idempotency_key="k", **arguments)
                self.assertIn("UNKNOWN", said)
                self.assertIn(operation, said)
                self.assertNotIn("choose a new", said.lower())
            self.assertEqual(self.effects(), ["crash"])
            shown = request(self.node.url, "GET", f"/v1/operations/{operation}")
            self.assertEqual((shown["state"], shown["operation"]), ("unknown", f"mcp/shop-{self.directory.name}/crash"))
            request(self.node.url, "POST", f"/v1/operations/{operation}/resolve", {"outcome": "success", "reason": "seen"})
            result = await agent.call("crash", idempotency_key="k")
            self.assertIn("DONE BEFORE", words(result))

    async def test_a_killed_gate_leaves_its_call_unknown(self) -> None:
        try:
            async with self.shop("--lease", "1s") as agent, asyncio.TaskGroup() as group:
                group.create_task(agent.call("slow", seconds=30, idempotency_key="k"))
                await until("the call runs", lambda: bool(self.effects()))
                agent.kill()
        except* Exception:  # the SDK finds the end of the process
            pass
        async with self.shop() as agent:
            said, _ = await agent.refused("slow", seconds=30, idempotency_key="k")
            self.assertIn("UNKNOWN", said)
        self.assertEqual(self.effects(), ["slow"])

    async def test_without_a_node_no_tool_is_called(self) -> None:
        async with self.shop("--url", "http://127.0.0.1:1") as agent:
            said, _ = await agent.refused("pay", amount=1)
            self.assertIn("not made", said)
            self.assertIn("SAME", said)
            self.assertIn("looked", words(await agent.call("look")) if await agent.client.list_tools() else "")
        self.assertEqual(self.effects(), ["look"])


class Odd(World):
    async def odd(self, *arguments: str, lists: bool = True) -> Raw:
        url, name = [] if "--url" in arguments else ["--url", self.node.url], f"odd-{self.directory.name}"
        server = python_server("odd.py", str(self.directory / "effects"))
        raw = await Raw.start([BINARY, "mcp-gate", *url, "--name", name, *arguments, "--", *server], lists=lists)
        self.addAsyncCleanup(raw.close)
        return raw

    async def test_a_line_that_cannot_be_read_ends_no_session(self) -> None:
        raw = await self.odd()
        raw.write(b'{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"pay","arguments":{"to":"\xff"}}}')
        answer = json.loads(await asyncio.wait_for(raw.others.get(), 20))
        self.assertEqual((answer["id"], answer["error"]["code"]), (None, -32700))
        await raw.call("latin")
        self.assertEqual(await raw.others.get(), b'{"jsonrpc":"2.0","method":"caf\xe9"}\n')
        # A client and a server that send what is longer than 64 MiB.
        long = {"name": "pay", "arguments": {"to": "x" * (65 << 20)}}
        answer = await raw.ask("tools/call", long, 60)
        self.assertIn("64 MiB", answer["error"]["message"])
        raw.write(json.dumps({"method": "tools/call", "params": long, "jsonrpc": "2.0", "id": "last"}, separators=(",", ":")).encode())
        answer = json.loads(await asyncio.wait_for(raw.others.get(), 60))
        self.assertEqual((answer["id"], "64 MiB" in answer["error"]["message"]), ("last", True))
        self.assertIn("64 MiB", (await raw.ask("long", {}, 60))["error"]["message"])
        self.assertIn("UNKNOWN", (await raw.call("long", idempotency_key="k"))["content"][0]["text"])
        await raw.call("pay", amount=1)
        self.assertEqual(self.effects(), ["latin", "long", "pay"])

    async def test_long_arguments_and_large_numbers_are_told_apart(self) -> None:
        raw = await self.odd()
        text = "x" * 200_000
        large = [{"to": text}, {"to": text + "y"}, {"n": 2**53}, {"n": 2**53 + 1}, {"n": str(2**53)}, {"n": 2**70}, {"n": [0.1, {"n": 2**53}]}]
        for arguments in large:
            for key in [{}, {"idempotency_key": f"key {large.index(arguments)}"}]:
                for is_again in [False, True]:
                    result = await raw.call("pay", **arguments, **key)
                    self.assertEqual("latchgate/duplicate" in result.get("_meta", {}), is_again, str(result)[:500])
        result = await raw.call("pay", n=2**53 + 2, idempotency_key="key 3")
        self.assertEqual(result["_meta"]["latchgate/refusal"]["code"], "contents-mismatch")
        self.assertEqual(len(self.effects()), 2 * len(large))

    async def test_no_server_reads_a_call_that_the_gate_does_not(self) -> None:
        raw = await self.odd("--treat", "key=pass")
        pay, key = '"params":{"name":"pay"}', '"params":{"name":"key"}'
        for members in [
            f'"method":"ping","params":\r{{"jsonrpc":"2.0","id":71,"method":"tools/call",{pay}}}\r',
            f'"method":"tools/call","method":"ping",{pay}',
            f'"Method":"tools/call","method":"ping",{pay}',
            f'"method":"tools/call",{pay},{key}',
            f'"method":"tools/call",{pay.replace("params", "PARAMS")},{key}',
            '"method":"tools/call","params":{"name":"pay","name":"key"}',
            '"method":"tools/call","params":{"Name":"pay","name":"key"}',
            '"method":"tools/call","paramſ":{"name":"pay"},"params":{"name":"key"}',
        ]:
            raw.write(f'{{"jsonrpc":"2.0","id":70,{members}}}'.encode())
            await raw.ask("tools/list", {})
        self.assertEqual(self.effects(), ["key", "key"])

    async def test_a_key_of_the_tool_itself_counts_before_the_tool_is_listed(self) -> None:
        raw = await self.odd(lists=False)
        for is_again in [False, True]:
            result = await raw.call("own", amount=1, idempotency_key="k")
            self.assertEqual("latchgate/duplicate" in result.get("_meta", {}), is_again, str(result))
            await raw.ask("tools/list", {})
        self.assertEqual(self.effects(), ["own"])

    async def test_a_server_that_has_closed_its_input_is_not_called(self) -> None:
        raw = await self.odd("--call-timeout", "1s")
        self.assertIn("UNKNOWN", (await raw.call("closed"))["content"][0]["text"])
        codes = [(await raw.call("pay", work=work))["_meta"]["latchgate/refusal"]["code"] for work in range(3)]
        self.assertEqual(codes[1:], ["server-ended", "server-ended"])
        self.assertEqual(self.effects(), ["closed"])

    async def test_while_the_first_call_may_run_no_new_key_is_advised(self) -> None:
        raw = await self.odd("--call-timeout", "6s")
        first = asyncio.create_task(raw.call("deaf", idempotency_key="k"))
        await until("the call runs", lambda: self.effects() == ["deaf"])
        said = (await raw.call("deaf", other=1, idempotency_key="k"))["content"][0]["text"]
        self.assertIn("SAME", said)
        self.assertNotIn("new", said)
        first.cancel()
        # No node says what has become of the first call.
        proxy = Proxy(self.node)
        self.addCleanup(proxy.stop)
        raw = await self.odd("--url", proxy.url)
        await raw.call("pay", idempotency_key="k")
        said = (await raw.call("pay", other=1, idempotency_key="k"))["content"][0]["text"]
        self.assertIn("SAME", said)
        self.assertNotIn("new", said)

    async def test_an_error_in_a_call_is_unknown_and_a_later_list_ungates_no_tool(self) -> None:
        raw = await self.odd()
        for _ in range(2):
            self.assertIn("UNKNOWN", (await raw.call("ask", idempotency_key="k"))["content"][0]["text"])
            tools = (await raw.ask("tools/list", {}))["result"]["tools"]
        self.assertIn("idempotency_key", tools[0]["inputSchema"]["properties"])
        for _ in range(2):
            answer = await raw.ask("tools/call", {"name": "refuse", "arguments": {"idempotency_key": "k"}})
            self.assertEqual(answer["error"]["code"], -32601)
        self.assertEqual(self.effects(), ["ask", "refuse", "refuse"])

    async def test_arguments_that_have_no_value_are_refused(self) -> None:
        raw = await self.odd()
        for wrong in [{"to": "half of a pair \ud83d"}, {"\ud83d": 1}, {"amount": 10**400}, [1]]:
            for arguments in [wrong, {**wrong, "idempotency_key": "k"} if isinstance(wrong, dict) else "text"]:
                answer = await raw.ask("tools/call", {"name": "pay", "arguments": arguments}, 20)
                self.assertEqual(answer["result"]["_meta"]["latchgate/refusal"]["code"], "invalid-request")
        self.assertEqual(self.effects(), [])

    async def test_a_result_without_a_value_passes_and_is_a_success(self) -> None:
        raw = await self.odd()
        first = await raw.call("cut", idempotency_key="k")
        self.assertEqual(first["content"][0]["text"], "half of a pair \ud83d")
        self.assertIn("DONE BEFORE", (await raw.call("cut", idempotency_key="k"))["content"][0]["text"])
        self.assertEqual(self.effects(), ["cut"])

    async def test_the_server_does_not_get_the_api_key_of_the_gate(self) -> None:
        with unittest.mock.patch.dict(os.environ, LATCHGATE_API_KEY=f"lgk_{'a' * 43}"):
            raw = await self.odd("--treat", "key=pass")
        self.assertEqual((await raw.call("key"))["content"][0]["text"], "none")

    async def test_names_of_tools_are_trimmed_and_not_empty(self) -> None:
        raw = await self.odd("--only", "key, pay")
        for _ in range(2):
            await raw.call("pay", amount=1)
        self.assertEqual(self.effects(), ["pay"])
        for wrong in [["--only", "key,,pay"], ["--except", " "], ["--treat", "=once"], ["--name", "a/b"], ["--name", ""]]:
            name = [] if "--name" in wrong else ["--name", "odd"]
            command = [BINARY, "mcp-gate", *name, *wrong, "--", "true"]
            self.assertEqual(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode, 2)

    async def test_each_call_has_an_answer_though_the_server_does_not_read(self) -> None:
        raw = await self.odd("--call-timeout", "1s")
        works = [{"name": "deaf", "arguments": {"work": work, "filler": "x" * 3000}} for work in range(90)]
        answers = await asyncio.wait_for(asyncio.gather(*(raw.ask("tools/call", work) for work in works)), 40)
        codes = {answer["result"]["_meta"]["latchgate/refusal"]["code"] for answer in answers}
        self.assertEqual(codes, {"operation-unknown", "server-busy"})
        self.assertEqual(self.effects(), ["deaf"])
