"""Sessions of agents, driven by the official SDK. `scripts/test-clients.sh` names the binary in CLIENT_BINARY and the Postgres in CLIENT_POSTGRES, and
puts the tests of the client for Python on the path, whose nodes are used."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import unittest
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, Implementation
from tests.world import Node, request

__all__ = ["Case", "Node", "Session", "request", "session", "until"]

BINARY = os.environ["CLIENT_BINARY"]
HERE = Path(__file__).parent
PATIENCE_S = 60.0


class Case(unittest.IsolatedAsyncioTestCase):
    """A node on SQLite, and a directory."""

    async def asyncSetUp(self) -> None:
        # On a busy machine it would report each step that takes long.
        asyncio.get_running_loop().set_debug(False)

    node: Node

    @classmethod
    def setUpClass(cls) -> None:
        cls.node = Node("--locks", "sqlite:mcp.db")
        cls.addClassCleanup(cls.node.stop)

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="latchgate-mcp-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def session(self, *arguments: str, name: str = "tester", **options: Any) -> Any:
        return session(self.directory, name, "mcp", "--url", self.node.url, *arguments, **options)

    def behind(self, *arguments: str, server: list[str], name: str = "tester", **options: Any) -> Any:
        """A session with a server behind the gate."""
        url = [] if "--url" in arguments else ["--url", self.node.url]
        gate = ["mcp-gate", *url, *arguments, "--", *server]
        return session(self.directory, name, *gate, **options)

    def held(self, key: str) -> bool:
        return bool(self.node.lock(key)["held"])


class Session:
    """A client, and the process that it speaks to."""

    def __init__(self, client: Client, pid_file: Path) -> None:
        self.client = client
        self._pid_file = pid_file

    @property
    def pid(self) -> int:
        return int(self._pid_file.read_text())

    async def call(self, tool: str, **arguments: Any) -> CallToolResult:
        return await self.client.call_tool(tool, arguments)

    async def ok(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What the tool says as data."""
        result = await self.call(tool, **arguments)
        assert not result.is_error, words(result)
        assert isinstance(result.structured_content, dict)
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        result = await self.call(tool, **arguments)
        assert result.is_error, words(result)
        return words(result), result.structured_content or {}

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@asynccontextmanager
async def session(directory: Path, name: str, *command: str, mode: str = "auto", **options: Any) -> AsyncIterator[Session]:
    pid_file = directory / f"{name}-{os.urandom(4).hex()}.pid"
    shell = ["-c", 'echo $$ >"$0"; exec "$@"', str(pid_file), BINARY, *command]
    server = StdioServerParameters(command="/bin/sh", args=shell, cwd=directory)
    async with Client(server, client_info=Implementation(name=name, version="1.0"), mode=mode, **options) as client:
        yield Session(client, pid_file)


def words(result: CallToolResult) -> str:
    return "\n".join(getattr(block, "text", "") for block in result.content)


async def until(what: str, holds: Callable[[], bool]) -> None:
    """Looks again and again."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not await asyncio.to_thread(holds):
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.02)


def python_server(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-B", str(HERE / name), *arguments]
