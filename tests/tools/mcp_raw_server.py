"""A hand-written MCP server of 2025 on stdio: it records its messages, and asks in the middle of a call of `book`.

It never answers a call of `hang`.
"""

import json
import os
import sys

SEAT = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}
TOOLS = [
    {"name": "hang", "description": "Never ends.", "inputSchema": {"type": "object"}},
    {"name": "book", "description": "Books a journey.", "inputSchema": {"type": "object"}},
]
INFO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
RESULTS = {"initialize": INFO, "tools/list": {"tools": TOOLS}}


def send(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


with open(os.environ["SEEN"], "a") as seen:
    for line in sys.stdin:
        message = json.loads(line)
        print(line, end="", file=seen, flush=True)
        if "id" not in message:
            continue
        match message.get("method"):
            case None:  # The reply to a question, whose id is that of its call.
                reply = message.get("result", {}).get("content") or message.get("error")
                send(id=message["id"], result={"content": [{"type": "text", "text": json.dumps(reply)}]})
            case "tools/call":
                if message["params"]["name"] == "book":
                    prompt = f"Which class to {message['params']['arguments']['city']}?"
                    params = {"message": prompt, "requestedSchema": SEAT}
                    send(id=message["id"], method="elicitation/create", params=params)
            case method if method in RESULTS:
                send(id=message["id"], result=RESULTS[method])
            case _:
                send(id=message["id"], error={"code": -32601, "message": "Method not found"})
