"""What the client reads as HTTP/1.1, from a server that answers with bytes as they are."""

from __future__ import annotations

import asyncio
import os
import ssl
import unittest
from unittest.mock import patch
from collections.abc import Sequence

import latchgate
from latchgate._http import NoAnswer, Node

OK = b'{"token":7}'


class Http(unittest.IsolatedAsyncioTestCase):
    async def ask(self, *answers: bytes, fresh: bool = False) -> list[object]:
        """The results of as many requests as there are answers; an empty answer is a connection that is closed, as is one behind `|`."""
        rest = list(answers)
        self.connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            while rest:
                try:
                    await reader.readuntil(b"{}")
                except asyncio.IncompleteReadError:
                    break
                answer, bar, _ = rest.pop(0).partition(b"|")
                writer.write(answer)
                if bar or not answer:
                    break
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        node = Node(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, None)
        results: list[object] = []
        while rest:
            try:
                results.append(await node.post("/x", {}, 0.5, fresh))
            except NoAnswer as error:
                results.append(error)
        node.close()
        server.close()
        return results

    async def test_answers_of_every_form_are_read_and_the_connection_is_used_again(self) -> None:
        forms: Sequence[bytes] = (
            b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + OK,
            b"HTTP/1.1 200\r\ncontent-length:11\r\n\r\n" + OK,
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + OK,
            b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\n{"tok\r\n6\r\nen":7}\r\n0\r\nX: y\r\n\r\n',
            b"HTTP/1.0 200 OK\r\n\r\n" + OK + b"|",
        )
        self.assertEqual(await self.ask(*forms), [(200, {"token": 7})] * len(forms))
        self.assertEqual(self.connections, 1)

    async def test_a_connection_that_the_node_closes_is_not_used_again(self) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\n" + OK
        self.assertEqual(await self.ask(answer + b"|", answer + b"|"), [(200, {"token": 7})] * 2)
        self.assertEqual(self.connections, 2)

    async def test_what_is_no_whole_answer_of_a_node_is_none(self) -> None:
        for answer in (
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + OK + b"|",
            b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + OK,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}|",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\n{}",
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"HTTP/1.1 two hundred\r\n\r\n",
        ):
            with self.subTest(answer=answer):
                (result,) = await self.ask(answer)
                self.assertIsInstance(result, NoAnswer)

    async def test_a_proxy_may_say_when_to_come_again(self) -> None:
        (result,) = await self.ask(b"HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nbusy")
        assert isinstance(result, NoAnswer)
        self.assertEqual(result.retry_after, 3.0)

    async def test_a_request_on_an_idle_connection_is_sent_again_unless_it_must_not(self) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + OK
        self.assertEqual(await self.ask(answer, b"", answer), [(200, {"token": 7})] * 2)
        first, second, third = await self.ask(answer, b"", answer, fresh=True)
        self.assertIsInstance(second, NoAnswer)
        self.assertEqual((first, third), ((200, {"token": 7}),) * 2)


class Construction(unittest.TestCase):
    def kinds(self, *arguments: object, **options: object) -> list[str]:
        return [repr(kind(*arguments, **options)) for kind in (latchgate.Client, latchgate.aio.Client)]  # type: ignore[arg-type]

    def test_41_urls_and_api_keys_are_trimmed(self) -> None:
        two = ["Client(http://a:7070, http://b:443)"] * 2
        for urls in (" http://a:7070,\thttp://b:443/ , ", ["http://a:7070\n", "http://b:443", " "], ",http://a:7070,,http://b:443,"):
            self.assertEqual(self.kinds(urls), two)
            with patch.dict(os.environ, LATCHGATE_URL=urls if isinstance(urls, str) else ",".join(urls)):
                self.assertEqual(self.kinds(), two)
        for key in ("lgk_0123456789ab_c0ffee\n", "\r\n lgk_0123456789ab_c0ffee\t", "lgk_0123456789ab_c0ffee"):
            with patch.dict(os.environ, LATCHGATE_API_KEY=key):
                for client in (latchgate.Client(), latchgate.aio.Client("http://a", api_key=key)):
                    (node,) = client._core._nodes
                    self.assertTrue(node._headers.endswith("\r\nAuthorization: Bearer lgk_0123456789ab_c0ffee\r\n"), node._headers)
        with patch.dict(os.environ, LATCHGATE_API_KEY=" \n"):
            self.assertNotIn("Authorization", latchgate.Client()._core._nodes[0]._headers)

    def test_44_a_variable_that_is_set_and_empty_is_no_default(self) -> None:
        context = ssl.create_default_context()
        for empty in ("", " \n"):
            with patch.dict(os.environ, LATCHGATE_URL=empty):
                self.assertEqual(self.kinds("http://a"), ["Client(http://a:80)"] * 2)
                for kind in (latchgate.Client, latchgate.aio.Client):
                    with self.assertRaisesRegex(ValueError, "^LATCHGATE_URL is set and empty$"):
                        kind()
            with patch.dict(os.environ, LATCHGATE_CA=empty):
                self.assertEqual(self.kinds("http://a", ssl_context=context), ["Client(http://a:80)"] * 2)
                for kind in (latchgate.Client, latchgate.aio.Client):
                    with self.assertRaisesRegex(ValueError, "^LATCHGATE_CA is set and empty$"):
                        kind("http://a")

    def test_41_an_api_key_of_the_wrong_form_is_refused_and_never_printed(self) -> None:
        for key in (
            "lgk_0123\nlgk_4567",
            "lgk_0123\r\nX-Secret: 7",
            "Bearer lgk_0123456789ab_c0ffee",
            '"lgk_0123456789ab_c0ffee"',
            "lgk_0123456789ab c0ffee",
            "lgk_0123456789ab_\N{LATIN SMALL LETTER C WITH CEDILLA}0ffee",
            "LATCHGATE_API_KEY=lgk_0123456789ab_c0ffee",
            "c0ffee",
            "lgk_",
            "lgk_\0",
        ):
            with self.subTest(key=key), self.assertRaisesRegex(ValueError, "API key") as raised:
                self.kinds("http://a", api_key=key)
            self.assertNotRegex(str(raised.exception), "0ffee|4567|0123|Secret")
        with self.assertRaisesRegex(TypeError, "api_key") as wrong:
            self.kinds("http://a", api_key=b"lgk_0123456789ab_c0ffee")
        self.assertNotIn("0ffee", str(wrong.exception))

    def test_41_what_cannot_be_the_url_of_a_node_is_refused(self) -> None:
        for url in ("", ",", [], "a:7070", "http://", "http://a b", "http://a\r\nX: y", "http://a/b c", "ftp://a", "http://a?b", "http://a:x"):
            with self.subTest(url=url), self.assertRaises(ValueError):
                self.kinds(url)
        with self.assertRaisesRegex(ValueError, "user") as raised:
            self.kinds("http://me:c0ffee@a")
        self.assertNotIn("c0ffee", str(raised.exception))
        for after in ("a\nb", "\0", 7):
            with self.assertRaises((ValueError, TypeError)):
                latchgate.Client().events("k", after=after)  # type: ignore[arg-type]
