"""One command: what it is called, and what it runs beside itself, or that this cannot be known. Pure."""

import posixpath
import re
from dataclasses import dataclass

from cloister.agent.shell.hands import git_bare, hands
from cloister.agent.shell.walk import Argv
from cloister.agent.shell.wrappers import wrapped
from cloister.policy.api import HOLE


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "rbash"})
_LATE = _names("eval source . alias unalias trap enable bind complete compgen fc hash shopt")
"""Builtins that take shell text or change what names mean."""
_OPAQUE = _names(
    "parallel watch script su runuser at batch crontab expect tclsh gdb ltrace unshare nsenter chroot setpriv capsh "
    "systemd-run start-stop-daemon ssh socat ncat nc ed ex vi vim nvim emacs screen tmux dbus-launch pkexec gosu "
    "tini dumb-init bwrap proot fakeroot firejail xvfb-run docker podman entr npx bunx pipx setarch linux32 linux64 "
    "i386 x86_64 prlimit numactl perf valgrind run-parts unbuffer sg newgrp rlwrap direnv sem"
)
"""Programs that run commands in ways we do not follow."""
_LOADER = re.compile(r"ld-linux.*|ld-musl.*|ld(?:64)?\.so.*")
_NAME = re.compile(r"[\w./+@:,~%-]+|\[\[?")
_SHELL_WORDS = frozenset({"noprofile", "norc", "posix", "restricted", "verbose", "login", "noediting"})
"""Long options of shells that change nothing for us; they may be written with one dash."""
_SHELL_LETTERS = re.compile(r"-[abefhiklmnprstuvxBCEHPT]*c[abefhiklmnprstuvxBCEHPT]*")
_SHELL_FLAGS = re.compile(r"[-+][abefhiklmnprtuvxBCEHPT]+")
_SHELL_FILES = frozenset({"rcfile", "init-file"})


@dataclass(frozen=True, slots=True)
class Inside:
    """What a command runs beside itself."""

    spellings: tuple[str, ...]
    commands: tuple[Argv, ...] = ()
    scripts: tuple[str, ...] = ()
    """Shell text to parse."""
    unclear: str | None = None


def unwrap(argv: Argv) -> Inside:
    """What `argv` runs, one layer deep."""
    name = argv[0]
    if HOLE in name or not _NAME.fullmatch(name) or name.startswith("-"):
        return Inside((" ".join(argv),), unclear="the name of a command is not written out")
    program = posixpath.basename(name)
    spellings = _spellings(argv, program)
    rest = argv[1:]
    if program in _LATE:
        return Inside(spellings, unclear=f"it uses {program}")
    if program in _OPAQUE or _LOADER.fullmatch(program):
        return Inside(spellings, unclear=f"{program} runs other commands")
    if program in _SHELLS:
        return _shell(spellings, program, rest)
    if (found := wrapped(program, rest)) is not None:
        commands, why = found
        return Inside(spellings, commands=commands, unclear=why)
    if program.startswith("git-"):
        program, rest = "git", (program.removeprefix("git-"), *rest)
    return Inside(spellings, unclear=hands(program, rest))


def _spellings(argv: Argv, program: str) -> tuple[str, ...]:
    texts = {" ".join(argv): None, " ".join((program, *argv[1:])): None}
    if program == "git" and (bare := git_bare(argv[1:])) is not None:
        texts[" ".join(("git", *bare))] = None
    if program.startswith("git-"):
        texts[" ".join(("git", program.removeprefix("git-"), *argv[1:]))] = None
    return tuple(texts)


def _shell(spellings: tuple[str, ...], program: str, rest: Argv) -> Inside:
    """A shell: the text after `-c`, or something that cannot be seen."""
    for at, word in enumerate(rest):
        bare = word.lstrip("-")
        if word == "--version":
            return Inside(spellings)
        if word.startswith("-") and bare in _SHELL_WORDS:
            continue
        if bare in _SHELL_FILES:
            break
        if _SHELL_LETTERS.fullmatch(word):
            text = rest[at + 1] if at + 1 < len(rest) else HOLE
            if HOLE in text or text.startswith(("-", "+")):
                break
            return Inside(spellings, scripts=(text,))
        if not _SHELL_FLAGS.fullmatch(word):
            break
    return Inside(spellings, unclear=f"{program} runs text that is not in the command")
