"""A server of the official SDK, as others write them. Each call that does something adds a line to the file EFFECTS."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel

EFFECTS = sys.argv[1]
server = MCPServer("shop")


def effect(what: str) -> int:
    with open(EFFECTS, "a+") as file:
        file.write(f"{what}\n")
        file.seek(0)
        return len(file.readlines())


class Receipt(BaseModel):
    number: int
    amount: float


class Size(BaseModel):
    size: str


@server.tool()
def pay(amount: float, to: str = "ann") -> Receipt:
    """Pay."""
    return Receipt(number=effect(f"pay {amount} {to}"), amount=amount)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look() -> str:
    """Look."""
    return f"looked {effect('look')}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(name: str) -> str:
    """Put."""
    return f"put {name} {effect('put')}"


@server.tool()
async def slow(seconds: float, ctx: Context) -> str:
    """Take some time."""
    effect("slow")
    await ctx.report_progress(1, 2, "half")
    await asyncio.sleep(seconds)
    return "slept"


@server.tool()
async def order(ctx: Context) -> str:
    """Ask for a size, then order."""
    answer: Any = await ctx.elicit("Which size?", Size)
    effect("order")
    return f"ordered {answer.data.size}"


@server.tool()
def export(size: int) -> str:
    """Make a large text."""
    effect("export")
    return "x" * size


@server.tool()
def fail() -> str:
    """Do something, then fail."""
    effect("fail")
    raise RuntimeError("out of paper")


@server.tool()
def crash() -> str:
    """Do something, then end the process."""
    effect("crash")
    os._exit(3)


server.run()
