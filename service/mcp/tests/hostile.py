"""A server that loses answers, dies, answers late, and answers twice. Its one tool adds a line to the file EFFECTS; the calls are numbered by
their argument `work`. It speaks the protocol by itself, because no SDK lets it do that."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import Any

EFFECTS, SEED, LATE_S = os.open(sys.argv[1], os.O_APPEND | os.O_WRONLY | os.O_CREAT), int(sys.argv[2]), 1.2
# How often it dies, of the calls it gets.
DEATHS = 0.004
dice = random.Random(SEED)
calls = 0


def say(message: dict[str, Any]) -> None:
    os.write(1, (json.dumps({"jsonrpc": "2.0", **message}) + "\n").encode())


def call(message: dict[str, Any]) -> None:
    global calls
    calls += 1
    dies = dice.random() < DEATHS
    if dies and dice.random() < 0.5:
        os._exit(1)
    if dice.random() < 0.97:
        os.write(EFFECTS, f"{message['params']['arguments']['work']}\n".encode())
        answer = {"id": message["id"], "result": {"content": [{"type": "text", "text": "done"}], "isError": False}}
    else:
        # It fails, and does not say whether it has done something.
        answer = {"id": message["id"], "error": {"code": -32603, "message": "internal error"}}
    if dies:
        os._exit(1)
    if calls % 3 == 0:
        return
    if dice.random() < 0.1:
        threading.Timer(dice.uniform(0, LATE_S), say, [answer]).start()
        return
    say(answer)
    if dice.random() < 0.1:
        say(answer)


for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            version = message["params"]["protocolVersion"]
            say({"id": message["id"], "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}}})
        case "tools/list":
            say({"id": message["id"], "result": {"tools": [{"name": "work", "inputSchema": {"type": "object", "properties": {"work": {}}}}]}})
        case "tools/call":
            call(message)
        case _ if "id" in message and "method" in message:
            say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
