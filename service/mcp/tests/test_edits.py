"""Twenty sessions on three nodes edit files in overlapping subtrees. EDITS says how many edits are made; if absent, 2 000."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raw import Raw
from world import BINARY, Node

EDITS = int(os.environ.get("EDITS", "2000"))
SESSIONS = 20
FILES = [f"src/{part}/{file}" for part in ["web", "billing", "billing/tax"] for file in ["a.rs", "b.rs", "c.rs"]]
# Of a hundred edits, how many end in the middle, because their session is killed.
KILLED = 1
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1 << 30)


class Edits(unittest.IsolatedAsyncioTestCase):
    nodes: list[Node]

    @classmethod
    def setUpClass(cls) -> None:
        cls.nodes = [Node() for _ in range(3)]
        for node in cls.nodes:
            cls.addClassCleanup(node.stop)

    async def asyncSetUp(self) -> None:
        asyncio.get_running_loop().set_debug(False)
        directory = tempfile.TemporaryDirectory(prefix="latchgate-mcp-")
        self.addCleanup(directory.cleanup)
        self.top = Path(directory.name)
        for file in FILES:
            (self.top / file).parent.mkdir(parents=True, exist_ok=True)
            (self.top / file).write_text("0")

    async def edit(self, dice: random.Random, file: str) -> None:
        """As an agent does it: reads, thinks, writes."""
        before = int((self.top / file).read_text())
        await asyncio.sleep(dice.uniform(0, 0.01))
        (self.top / file).write_text(str(before + 1))

    async def test_no_update_is_lost(self) -> None:
        dice, written, kills = random.Random(SEED), 0, 0

        def command(number: int) -> list[str]:
            url = self.nodes[number % len(self.nodes)].url
            return [BINARY, "mcp", "--url", url, "--repository", f"edits-{SEED}", "--ttl", "5s"]

        async def acquired(session: Raw, path: str) -> dict[str, Any]:
            ticket: dict[str, Any] = {}
            while True:
                result = await session.call("acquire", paths=[path], wait_s=40, **ticket)
                data = result["structuredContent"]
                if not result["isError"]:
                    return data
                ticket = {"ticket": data["ticket"]} if data.get("ticket") else {}

        async def agent(number: int, edits: Iterator[int]) -> None:
            nonlocal written, kills
            session = await Raw.start(command(number), f"agent-{number}")
            for _ in edits:
                file = dice.choice(FILES)
                folders = file.split("/")
                # A file, mostly; sometimes a folder above it.
                path = "/".join(folders[: dice.choice([len(folders)] * 8 + [len(folders) - 1] * 3 + [1])])
                if dice.randrange(100) < KILLED:
                    kills += 1
                    waiting = asyncio.create_task(acquired(session, path))
                    await asyncio.wait([waiting], timeout=dice.uniform(0, 0.1))
                    await session.kill()
                    await asyncio.gather(waiting, return_exceptions=True)
                    session = await Raw.start(command(number), f"agent-{number}")
                lease = await acquired(session, path)
                await self.edit(dice, file)
                written += 1
                released = await session.call("release", lease=lease["lease"])
                # A busy node may refuse: the lease ends by itself then.
                self.assertTrue(not released["isError"] or "ends by itself" in str(released), released)
            await session.close()

        started, edits = time.monotonic(), iter(range(EDITS))
        await asyncio.gather(*(agent(number, edits) for number in range(SESSIONS)))
        seconds = time.monotonic() - started
        kept = sum(int((self.top / file).read_text()) for file in FILES)
        print(f"seed {SEED}: {written} edits in {seconds:.0f} s, {kills} sessions killed, {written - kept} lost", file=sys.stderr)
        self.assertEqual((written, kept), (EDITS, EDITS))

    async def test_without_leases_some_are_lost(self) -> None:
        dice = random.Random(SEED)

        async def agent(edits: Iterator[int]) -> None:
            for _ in edits:
                await self.edit(dice, dice.choice(FILES))

        edits = iter(range(EDITS))
        await asyncio.gather(*(agent(edits) for _ in range(SESSIONS)))
        kept = sum(int((self.top / file).read_text()) for file in FILES)
        print(f"without leases: {EDITS - kept} of {EDITS} edits lost", file=sys.stderr)
        self.assertLess(kept, EDITS)
