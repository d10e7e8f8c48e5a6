"""An MCP server on stdio that tells about orders."""

import json
import sys

from store import order

TOOL = {
    "name": "get",
    "description": "The country and the net amount of an order.",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        about = {"name": "orders", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    number = params["arguments"]["number"]
    country, cents = order(number)
    return {"content": [{"type": "text", "text": f"order {number}: {cents} cents net, to {country}"}]}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
