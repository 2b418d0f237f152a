"""Two agents in one repository, and a tool call that is repeated. Needs `pip install mcp`, a node, and `latchgate` in the PATH."""

import asyncio
import json
import os

from mcp import Client, StdioServerParameters
from mcp.types import Implementation

LOCKS = StdioServerParameters(command="latchgate", args=["mcp", "--repository", "shop"], env=dict(os.environ))


def agent(name: str) -> Client:
    return Client(LOCKS, client_info=Implementation(name=name, version="1.0"))


async def call(name: str, client: Client, tool: str, **arguments: object) -> dict:
    result = await client.call_tool(tool, arguments)
    print(f"{name}: {tool} {json.dumps(arguments)}", *(block.text.strip() for block in result.content), sep="\n")
    return result.structured_content


async def main() -> None:
    async with agent("ann") as ann, agent("bob") as bob:
        await call("ann", ann, "acquire", paths=["src/billing/"], note="new tax rates")
        await call("bob", bob, "acquire", paths=["src/web/"])
        await call("bob", bob, "acquire", paths=["src/billing/tax.rs"])
        await call("ann", ann, "release")
        begun = await call("ann", ann, "begin_once", operation="send-invoice", contents={"order": 42})
        await call("ann", ann, "finish_once", id=begun["id"], outcome="done", result={"invoice": 7})
        await call("bob", bob, "begin_once", operation="send-invoice", contents={"order": 42})


asyncio.run(main())
