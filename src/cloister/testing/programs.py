"""The program's side of the wires of harnesses, for tests: ACP, `codex app-server`, and the stream of JSON of Claude Code.

A test writes what its program does, `wire.open()` first, and `installed` makes a command of that. Standard library only.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

Object = dict[str, Any]


class Wire:
    """A conversation with Cloister on standard input and output."""

    def read(self) -> Object:
        """The next message; the program ends with its input."""
        return json.loads(sys.stdin.readline() or sys.exit(0))

    def send(self, *messages: Object) -> None:
        """Send messages in one piece."""
        os.write(1, "".join(json.dumps(one) + "\n" for one in messages).encode())

    def open(self) -> None:
        """Be greeted, and begin a session."""
        raise NotImplementedError

    def prompt(self) -> str:
        """The next prompt."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        raise NotImplementedError

    def plan(self, *steps: str) -> None:
        raise NotImplementedError

    def asks(self, call: str, *, path: str = "", command: str = "") -> bool:
        """Tell of an edit of a path or of a command, and ask whether it may run."""
        raise NotImplementedError

    def done(self, call: str, *, path: str = "", command: str = "") -> None:
        """Tell that a call has run."""
        raise NotImplementedError

    def end(self) -> None:
        """End the turn."""
        raise NotImplementedError

    def edit(self, call: str, path: str, old: str, new: str) -> None:
        """Edit a file, if that is allowed."""
        if self.asks(call, path=path):
            at = Path(path)
            at.write_text(at.read_text().replace(old, new) if at.exists() else new)
            self.done(call, path=path)


class Acp(Wire):
    """The Agent Client Protocol."""

    _asked: Any = None

    def open(self) -> None:
        self.send({"id": self.read()["id"], "result": {"protocolVersion": 1}})
        self.send({"id": self.read()["id"], "result": {"sessionId": "s"}})

    def prompt(self) -> str:
        asked = self.read()
        self._asked = asked["id"]
        return "".join(block["text"] for block in asked["params"]["prompt"])

    def say(self, text: str) -> None:
        self._update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})

    def plan(self, *steps: str) -> None:
        self._update(sessionUpdate="plan", entries=[{"content": step} for step in steps])

    def asks(self, call: str, *, path: str = "", command: str = "") -> bool:
        told = self._call(call, path, command)
        options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
        params = {"sessionId": "s", "toolCall": told, "options": options}
        self.send({"id": call, "method": "session/request_permission", "params": params})
        return self.read()["result"]["outcome"].get("optionId") == "allow_once"

    def done(self, call: str, *, path: str = "", command: str = "") -> None:
        self._update(sessionUpdate="tool_call", status="completed", **self._call(call, path, command))

    def end(self) -> None:
        self.send({"id": self._asked, "result": {"stopReason": "end_turn"}})

    def _update(self, **fields: Any) -> None:
        self.send({"method": "session/update", "params": {"sessionId": "s", "update": fields}})

    @staticmethod
    def _call(call: str, path: str, command: str) -> Object:
        kind = {"toolCallId": call, "title": command or path, "kind": "execute" if command else "edit"}
        return kind | ({"rawInput": {"command": command}} if command else {"locations": [{"path": path}]})


