"""A hand-written MCP server of 2025 on stdio: it records its messages and never answers a call."""

import json
import os
import sys

TOOL = {"name": "hang", "description": "Never ends.", "inputSchema": {"type": "object"}}
INFO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
RESULTS = {"initialize": INFO, "tools/list": {"tools": [TOOL]}}

with open(os.environ["SEEN"], "a") as seen:
    for line in sys.stdin:
        message = json.loads(line)
        print(line, end="", file=seen, flush=True)
        if "id" not in message or message["method"] == "tools/call":
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] in RESULTS:
            answer["result"] = RESULTS[message["method"]]
        else:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(answer), flush=True)
