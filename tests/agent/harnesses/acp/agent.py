"""A small harness that speaks ACP on stdio and works with the model at `OPENAI_BASE_URL`: for tests, and as an example.

It runs in a sandbox with nothing but Python's standard library. Its tools are `bash` and `write`; it asks before each call,
ends its turn when the model calls no tool, and keeps its sessions in its home directory so that it can load them.
"""

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_TOOLS = {"bash": ("command", "execute"), "write": ("path", "edit"), "look": ("path", "read")}
_HOME = Path.home() / ".acp-agent"


class Agent:
    """One program with at most one turn at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[int, tuple[threading.Event, list[Any]]] = {}
        self._count = 0
        self._cancelled = threading.Event()
        self._command: subprocess.Popen[bytes] | None = None

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def update(self, session: str, **fields: Any) -> None:
        self.send({"method": "session/update", "params": {"sessionId": session, "update": fields}})

    def run(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "method" not in message:
                event, answer = self._asked.pop(message["id"])
                answer.append(message.get("result"))
                event.set()
            elif message["method"] == "session/prompt":
                threading.Thread(target=self._turn, args=(message,), daemon=True).start()
            elif message["method"] == "session/cancel":
                self._cancelled.set()
                if self._command is not None:
                    self._command.kill()
            else:
                self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        params = message["params"]
        if message["method"] == "initialize":
            abilities = {"loadSession": True, "promptCapabilities": {"image": False}}
            result: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": abilities}
        elif message["method"] == "session/new":
            _HOME.mkdir(exist_ok=True)
            name = f"session-{len(list(_HOME.iterdir()))}"
            _save(name, [])
            result = {"sessionId": name}
        else:
            for said in _load(params["sessionId"]):
                text = {"type": "text", "text": str(said["content"])}
                self.update(params["sessionId"], sessionUpdate="agent_message_chunk", content=text)
            result = {}
        self.send({"id": message["id"], "result": result})

    def _turn(self, message: dict[str, Any]) -> None:
        session = message["params"]["sessionId"]
        self._cancelled.clear()
        said = _load(session)
        text = "".join(block.get("text", "") for block in message["params"]["prompt"])
        said.append({"role": "user", "content": text})
        _save(session, said)
        self.update(session, sessionUpdate="plan", entries=[{"content": "Do what is asked."}])
        try:
            while self._step(session, said):
                _save(session, said)
        except urllib.error.HTTPError as error:
            why = {"code": -32603, "message": f"the model answered {error.code}"}
            self.send({"id": message["id"], "error": why})
            return
        _save(session, said)
        reason = "cancelled" if self._cancelled.is_set() else "end_turn"
        self.send({"id": message["id"], "result": {"stopReason": reason}})

    def _step(self, session: str, said: list[dict[str, Any]]) -> bool:
        """One reply of the model; False if it ends the turn."""
        reply = _ask(said)
        said.append(reply)
        if text := reply.get("content"):
            content = {"type": "text", "text": text}
            self.update(session, sessionUpdate="agent_message_chunk", content=content)
        calls = reply.get("tool_calls") or ()
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "Cut off."} for call in calls]
        _save(session, said + results)  # what a crash leaves
        for call, result in zip(calls, results, strict=True):
            said.append(result | {"content": self._call(session, call)})
        return bool(reply.get("tool_calls")) and not self._cancelled.is_set()

    def _call(self, session: str, call: dict[str, Any]) -> str:
        name, given = call["function"]["name"], json.loads(call["function"]["arguments"])
        key, kind = _TOOLS[name]
        where = [{"path": f"/work/{given['path']}"}] if "path" in given else []
        told = {"toolCallId": call["id"], "title": given[key], "kind": kind}
        self.update(session, sessionUpdate="tool_call", status="pending", **told)
        told |= {"rawInput": given, "locations": where}
        if self._cancelled.is_set() or (kind != "read" and not self._allowed(session, told)):
            text, status = "The user rejected it.", "failed"
        else:
            self.update(session, sessionUpdate="tool_call_update", status="in_progress", **told)
            text, status = self._do(name, given)
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
        told |= {"status": status, "content": content}
        self.update(session, sessionUpdate="tool_call_update", **told)
        return text

    def _allowed(self, session: str, told: dict[str, Any]) -> bool:
        self._count += 1
        event, answer = self._asked[self._count] = (threading.Event(), [])
        options = [
            {"optionId": "always", "name": "Always", "kind": "allow_always"},
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        params = {"sessionId": session, "toolCall": told, "options": options}
        self.send({"id": self._count, "method": "session/request_permission", "params": params})
        event.wait()
        return answer[0]["outcome"].get("optionId") == "yes"

    def _do(self, name: str, given: dict[str, Any]) -> tuple[str, str]:
        if name == "look":
            return Path(given["path"]).read_text(), "completed"
        if name == "write":
            Path(given["path"]).write_text(given["content"])
            return "Written.", "completed"
        argv = ["/bin/bash", "-c", given["command"]]
        self._command = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out, _ = self._command.communicate()
        return out.decode(errors="replace"), "completed" if self._command.returncode == 0 else "failed"


def _ask(said: list[dict[str, Any]]) -> dict[str, Any]:
    parts: dict[str, Any] = {"type": "object", "additionalProperties": True}
    tools = [
        {"type": "function", "function": {"name": name, "description": name, "parameters": parts}}
        for name in _TOOLS
    ]
    body = json.dumps({"model": "default", "messages": said, "tools": tools}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    asked = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked) as reply:
        return json.load(reply)["choices"][0]["message"]


def _load(session: str) -> list[dict[str, Any]]:
    return json.loads((_HOME / f"{session}.json").read_text())


def _save(session: str, said: list[dict[str, Any]]) -> None:
    (_HOME / f"{session}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    Agent().run()
