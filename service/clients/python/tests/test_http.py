"""What the client reads as HTTP/1.1, from a server that answers with bytes as they are."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Sequence

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

    async def test_once_there_is_a_status_only_some_answers_are_an_outage(self) -> None:
        def answer(status: int, body: bytes, lacks: int = 0) -> bytes:
            return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body) + lacks) + body

        problem, deep = b'{"type":"/errors/outcome-unknown","code":"outcome-unknown"}', b"[" * 100_000
        foreign = [answer(status, problem, 9) + end for status in (302, 401, 409, 500, 502, 503, 504) for end in (b"|", b"")]
        foreign += [answer(status, body) for status in (302, 401, 409, 500) for body in (b"{}", b"", b'{"code":"FORBIDDEN"}', deep)]
        foreign += [answer(200, body) for body in (b"[]", b"null", b'"ok"', b"7")]
        foreign += [b"HTTP/1.1 409 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 409 X\r\nContent-Length: zz\r\n\r\n"]
        outage = [answer(status, body) for status in (502, 503, 504) for body in (b"{}", b"busy", b"", b"[]")]
        outage += [answer(200, b"<html>"), answer(200, b""), answer(200, deep), answer(200, OK, 9) + b"|", answer(200, OK, 9)]
        for code, answers in (("foreign-answer", foreign), ("no-answer", outage)):
            for each in answers:
                with self.subTest(answer=each[:100], code=code):
                    (result,) = await self.ask(each)
                    assert isinstance(result, NoAnswer)
                    # What a gateway refuses, it has not passed on.
                    self.assertEqual((result.code, result.sent), (code, each[9:10] not in b"34"))
        # Also on a connection that was idle: the node has answered, so the request is not sent again there.
        ok = answer(200, OK)
        first, cut, third = await self.ask(ok, answer(409, problem, 9) + b"|", ok)
        assert isinstance(cut, NoAnswer)
        self.assertEqual((first, cut.code, third), ((200, {"token": 7}), "foreign-answer", (200, {"token": 7})))

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
