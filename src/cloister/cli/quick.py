"""Answers that need no command: the help, the version, and completion of the names of commands and runs.

The words are here and not in the commands, and nothing slow is imported: Typer alone would take most of the time.
"""

import os
from collections.abc import Mapping, Sequence

GROUPS: dict[str, dict[str, str]] = {
    "run": {
        "run": "start a run and watch it",
        "fleet": "one prompt, many repos",
        "say": "send it a message",
        "answer": "allow or deny a question",
        "interrupt": "stop its current step",
        "pause": "wait before its next step",
        "stop": "stop it; saved work stays",
        "fork": "continue from a save point",
        "rewind": "go back to a save point",
        "rebase": "replay it on a moved base",
    },
    "change": {
        "diff": "the change as a diff",
        "apply": "put it into a repository",
        "pr": "propose it as pull request",
        "receipt": "what the run touched",
        "rm": "delete files of old runs",
    },
    "watch": {
        "open": "show it in a browser",
        "ps": "list runs",
        "watch": "show a run live",
        "log": "every event of a run",
        "why": "the turn behind a line",
        "verify": "run a proof again",
        "tree": "its attempts, save points",
        "compare": "two runs side by side",
        "budget": "limits and spending",
    },
    "operate": {
        "sandbox": "make and use sandboxes",
        "snapshot": "kept files of sandboxes",
        "template": "what sandboxes start from",
        "env": "a repository's environment",
        "init": "write .cloister/config.toml",
        "doctor": "can a run start here?",
        "serve": "the server of this machine",
        "model": "local models; switch a run",
        "forge": "hosts of pull requests",
        "policy": "test and explain rules",
        "token": "tokens of the server",
        "audit": "the signed record",
        "trigger": "what starts runs",
        "webhook": "notices about runs",
    },
    "more": {
        "resume": "let a paused run go on",
        "project": "who sees which runs",
        "share": "a link to one run",
        "skills": "what models can open",
        "tools": "tools of your own",
        "mcp": "runs for editors, agents",
        "compat": "clients of other services",
        "cluster": "several machines",
        "gc": "remove what is old",
    },
}
"""Group → command → what it does, in at most 27 characters."""
_HEADS = {"run": 'RUN, as in: cloister run "fix the test"'}
_LEFT = ("run", "watch")
_REST = "more"
"""The commands that are only named."""
_NAME, _COLUMN = 12, 40


def screen() -> str:
    """The help, which fits a terminal of 80 by 24."""
    sides: list[list[str]] = [[], []]
    for group, commands in GROUPS.items():
        if group == _REST:
            continue
        lines = sides[group not in _LEFT]
        lines += [
            _HEADS.get(group, group.upper()),
            *(f"  {name:<{_NAME - 2}}{words}" for name, words in commands.items()),
        ]
    rows = max(map(len, sides))
    left, right = (side + [""] * (rows - len(side)) for side in sides)
    return "".join(
        [
            *(f"{a:<{_COLUMN}}{b}".rstrip() + "\n" for a, b in zip(left, right, strict=True)),
            f"MORE  {'  '.join(GROUPS[_REST])}  (CMD -h)\n",
            "Also: --data-dir DIR, --server URL, --version, --install-completion\n",
        ]
    )


_OF_RUNS = {*GROUPS["run"], *GROUPS["change"], *GROUPS["watch"], "resume"} - {"run", "fleet", "ps"}
"""Commands whose first argument is a run."""
_SHELLS = ("complete_bash", "complete_zsh", "complete_fish")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def answer(argv: Sequence[str]) -> str | None:
    """What the command prints for these arguments; None if Typer must look at them."""
    # The shell's questions, not settings: those are read in app/settings.py.
    asked = os.environ  # noqa: TID251
    if shell := asked.get("_CLOISTER_COMPLETE"):
        return _completed(shell, asked) if shell in _SHELLS else None
    return screen() if list(argv) in (["--help"], ["-h"]) else None


def _completed(shell: str, asked: Mapping[str, str]) -> str | None:
    """The names that complete the words, in the form that Typer's script for the shell expects.

    Only for a command, or for a command and a run, without options.
    """
    if shell == "complete_bash":
        last_at = int(asked.get("COMP_CWORD", "0"))
        words = asked.get("COMP_WORDS", "").split("\n")[: last_at + 1]
        whole = len(words) == last_at + 1
    else:
        words, whole = asked.get("_TYPER_COMPLETE_ARGS", "").split(" "), True
    last = words[-1]
    if not whole or not all(_PLAIN.issuperset(word) and not word.startswith("-") for word in words[1:]):
        return None
    match words[1:-1]:
        case []:
            names = {name: words for commands in GROUPS.values() for name, words in commands.items()}
        case [command] if command in _OF_RUNS and not asked.get("CLOISTER_SERVER"):
            names = dict.fromkeys(_runs(asked), "")
        case _:
            return None
    found = {name: words for name, words in names.items() if name.startswith(last)}
    if shell == "complete_bash":
        return "".join(f"{name}\n" for name in found)
    if shell == "complete_fish":
        if asked.get("_TYPER_COMPLETE_FISH_ACTION") != "get-args":
            return "" if found else None  # it asks whether there are any, and reads the exit code
        return "".join(f"{name}\t{words}\n" for name, words in found.items())
    quoted = "\n".join(f'"{name}":"{words.replace(chr(39), chr(39) * 2)}"' for name, words in found.items())
    return f"_arguments '*: :(({quoted}))'" if found else "_files"


def _runs(asked: Mapping[str, str]) -> list[str]:
    from cloister.app import default_data_dir
    from cloister.log.sqlite import newest

    return ["last", *newest(default_data_dir(asked) / "cloister.db", 50)]
