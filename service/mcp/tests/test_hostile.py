"""`mcp-gate` in front of a server that loses answers, dies, answers late, and answers twice. CALLS says how many calls are made; if absent, 10 000."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from urllib.parse import quote

from raw import Lost, Raw
from world import BINARY, Case, python_server, request

CALLS = int(os.environ.get("CALLS", "10000"))
WORKERS = 64
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1 << 30)


class Hostile(Case):
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

        async def next_run() -> Raw:
            gate = ["mcp-gate", "--url", self.node.url, "--name", "hostile", "--scope", "all runs", "--call-timeout", "800ms", "--"]
            return await Raw.start([BINARY, *gate, *python_server("hostile.py", str(effects), str(dice.randrange(1 << 30)))])

        run, starting = await next_run(), asyncio.Lock()

        answers: dict[int, str] = {}
        operations: set[str] = set()

        async def worker(works: Iterator[int]) -> None:
            nonlocal run, deaths
            for work in works:
                call = {"name": "work", "arguments": {"work": work, "idempotency_key": f"work {work}"}}
                while True:
                    async with starting:
                        if run.ended.is_set():
                            deaths += 1
                            run = await next_run()
                        now = run
                    impatient = dice.uniform(0.005, 0.5) if dice.random() < 0.1 else None
                    try:
                        result = (await now.ask("tools/call", call, impatient))["result"]
                    except Lost:
                        continue
                    refusal = result.get("_meta", {}).get("latchgate/refusal", {})
                    code = refusal.get("code", "done")
                    if code in ("operation-in-progress", "server-ended"):
                        continue
                    if code == "operation-unknown":
                        operations.add(refusal["operation"])
                    answers[work] = code
                    # Some clients repeat what has an answer.
                    if dice.random() < 0.9:
                        break

        works = iter(range(CALLS))
        await asyncio.gather(*(worker(works) for _ in range(WORKERS)))
        await run.close()
        done = Counter(effects.read_text().split())
        print(f"seed {SEED}: {CALLS} calls, {deaths} deaths, {len(done)} effects", file=sys.stderr)
        self.assertEqual([work for work, times in done.items() if times > 1], [], "second effects")
        self.assertEqual(len(answers), CALLS)
        self.assertEqual(set(answers.values()), {"done", "operation-unknown"})
        self.assertEqual([work for work, answer in answers.items() if answer == "done" and str(work) not in done], [])
        self.assertEqual(await asyncio.to_thread(self.unknown), operations)
