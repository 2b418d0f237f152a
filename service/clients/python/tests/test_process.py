"""What the blocking client, which has a thread, does when its process ends, forks, or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path

from .world import IS_AIO, Node, Proxy, Scenario, eventually

_HEAD = "import atexit, os, sys, threading, time; import latchgate; url, key = sys.argv[1:]; client = latchgate.Client(url)\n"


@unittest.skipIf(IS_AIO, "it is the same for both kinds")
class Process(Scenario):
    def start(self, node: Node | Proxy, script: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        command = [sys.executable, "-B", "-W", "ignore", "-c", _HEAD + script, node.url, self.key]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def run_to_its_end(self, node: Node | Proxy, script: str) -> str:
        process = self.start(node, script)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        return output

    def test_23_a_process_that_ends_gives_back_a_claim_in_doubt(self) -> None:
        proxy = self.proxy(self.a)
        proxy.lose("pre", 3)
        script = """
try:
    latchgate.Client(url, retry_for=0.2).once(key, print, operation="test", wait=0)
except latchgate.Unavailable:
    pass
"""
        self.run_to_its_end(proxy, script)
        self.assertEqual(self.client().once(self.key, lambda _: 7, operation="test", wait=0).result, 7)

    def test_40_a_run_of_a_forgotten_client_is_entered_before_its_process_ends(self) -> None:
        proxy = self.proxy(self.a)
        proxy.then_refuse["pre"] = proxy.then_refuse["enter"] = (503, "store-unavailable")
        script = """
import gc
latchgate.Client(url, retry_for=0.2).once(key, lambda _: 7, operation="test", on_outage="proceed")
gc.collect()
print("done", flush=True)
sys.stdin.readline()
"""
        process = self.start(proxy, script)
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "done\n")
        seen = len(proxy.requests("/enter"))
        eventually(lambda: len(proxy.requests("/enter")) > seen, "it is tried again")
        _, errors = process.communicate("\n", timeout=60)
        self.assertEqual(errors.count("the program ends without an answer about runs that were made while the gate was away"), 1, errors)
        del proxy.then_refuse["enter"]
        process = self.start(proxy, script.replace("sys.stdin.readline()", "").replace("key", "[key]"))
        process.communicate(timeout=60)
        self.assertEqual(self.client().once([self.key], print, operation="test", wait=0).result, 7)

    def test_a_lease_can_be_released_by_the_last_function_of_a_process(self) -> None:
        script = """
atexit.register(lambda: lease.release())
lease = client.lock(key)
"""
        self.run_to_its_end(self.a, script)
        self.assertFalse(self.b.lock(self.key)["held"])

    def forks(self) -> list[str]:
        """Ways in which a child of the process, forked where `END` stands, ends."""
        return [
            "if os.fork() == 0: sys.exit(0)\nos.wait()",
            "if os.fork() == 0: raise ZeroDivisionError\nos.wait()",
            "if os.fork() == 0: os._exit(0)\nos.wait()",
            "child = multiprocessing.get_context('fork').Process(target=sys.exit)\nchild.start()\nchild.join()",
            "if os.fork() == 0:\n    assert lease.remaining() == 0\n    lease.release()\n    del lease\n    gc.collect()\n    sys.exit(0)\n"
            "assert os.wait()[1] == 0",
        ]

    def test_34_a_forked_child_does_not_end_the_lease_of_its_parent(self) -> None:
        for number, fork in enumerate(self.forks()):
            with self.subTest(fork=fork):
                proxy = self.proxy(self.a)
                script = f"""
import gc, multiprocessing
with client.lock(key + "/{number}", ttl=6) as lease, client.multilock([key + "/{number}/many"]) as many:
{textwrap.indent(fork, "    ")}
    assert latchgate.Client(url).try_lock(key + "/{number}") is None
    first = lease._keeper.last
    while lease._keeper.last is first:
        lease.check()
        time.sleep(0.01)
