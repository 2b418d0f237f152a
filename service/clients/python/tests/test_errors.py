"""The scenarios of refusals, and the examples of README.md."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import latchgate
from latchgate import LeaseLost, Refused, Unavailable

from .world import IS_PYTHON, KIND, PATIENCE, Background, Node, Scenario, eventually, not_for, only, problem


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
        # As a file and a list leave the API key and the URLs.
        for urls in (f" {node.url}/ ,\n", f",{node.url},,", [f"{node.url}\n", " "]):
            with self.connect(urls, api_key=f"\r\n {key}\t\n", retry_for=30).lock(self.key) as lease:
                self.assertGreater(lease.remaining(), 0)
        if KIND == "rust":
            return
        with mock.patch.dict(os.environ, LATCHGATE_URL=f" {node.url}/ ,\n", LATCHGATE_API_KEY=f"{key}\n"):
            self.connect(retry_for=30).lock(self.key).release()
        with mock.patch.dict(os.environ, LATCHGATE_URL=self.a.url, LATCHGATE_API_KEY=" \n"):
            self.connect(retry_for=30).lock(self.key).release()

    def test_21_no_node_answers(self) -> None:
        a, b = self.pair()
        a.kill()
        b.freeze()
        with self.assertRaises(Unavailable) as raised:
            self.client(a, b, timeout=0.3, retry_for=1).lock(self.key, wait=0)
        self.assertEqual(raised.exception.code, "no-answer")

    def test_21_a_failure_says_more_than_the_silence_after_it(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            # The first connection is closed. Later ones are accepted by the system, and nothing answers there.
            threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
            with self.assertRaises(Unavailable) as raised:
                self.connect(f"http://127.0.0.1:{server.getsockname()[1]}", retry_for=8).lock(self.key)
        self.assertNotRegex(raised.exception.detail, "no answer (in time|within)|deadline exceeded")

    def test_22_a_node_that_is_busy_is_called_again_after_its_time(self) -> None:
        proxy = self.proxy(self.a)
        proxy.answers = lambda path, body: (503, problem("overloaded", 1_000)) if len(proxy.requests("/acquire")) < 3 else None
        self.client(proxy).lock(self.key).release()
        self.assertEqual(len(proxy.requests("/acquire")), 3)
        # Also if it is nearly all of the call's time.
        nearly = self.proxy(self.a)
        nearly.then_refuse["acquire"] = (503, "overloaded", 1_000)
        with self.assertRaises(Unavailable):
            self.hasty_client(nearly, retry_for=1.05).lock(self.key)
        # Also if another node asks for no time.
        beside = self.proxy(self.a)
        beside.then_refuse["acquire"] = (503, "overloaded", 1_000)
        with self.assertRaises(Unavailable):
            self.hasty_client(beside, SimpleNamespace(url="http://127.0.0.1:1"), retry_for=2.5).lock(self.key)
        for each in (proxy, nearly, beside):
            times = [at for path, at, _ in each.seen if path.endswith("/acquire")]
            for before, after in zip(times, times[1:]):
                # A timer of Node may end a millisecond early.
                self.assertGreaterEqual(after - before, 0.99 if KIND == "typescript" else 1)

    def test_33_an_answer_about_another_key_than_the_one_asked_for_is_an_error(self) -> None:
        # As proxies do that merge slashes, resolve dots, decode twice, fold cases, trim, decode a plus or normalize.
        for asked, other in (
            ("a//b", "a/b"),
            ("c/../d", "d"),
            ("e%2Ff", "e/f"),
            ("G", "g"),
            ("h ", "h"),
            ("i/", "i"),
            ("j+k", "j k"),
            ("ü", "u\u0308"),
        ):
            with self.subTest(asked=asked):
                asked, other = f"{self.key}/{asked}", f"{self.key}/{other}"
                proxy = self.proxy(self.a)
                proxy.merges = (asked, other)
                client = self.client(proxy)
                with self.assertRaises(Refused) as raised:
                    client.lock(asked)
                self.assertEqual(raised.exception.code, "other-key")
                if IS_PYTHON:
                    self.assertIn(repr(other), raised.exception.detail)
                self.free(other)
                with self.client().lock(other) as lease:
                    for call in (lambda: client.fence(asked, lease.token), lambda: client.revoke(asked)):
                        with self.assertRaises(Refused) as raised:
                            call()
                        self.assertEqual(raised.exception.code, "other-key")

    def test_41_what_cannot_reach_a_node_is_refused_and_shows_no_secret(self) -> None:
        bad_keys = [
            "lgk_0123\nlgk_4567",
            "lgk_0123\r\nX-Secret: 7",
            "Bearer lgk_0123456789ab_c0ffee",
            '"lgk_0123456789ab_c0ffee"',
            "lgk_0123456789ab c0ffee",
            "lgk_0123456789ab_\N{LATIN SMALL LETTER C WITH CEDILLA}0ffee",
            "lgk_0123456789ab_c0ffee\N{GRINNING FACE}",
            "LATCHGATE_API_KEY=lgk_0123456789ab_c0ffee",
            "c0ffee",
            "lgk_0123\0",
        ]
        for key in bad_keys:
            with self.subTest(key=key), self.assertRaisesRegex(ValueError, "API key") as raised:
                self.connect("http://a", api_key=key)
            self.assertNotRegex(str(raised.exception), "0ffee|4567|0123|Secret")
        bad_urls: list[str | list[str]] = ["", ",", " , ", "a:7070", "/v1", "http://", "http:/a", "ftp://a", ["http://a", "localhost"]]
        bad_urls += [f"http://a{end}" for end in ("?b", "?", "#b", "#", "/?", "/#")]
        bad_urls += [f"http://a{blank}b" for blank in " \n\r\t\0\x7f\xa0\u2028\u200b\xad\ufeff"]
        bad_urls += [f"http://{host}" for host in ("a:x", "a:-1", "a:99999", "a:1:2", "[g]", "[1]", "[:]", "[127.0.0.1]", "[::1]x", "a]", "a\\b")]
        for urls in bad_urls:
            with self.subTest(urls=urls), self.assertRaisesRegex(ValueError, "one of the URLs is not|base URL|no URL|least one URL|set and empty"):
                self.connect(urls)
        hidden = ["u:c0ffee%40h", "c0ffee%40h", "u:c0f,fee%40h", "u:c0ffee\N{FULLWIDTH COMMERCIAL AT}h", "c0ffee\N{FULLWIDTH COMMERCIAL AT}h"]
        for secret in (*hidden, "a?token=c0ffee", "a#c0ffee", "me@a?token=c0ffee"):
            for url in (f"http://{secret}", f"lgk_{secret}"):
                with self.subTest(url=url), self.assertRaises(ValueError) as raised:
                    self.connect(url)
                self.assertNotRegex(f"{raised.exception} {raised.exception.__context__}", "c0f")
        # A login, even an empty one; and its password may have anything.
        logins = ["http://@", "http://me@", "http://me:c0ffee@", "ftp://me:c0ffee@", "http://me:c0ffee\n@"]
        for login in (*logins, "http://me:c0f/fee@", "http://me:c0f,fee@", "http://me:@c0ffee@"):
            with self.subTest(login=login), self.assertRaises(ValueError) as raised:
                self.connect(f"{login}node-1:7070")
            self.assertIn("a URL has a login, which no node takes: give an API key", str(raised.exception))
            self.assertNotRegex(str(raised.exception), "c0f|node-1")

    @not_for("rust")
    def test_43_the_authorities_in_LATCHGATE_CA_are_trusted(self) -> None:
        tls = os.environ["CLIENT_TLS"]
        node = Node("--tls-cert", f"{tls}/cert.pem", "--tls-key", f"{tls}/key.pem")
        self.addCleanup(node.stop)
        with self.client(node).lock(self.key) as lease:
            self.assertGreater(lease.remaining(), 0)
        # Those of the system do not know it.
        with mock.patch.dict(os.environ), self.assertRaises(Unavailable):
            del os.environ["LATCHGATE_CA"]
            self.hasty_client(node, retry_for=0.5).lock(self.key)
        node.url = node.url.replace("https:", "http:")
        with self.assertRaisesRegex(Refused, "serves HTTPS"):
            self.client(node).lock(self.key)
        for file in ("absent.pem", "key.pem"):
            with mock.patch.dict(os.environ, LATCHGATE_CA=f"{tls}/{file}"), self.assertRaisesRegex(ValueError, "LATCHGATE_CA"):
                self.client(node)

    @not_for("rust")
    def test_44_a_variable_that_is_set_and_empty_is_no_default(self) -> None:
        # With a client of HTTP of its own, none reads LATCHGATE_CA.
        own = {"ssl_context": ssl.create_default_context()} if IS_PYTHON else {"own_http": True}
        for empty in ("", " \n"):
            for name, urls in (("LATCHGATE_URL", None), ("LATCHGATE_CA", "http://a")):
                with mock.patch.dict(os.environ, {name: empty}):
                    with self.assertRaisesRegex(ValueError, f"^{name} is set and empty$"):
                        self.connect(urls)
                    if KIND != "typescript":
                        self.connect("http://a", **own)

    def test_45_a_wait_goes_on_while_a_quota_is_used_up(self) -> None:
        proxy, retry_for = self.proxy(self.a), 3
        proxy.then_refuse["acquire"] = (429, "quota-reached")
        client = self.hasty_client(proxy, retry_for=retry_for)
        waiting = Background(lambda: client.lock(self.key, wait=PATIENCE))
        eventually(lambda: not waiting.is_running() or proxy.seen and proxy.seen[-1][1] - proxy.seen[0][1] > 3 * retry_for, "calls for longer")
        proxy.then_refuse.clear()
        lease = waiting.result()
        with suppress(Unavailable):  # 3 s may be too short for this machine
            lease.release()

    def test_an_answer_to_another_call_grants_and_renews_nothing(self) -> None:
        proxy = self.proxy(self.a)
        granted = {"token": 7, "ttl_ms": 9_000, "status": 200, "lease_id": "another"}
        if KIND in ("go", "java"):
            proxy.answers = lambda path, body: (200, {**granted, "key": self.key})
            with self.assertRaises(Unavailable):
                self.hasty_client(proxy, retry_for=3).lock(self.key)
        proxy.answers = lambda path, body: (200, {"results": [granted | {"key": self.key}]}) if path.endswith("/renew") else None
        # A grant that is slow is renewed at once, so a third of the lease must be long for a busy machine.
        lease = self.client(proxy).lock(self.key, ttl=9)
        self.assertTrue(lease.lost.wait(60))
        with self.assertRaises(LeaseLost) as raised:
            lease.check()
        self.assertEqual(raised.exception.why, "unanswered")

    def test_keys_are_encoded_in_the_path(self) -> None:
        for key in (self.key + "/ü %2F?#+", self.key + "\N{GRINNING FACE}", ".", ".."):
            with self.client().lock(key) as lease:
                self.assertEqual(lease.tokens, {key: lease.token})

    @only("blocking")
    def test_the_examples_of_the_readme_run(self) -> None:
        readme = Path(__file__).parent.parent / "README.md"
        examples = re.findall(r"^```python\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE)
        self.assertGreater(len(examples), 1)
        names = {"latchgate": latchgate, "time": time}
        os.environ["LATCHGATE_URL"] = f"{self.a.url},{self.b.url}"
        self.addCleanup(os.environ.pop, "LATCHGATE_URL")
        for example in examples:
            exec(compile(example, "README.md", "exec"), names)
