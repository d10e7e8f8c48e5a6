"""The programs that Cloister can start as a harness: their commands, their settings, and what installs them.

Each knows one model, that of the run: `http://model.cloister` answers under any name, and its calls are paid from the
attempt's budget.
"""

import shlex
from typing import Literal, NamedTuple
from uuid import uuid4

import msgspec

from cloister.agent.context.messages import WINDOW_TOKENS
from cloister.core.attempts import ACP_PREFIX, CLAUDE, CODEX, OPENCODE
from cloister.core.computer import WORK_DIR
from cloister.core.errors import UserError
from cloister.environment.api import PROGRAMS, Plan
from cloister.environment.detect import with_programs

_MODEL_URL = "http://model.cloister/v1"
_NAME, _MODEL = "cloister", "default"
_OUTPUT_TOKENS = 32_000
_COMMAND_CHARS = 2_000
_FROM_NPM = ("/bin/sh", "-c", 'PATH="$PATH:$0/bin" exec "$@"', PROGRAMS)
"""Starts what set-up installed. The repository's own Node comes first for the commands that the program runs."""


class Program(NamedTuple):
    """How to start a harness in the sandbox."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    wire: Literal["acp", "codex", "claude"] = "acp"
    """What it speaks."""
    session: str = ""
    """The id of its session, where its command names it."""

    def resuming(self, session: str) -> "Program":
        """The command that goes on with a session, where that is said by the command."""
        if self.wire != "claude":
            return self
        if session:
            return self._replace(argv=(*self.argv[:-2], "--resume", session), session=session)
        fresh = str(uuid4())
        return self._replace(argv=(*self.argv[:-1], fresh), session=fresh)


def program(name: str, window: int | None) -> Program:
    """The program of a harness, for a model with this context window. Raises `UserError` (`unknown_harness`)."""
    if name.startswith(ACP_PREFIX):
        argv = _words(name.removeprefix(ACP_PREFIX))
        return Program(argv[0], argv, {})
    if name == OPENCODE:
        argv = (*_FROM_NPM, name, "acp", "--cwd", WORK_DIR)
        return Program(name, argv, _opencode(window or WINDOW_TOKENS))
    if name == CLAUDE:
        return Program(name, (*_FROM_NPM, "claude-agent-acp"), _claude(window or WINDOW_TOKENS))
    if name == CODEX:
        return Program(name, (*_FROM_NPM, name, "app-server", *_codex(window or WINDOW_TOKENS)), {}, "codex")
    raise UserError("unknown_harness", f"There is no harness {name[:40]!r}.")


FINDS_CLAUDE = (*_FROM_NPM, "/bin/sh", "-c", "command -v claude-agent-acp || ! command -v claude")
"""Fails where Claude Code is installed without its adapter."""


def plain_claude(window: int | None) -> Program:
    """Claude Code by its own stream of JSON."""
    stream = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
    asking = ("--permission-prompt-tool", "stdio", "--permission-mode", "default", "--session-id", "")
    env = _claude(window or WINDOW_TOKENS)
    return Program(CLAUDE, (*_FROM_NPM, "claude", *stream, *asking), env, "claude")


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        words = ()
    if not words or len(command) > _COMMAND_CHARS or "\0" in command:
        raise UserError(
            "unknown_harness", "Write a harness of your own as acp:COMMAND, such as acp:'python3 agent.py'."
        )
    return words


def _opencode(window: int) -> dict[str, str]:
    """Its settings, in place of files: our model, a question before all but reads, and nothing fetched or shared."""
    limit = {"context": window, "output": min(_OUTPUT_TOKENS, max(1, window // 4))}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Cloister",
        "options": {"baseURL": _MODEL_URL, "apiKey": "none-needed"},
        "models": {_MODEL: {"name": _MODEL, "tool_call": True, "limit": limit}},
    }
    settings = {
        "model": f"{_NAME}/{_MODEL}",
        "small_model": f"{_NAME}/{_MODEL}",
        "provider": {_NAME: provider},
        "enabled_providers": [_NAME],
        "permission": {"*": "ask", "read": "allow"},
        "experimental": {"continue_loop_on_deny": True},
        "autoupdate": False,
        "share": "disabled",
    }
    return {
        "OPENCODE_CONFIG_CONTENT": msgspec.json.encode(settings).decode(),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
    }


def _claude(window: int) -> dict[str, str]:
    """Its settings: nothing but the model's calls leaves it, and it shortens its conversation in time."""
    return {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(window),
    }


def _codex(window: int) -> tuple[str, ...]:
    """Its settings: our model, whose tools are functions that it runs itself."""
    provider = f"model_providers.{_NAME}"
    settings = {
        "model": _MODEL,
        "model_provider": _NAME,
        f"{provider}.name": "Cloister",
        f"{provider}.base_url": _MODEL_URL,
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": "OPENAI_API_KEY",
        "web_search": "disabled",
        "features.multi_agent": False,
        "model_context_window": window,
    }
    return tuple(
        word
        for key, value in settings.items()
        for word in ("-c", f"{key}={msgspec.json.encode(value).decode()}")
    )


_PACKAGES = {
    CODEX: ("@openai/codex@0.166.0",),
    OPENCODE: ("opencode-ai@1.18.33",),
    CLAUDE: ("@agentclientprotocol/claude-agent-acp@0.99.1",),
}
"""The packages of npm that hold a harness, in the version that its settings are for."""


def installed(plan: Plan, harnesses: tuple[str, ...]) -> Plan:
    """The plan of an environment that also has these harnesses, as a layer that repositories share."""
    packages = tuple(package for name in dict.fromkeys(harnesses) for package in _PACKAGES.get(name, ()))
    return with_programs(plan, packages, "a harness of the run") if packages else plan
