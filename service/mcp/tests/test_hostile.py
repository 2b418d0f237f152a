"""`mcp-gate` in front of a server that loses answers, dies, answers late, and answers twice. CALLS says how many calls are made; if absent, 10 000."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from raw import Lost, Raw
from world import BINARY, Case, python_server, request

CALLS = int(os.environ.get("CALLS", "10000"))
WORKERS = 64
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1 << 30)


class Hostile(Case):
    def gate(self, name: str, *arguments: str, server: list[str]) -> list[str]:
        options = ["--url", self.node.url, "--name", name, "--scope", "all runs", *arguments]
        return [BINARY, "mcp-gate", *options, "--", *server]

    def unknown(self) -> set[str]:
        listed, cursor = set(), ""
        while True:
            page = request(self.node.url, "GET", f"/v1/operations?state=unknown&limit=1000{cursor}")
            listed.update(operation["id"] for operation in page["operations"])
            if not page.get("next_cursor"):
                return listed
            cursor = "&cursor=" + quote(page["next_cursor"], safe="")

    async def test_no_call_has_a_second_effect_and_none_stays_without_an_answer(self) -> None:
        dice = random.Random(SEED)
        effects = self.directory / "effects"
        effects.touch()
        deaths = 0

        async def next_run(late: str = "1.2", death: str = "0.004") -> Raw:
            server = python_server("hostile.py", str(effects), str(dice.randrange(1 << 30)), late, death)
            return await Raw.start(self.gate("hostile", "--call-timeout", "800ms", server=server))

        run, starting = await next_run(), asyncio.Lock()

        async def ask(work: int, patience_s: float | None = None) -> dict[str, Any]:
            nonlocal run, deaths
            while True:
                async with starting:
                    if run.ended.is_set():
                        deaths += 1
                        run = await next_run()
                    now = run
                call = {"name": "work", "arguments": {"work": work, "idempotency_key": f"work {work}"}}
                try:
                    return await now.ask("tools/call", call, patience_s)
                except Lost:
                    patience_s = None

        answers: dict[int, str] = {}
        operations: dict[str, int] = {}
        kinds: Counter[str] = Counter()

        async def worker(works: Iterator[int]) -> None:
            for work in works:
                while True:
                    impatient = dice.uniform(0.005, 0.5) if dice.random() < 0.1 else None
                    result = (await ask(work, impatient))["result"]
                    refusal = result.get("_meta", {}).get("latchgate/refusal", {})
                    code = refusal.get("code", "done")
                    kinds[code] += 1
                    if code in ("operation-in-progress", "server-ended"):
                        continue
                    if code == "operation-unknown":
                        operations[refusal["operation"]] = work
                    answers[work] = code
                    # Some clients repeat what has an answer.
                    if dice.random() < 0.9:
                        break

        started = time.monotonic()
        works = iter(range(CALLS))
        await asyncio.gather(*(worker(works) for _ in range(WORKERS)))
        seconds = time.monotonic() - started
        await run.close()
        done = Counter(effects.read_text().split())
        print(f"seed {SEED}: {CALLS} calls, {deaths} deaths, {seconds:.0f} s, answers {dict(kinds)}, {len(done)} effects", file=sys.stderr)
        self.assertEqual([work for work, times in done.items() if times > 1], [], "second effects")
        self.assertEqual(len(answers), CALLS)
        self.assertEqual(set(answers.values()), {"done", "operation-unknown"})
        self.assertEqual([work for work, answer in answers.items() if answer == "done" and str(work) not in done], [])
        listed = await asyncio.to_thread(self.unknown)
        self.assertEqual(listed, set(operations))

        # A person looks at what was done, and says so.
        async def resolve(unknown: Iterator[tuple[str, int]]) -> None:
            for operation, work in unknown:
                outcome = "success" if str(work) in done else "failure"
                body = {"outcome": outcome, "reason": "seen in the file"}
                await asyncio.to_thread(request, self.node.url, "POST", f"/v1/operations/{operation}/resolve", body)

        unknown = iter(operations.items())
        await asyncio.gather(*(resolve(unknown) for _ in range(WORKERS)))
        self.assertEqual(await asyncio.to_thread(self.unknown), set())
        run = await next_run("0", "0")

        async def repeat(works: Iterator[int]) -> None:
            for work in works:
                result = (await ask(work))["result"]
                self.assertNotIn("latchgate/refusal", result.get("_meta", {}))

        again = iter(operations.values())
        await asyncio.gather(*(repeat(again) for _ in range(WORKERS)))
        await run.close()
        done = Counter(effects.read_text().split())
        self.assertEqual((len(done), set(done.values())), (CALLS, {1}))

    async def test_what_the_gate_costs(self) -> None:
        server = python_server("hostile.py", str(self.directory / "calm"), "1", "0", "0")
        medians = []
        for command in [server, self.gate("calm", server=server)]:
            raw = await Raw.start(command)
            times = []
            for number in range(300):
                began = time.perf_counter()
                await raw.ask("tools/call", {"name": "work", "arguments": {"work": number}})
                times.append(time.perf_counter() - began)
            medians.append(statistics.median(times) * 1000)
            await raw.close()
        print(f"median of a call: {medians[0]:.2f} ms, behind the gate {medians[1]:.2f} ms", file=sys.stderr)
