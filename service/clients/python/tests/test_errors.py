"""The scenarios of refusals, and the examples of README.md."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from unittest import mock

import latchgate
from latchgate import Refused

from .world import IS_AIO, PATIENCE, Node, Scenario, eventually


class Errors(Scenario):
    def test_20_a_refusal_has_its_code_and_its_fields(self) -> None:
        proxy = self.proxy(self.a)
        client = self.client(proxy)
        with self.assertRaises(Refused) as raised:
            client.lock("key\n", wait=0)
        self.assertEqual((raised.exception.status, raised.exception.code), (400, "invalid-key"))
        with client.lock(self.key, limit=2):
            with self.assertRaises(Refused) as raised:
                client.lock(self.key, limit=3)
        self.assertEqual((raised.exception.code, raised.exception.fields["limit"]), ("limit-mismatch", 2))
        self.assertEqual(len(proxy.requests("/acquire")), 3)

    def test_20_an_api_key_is_needed_where_there_is_one(self) -> None:
        generate = [os.environ["CLIENT_BINARY"], "api-key", "generate"]
        key = subprocess.run(generate, check=True, capture_output=True, text=True).stdout.strip()
        node = Node("--locks", "sqlite:locks.db", LATCHGATE_ADMIN_API_KEY=key)
        self.addCleanup(node.stop)
        with self.assertRaises(Refused) as raised:
            self.client(node).lock(self.key)
        self.assertEqual((raised.exception.status, raised.exception.code), (401, "unauthorized"))
        with self.client(node, api_key=key).lock(self.key) as lease:
            self.assertGreater(lease.remaining(), 0)

    def test_43_the_authorities_in_LATCHGATE_CA_are_trusted(self) -> None:
        tls = os.environ["CLIENT_TLS"]
        node = Node("--tls-cert", f"{tls}/cert.pem", "--tls-key", f"{tls}/key.pem")
        self.addCleanup(node.stop)
        with self.client(node).lock(self.key) as lease:
            self.assertGreater(lease.remaining(), 0)
        # Those of the system do not know it.
        with self.assertRaises(latchgate.Unavailable):
            self.hasty_client(node, retry_for=0.5, ssl_context=ssl.create_default_context()).lock(self.key)
        node.url = node.url.replace("https:", "http:")
        with self.assertRaisesRegex(Refused, "serves HTTPS"):
            self.client(node).lock(self.key)
        for file in ("absent.pem", "key.pem"):
            with mock.patch.dict(os.environ, LATCHGATE_CA=f"{tls}/{file}"), self.assertRaisesRegex(ValueError, "LATCHGATE_CA"):
                self.client(node)

    def test_22_a_node_that_is_busy_is_called_again_after_its_time(self) -> None:
        proxy = self.proxy(self.a)
        proxy.refuse(2)
        self.client(proxy).lock(self.key).release()
        times = [at for path, at, _ in proxy.seen if path.endswith("/acquire")]
        self.assertEqual(len(times), 3)
        self.assertGreaterEqual(min(times[1] - times[0], times[2] - times[1]), 1)

    def test_45_a_wait_goes_on_while_a_quota_is_used_up(self) -> None:
        proxy, retry_for = self.proxy(self.a), 0.3
        proxy.then_refuse["acquire"] = (429, "quota-reached")
        client = self.hasty_client(proxy, retry_for=retry_for)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(lambda: client.lock(self.key, wait=PATIENCE))
            eventually(lambda: waiting.done() or proxy.seen and proxy.seen[-1][1] - proxy.seen[0][1] > 3 * retry_for, "calls for longer")
            proxy.then_refuse.clear()
            lease = waiting.result(PATIENCE)
            with suppress(latchgate.Unavailable):  # 0.3 s may be too short for this machine
                lease.release()

    def test_keys_are_encoded_in_the_path(self) -> None:
        for key in (self.key + "/ü %2F?#", self.key + "\N{GRINNING FACE}"):
            with self.client().lock(key) as lease:
                self.assertEqual(lease.tokens, {key: lease.token})

    def test_33_an_answer_about_another_key_than_the_one_asked_for_is_an_error(self) -> None:
        for key, other, rewrites in (
            (f"{self.key}//b", f"{self.key}/b", lambda path: path.replace("%2F%2F", "%2F")),
            (f"{self.key}/c/../d", f"{self.key}/d", lambda path: path.replace("c%2F..%2F", "")),
            (f"{self.key}/e%2Ff", f"{self.key}/e/f", lambda path: path.replace("%252F", "%2F")),
            (f"{self.key}/G", f"{self.key}/g", lambda path: path.replace("%2FG/", "%2Fg/")),
            (f"{self.key}/h ", f"{self.key}/h", lambda path: path.replace("%20/", "/")),
        ):
            with self.subTest(key=key):
                proxy = self.proxy(self.a)
                proxy.rewrites = rewrites
                client = self.client(proxy)
                with self.assertRaises(Refused) as raised:
                    client.lock(key)
                self.assertEqual(raised.exception.code, "other-key")
                self.assertIn(repr(other), raised.exception.detail)
                self.free(other)
                with self.assertRaises(Refused) as raised:
                    client.revoke(key)
                self.assertEqual(raised.exception.code, "other-key")

    @unittest.skipIf(IS_AIO, "they are the same")
    def test_the_examples_of_the_readme_run(self) -> None:
        readme = Path(__file__).parent.parent / "README.md"
        examples = re.findall(r"^```python\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE)
        self.assertGreater(len(examples), 1)
        names = {"latchgate": latchgate, "time": time}
        os.environ["LATCHGATE_URL"] = f"{self.a.url},{self.b.url}"
        self.addCleanup(os.environ.pop, "LATCHGATE_URL")
        for example in examples:
            exec(compile(example, "README.md", "exec"), names)
