"""A process that speaks the protocol, driven without an SDK: none goes on when its server dies."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Lost(Exception):
    """The process has ended, or the client has waited long enough."""


class Raw:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ended = asyncio.Event()
        # What no call waits for.
        self.others: asyncio.Queue[bytes] = asyncio.Queue()
        self._awaited: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = 0
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: list[str], lists: bool = True) -> Raw:
        command = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.DEVNULL}
        raw = cls(await asyncio.create_subprocess_exec(*command, limit=1 << 20, **pipes))
        info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        await raw.ask("initialize", info)
        raw.send({"method": "notifications/initialized"})
        if lists:
            await raw.ask("tools/list", {})
        return raw

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            try:
                message = json.loads(line)
            except UnicodeDecodeError:
                message = {}
            awaits = self._awaited.pop(message.get("id"), None)
            if awaits is None:
                self.others.put_nowait(line)
            elif not awaits.done():
                awaits.set_result(message)
        self.ended.set()
        for awaits in self._awaited.values():
            if not awaits.done():
                awaits.set_exception(Lost())
        await self.process.wait()

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        if self.ended.is_set():
            raise Lost
        self.process.stdin.write(line + b"\n")

    async def ask(self, method: str, params: dict[str, Any], patience_s: float | None = None) -> dict[str, Any]:
        """The answer. After `patience_s`, the call is cancelled and counts as lost."""
        self._ids += 1
        number = self._ids
        self.send({"id": number, "method": method, "params": params})
        awaits = self._awaited[number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(awaits, patience_s)
        except asyncio.TimeoutError:
            self._awaited.pop(number, None)
            self.send({"method": "notifications/cancelled", "params": {"requestId": number}})
            raise Lost from None

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = (await self.ask("tools/call", {"name": tool, "arguments": arguments}))["result"]
        assert isinstance(result, dict)
        return result

    async def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self._reading