class Codex(Wire):
    """`codex app-server`."""

    turn = "turn-0"

    def open(self) -> None:
        self.send({"id": self.read()["id"], "result": {}})
        self.read()  # "initialized" has no answer
        self.send({"id": self.read()["id"], "result": {"thread": {"id": "t"}}})

    def prompt(self) -> str:
        asked = self.read()
        self.turn = f"turn-{asked['id']}"
        self.send({"id": asked["id"], "result": {"turn": {"id": self.turn, "status": "inProgress"}}})
        return "".join(part["text"] for part in asked["params"]["input"])

    def say(self, text: str) -> None:
        self._tell("item/completed", item={"id": f"m-{text}", "type": "agentMessage", "text": text})

    def plan(self, *steps: str) -> None:
        self._tell("turn/plan/updated", plan=[{"step": step, "status": "pending"} for step in steps])

    def asks(self, call: str, *, path: str = "", command: str = "") -> bool:
        self._tell("item/started", item=self._item(call, path, command))
        kind, more = ("commandExecution", {"command": command}) if command else ("fileChange", {})
        params = {"threadId": "t", "turnId": self.turn, "itemId": call, **more}
        self.send({"id": call, "method": f"item/{kind}/requestApproval", "params": params})
        return self.read()["result"]["decision"] == "accept"

    def done(self, call: str, *, path: str = "", command: str = "") -> None:
        self._tell("item/completed", item=self._item(call, path, command) | {"status": "completed"})

    def end(self) -> None:
        self.send(self.ended(self.turn, "completed"))

    @staticmethod
    def ended(turn: str, status: str, message: str = "") -> Object:
        error = {"message": message} if message else None
        return {
            "method": "turn/completed",
            "params": {"threadId": "t", "turn": {"id": turn, "status": status, "error": error}},
        }

    def _tell(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": {"threadId": "t", "turnId": self.turn, **params}})

    @staticmethod
    def _item(call: str, path: str, command: str) -> Object:
        if command:
            return {"id": call, "type": "commandExecution", "command": command, "status": "inProgress"}
        changes = [{"path": path, "diff": ""}]
        return {"id": call, "type": "fileChange", "changes": changes, "status": "inProgress"}


class Claude(Wire):
    """Claude Code without its adapter."""

    def open(self) -> None:
        self.answer(self.read())

    def answer(self, request: Object) -> None:
        told: Object = {"subtype": "success", "request_id": request["request_id"], "response": {}}
        self.send({"type": "control_response", "response": told})

    def prompt(self) -> str:
        return self.read()["message"]["content"]

    def say(self, text: str) -> None:
        self._said("assistant", {"type": "text", "text": text})

    def plan(self, *steps: str) -> None:
        todos = [{"content": step, "status": "pending"} for step in steps]
        self._said(
            "assistant", {"type": "tool_use", "id": "p", "name": "TodoWrite", "input": {"todos": todos}}
        )

    def asks(self, call: str, *, path: str = "", command: str = "") -> bool:
        name, given = self.tells(call, path=path, command=command)
        request = {"subtype": "can_use_tool", "tool_name": name, "input": given, "tool_use_id": call}
        self.send({"type": "control_request", "request_id": call, "request": request})
        return self.read()["response"]["response"]["behavior"] == "allow"

    def done(self, call: str, *, path: str = "", command: str = "") -> None:
        self._said("user", {"type": "tool_result", "tool_use_id": call, "content": "Done."})

    def tells(self, call: str, *, path: str = "", command: str = "") -> tuple[str, Object]:
        name, given = ("Bash", {"command": command}) if command else ("Edit", {"file_path": path})
        self._said("assistant", {"type": "tool_use", "id": call, "name": name, "input": given})
        return name, given

    def end(self) -> None:
        self.send({"type": "result", "subtype": "success", "is_error": False, "result": ""})

    def _said(self, role: str, block: Object) -> None:
        self.send({"type": role, "message": {"role": role, "content": [block]}, "parent_tool_use_id": None})


WIRES: dict[str, type[Wire]] = {"acp": Acp, "codex": Codex, "claude": Claude}


def installed(directory: Path, wire: str, program: str) -> Path:
    """A command in `directory`, of the name that the harness of this wire starts, which does what `program` says."""
    at = directory / wire
    directory.mkdir(parents=True, exist_ok=True)
    head = f"#!{sys.executable}\nfrom {__name__} import {WIRES[wire].__name__}\nwire = {WIRES[wire].__name__}()\n"
    at.write_text(head + program)
    at.chmod(0o755)
    return at
