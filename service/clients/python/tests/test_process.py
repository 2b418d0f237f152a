"""What the blocking client, which has a thread, does when its process ends, forks, or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from .world import IS_AIO, Node, Proxy, Scenario, eventually

_HEAD = "import atexit, os, sys, threading, time; import latchgate; url, key = sys.argv[1:]; client = latchgate.Client(url)\n"


@unittest.skipIf(IS_AIO, "it is the same for both kinds")
class Process(Scenario):
    def start(self, node: Node | Proxy, script: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        command = [sys.executable, "-B", "-W", "ignore", "-c", _HEAD + script, node.url, self.key]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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

    def test_a_lease_can_be_released_by_the_last_function_of_a_process(self) -> None:
        script = """
atexit.register(lambda: lease.release())
lease = client.lock(key)
"""
        self.run_to_its_end(self.a, script)
        self.assertFalse(self.b.lock(self.key)["held"])

    def test_a_forked_process_has_a_thread_and_connections_of_its_own(self) -> None:
        script = """
def renewed(lease):
    first = lease._keeper.last
    while lease._keeper.last is first:
        lease.check()
        time.sleep(0.01)
lease = client.lock(key + "/parent", ttl=6)
if os.fork() == 0:
    with client.lock(key + "/child", ttl=6) as mine:
        renewed(mine)
    print(threading.active_count(), flush=True)
    sys.exit(0)
assert os.wait()[1] == 0
renewed(lease)
lease.release()
print(threading.active_count())
"""
        self.assertEqual(self.run_to_its_end(self.a, script), "2\n2\n")
        self.free(self.key + "/child")
        self.free(self.key + "/parent")

    def test_11_a_wait_that_is_interrupted_leaves_nothing_behind(self) -> None:
        with self.client().lock(self.key):
            process = self.start(self.a, "client.lock(key, wait=600)")
            eventually(lambda: self.b.lock(self.key)["waiters"] == 1, "it waits")
            process.send_signal(signal.SIGINT)
            self.assertIn("KeyboardInterrupt", process.communicate(timeout=60)[1])
            self.assertEqual(self.b.lock(self.key)["waiters"], 0)
        self.free(self.key)
