"""A server that does what no SDK helps it to do. Each call adds the tool's name to the file EFFECTS."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS = ["pay", "ask", "refuse", "cut", "key", "deaf"]


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(tool: str) -> dict[str, Any]:
    with open(sys.argv[1], "a") as file:
        file.write(f"{tool}\n")
    text = "done"
    match tool:
        case "ask":
            # The client refuses, and the server passes that on as the answer to the call.
            say({"id": "ask", "method": "sampling/createMessage", "params": {}})
            return {"error": {"code": -32601, "message": "Method not found"}}
        case "refuse":
            return {"error": {"code": -32601, "message": "Method not found"}}
        case "cut":
            text = "half of a pair \ud83d"
        case "deaf":
            time.sleep(3600)
        case "key":
            text = os.environ.get("LATCHGATE_API_KEY", "none")
    return {"result": {"content": [{"type": "text", "text": text}]}}


for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            version = message["params"]["protocolVersion"]
            answer: dict[str, Any] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
            say({"id": message["id"], "result": answer})
        case "tools/list":
            say({"id": message["id"], "result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}})
        case "tools/call":
            say({"id": message["id"], **call(message["params"]["name"])})