print("released")
"""
                self.assertEqual(self.run_to_its_end(proxy, script), "released\n")
                self.assertEqual(len(proxy.requests("/release")), 2)

    def test_34_a_forked_child_does_not_report_the_work_of_its_parent(self) -> None:
        for number, fork in enumerate(self.forks()):
            for on_expiry in ("retry", "block"):
                with self.subTest(fork=fork, on_expiry=on_expiry):
                    proxy = self.proxy(self.a)
                    script = f"""
import gc, multiprocessing
def work(lease):
    mine = lease
{textwrap.indent(fork.replace("    lease.release()" + chr(10), ""), "    ")}
    try:
        latchgate.Client(url).once(key + "/{number}", print, operation="{on_expiry}", on_expiry="{on_expiry}", wait=0)
    except latchgate.OperationInProgress:
        mine.check()
        return "parent"
client.once(key + "/{number}", work, operation="{on_expiry}", on_expiry="{on_expiry}")
print("posted")
"""
                    self.assertEqual(self.run_to_its_end(proxy, script), "posted\n")
                    self.assertEqual([body["outcome"] for body in proxy.requests("/post")], ["success"])

    def test_34_a_forked_child_that_returns_from_the_work_has_no_attempt(self) -> None:
        proxy = self.proxy(self.a)
        script = """
def work(attempt):
    pid = os.fork()
    if pid == 0:
        return "child"
    os.waitpid(pid, 0)
    return "parent"
try:
    print(client.once(key, work, operation="fork").result)
except latchgate.AttemptLost:
    print("lost", flush=True)
    os._exit(0)
"""
        self.assertEqual(self.run_to_its_end(proxy, script), "lost\nparent\n")
        self.assertEqual(self.client().once(self.key, print, operation="fork").result, "parent")
        self.assertEqual([body["result"] for body in proxy.requests("/post")], ["parent"])

    def test_34_a_child_that_is_forked_within_a_coroutine_ends_nothing(self) -> None:
        proxy = self.proxy(self.a)
        script = """
import asyncio
async def main():
    client = latchgate.aio.Client(url)
    async def work(attempt):
        async with client.lock(key) as lease:
            if os.fork() == 0:
                assert lease.remaining() == attempt.remaining() == 0
                raise ZeroDivisionError
            os.wait()
            lease.check()
            attempt.check()
            return "parent"
    try:
        await client.once(key, work, operation="fork", on_expiry="retry")
    except ZeroDivisionError:
        os._exit(0)
asyncio.run(main())
"""
        self.run_to_its_end(proxy, script)
        self.assertEqual(len(proxy.requests("/release")), 1)
        self.assertEqual([body["outcome"] for body in proxy.requests("/post")], ["success"])

    def test_34_forked_workers_have_a_thread_and_connections_of_their_own(self) -> None:
        script = """
client.lock(key + "/seen").release()
before = client.events(key + "/before")
mine = client.lock(key + "/mine", ttl=6)
reading = threading.Thread(target=lambda: print(next(before).kind, flush=True))
reading.start()
while before._reading._stream is None:
    time.sleep(0.01)
for worker in range(4):
    if os.fork() == 0:
        before.close()
        with client.lock(f"{key}/kept/{worker}", ttl=9) as kept:
            first = kept._keeper.last
            while kept._keeper.last is first:
                kept.check()
                time.sleep(0.01)
        assert threading.active_count() == 2
        for turn in range(20):
            with client.lock(f"{key}/{worker}", ttl=6) as lease:
                assert client.once([key, worker, turn], lambda _: turn, operation="worker").result == turn
        sys.exit(0)
for worker in range(4):
    assert os.wait()[1] == 0
client.lock(key + "/before").release()
reading.join()
mine.release()
"""
        self.assertEqual(self.run_to_its_end(self.a, script), "granted\n")

    def test_11_a_wait_that_is_interrupted_leaves_nothing_behind(self) -> None:
        with self.client().lock(self.key):
            process = self.start(self.a, "client.lock(key, wait=600)")
            eventually(lambda: self.b.lock(self.key)["waiters"] == 1, "it waits")
            process.send_signal(signal.SIGINT)
            self.assertIn("KeyboardInterrupt", process.communicate(timeout=60)[1])
            self.assertEqual(self.b.lock(self.key)["waiters"], 0)
        self.free(self.key)
