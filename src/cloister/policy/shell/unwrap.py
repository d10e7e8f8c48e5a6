"""Unwrap one command: its name, the commands it starts, or why they cannot be known. Pure."""

import posixpath
import re
from dataclasses import dataclass, field

from cloister.policy.api import HOLE
from cloister.policy.shell.programs import (
    Argv,
    git_bare,
    has_options_that_run,
    runs_argument,
    steers,
    word_set,
)

# Wrappers: programs that start another command. Only known options are skipped, because an unknown one may take the
# next word as its value.

Wrapped = tuple[tuple[Argv, ...], str | None]
"""The started commands, and why they are unknown."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Options:
    """The words allowed between a wrapper and its command."""

    values: frozenset[str] = frozenset()
    """Options with a value."""
    flags: frozenset[str] = frozenset()
    operands: int = 0
    """The number of operands before the command."""
    assigns: bool = False
    """True if `NAME=value` is allowed."""


def _options(values: str = "", flags: str = "", operands: int = 0, *, assigns: bool = False) -> _Options:
    return _Options(frozenset(values.split()), frozenset(flags.split()), operands, assigns)


_ENV = _options("-u -C --unset --chdir", "-i - -0 --null --ignore-environment -v --debug", assigns=True)
_XARGS = _options(
    "-I -n -P -L -d -E -s -a --max-args --max-procs --max-lines --delimiter --arg-file --max-chars --replace",
    "-0 -r -t -p -x -o --null --no-run-if-empty --verbose --interactive --exit --open-tty",
)
_WRAPPERS = {
    "nohup": _options(),
    "setsid": _options(flags="-c -f -w --ctty --fork --wait"),
    "command": _options(flags="-p"),
    "builtin": _options(),
    "exec": _options("-a", "-c -l"),
    "doas": _options("-u -C", "-n"),
    "time": _options("-f -o --format --output", "-p -v -a --append --portability --verbose"),
    "busybox": _options(),
    "toybox": _options(),
    "sudo": _options(
        "-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt --close-from --chdir --chroot"
        " --command-timeout --other-user --role --type",
        "-A -b -B -E -H -k -n -P -S --askpass --background --bell --preserve-env --set-home --non-interactive"
        " --preserve-groups --stdin --reset-timestamp",
        assigns=True,
    ),
    "timeout": _options("-s -k --signal --kill-after", "-v --verbose --foreground --preserve-status", 1),
    "nice": _options("-n --adjustment", " ".join(f"-{n}" for n in range(20))),
    "ionice": _options("-c -n --class --classdata", "-t --ignore"),
    "chrt": _options(flags="-f -r -o -b -i -R", operands=1),
    "taskset": _options(flags="-c -a", operands=1),
    "flock": _options(
        "-w -E --timeout --wait --conflict-exit-code",
        "-n -x -s -e -o -u -F --nonblock --exclusive --shared --close --unlock --no-fork --verbose",
        1,
    ),
    "choom": _options("-n -p --adjust --pid"),
    "ssh-agent": _options("-a -t -E -P -O", "-c -s -D -d -k"),
    "eatmydata": _options(),
    "stdbuf": _options("-i -o -e --input --output --error"),
    "strace": _options("-e -o -s -a -O -S -P -I -b", "-f -c -C -q -t -T -v -x -y -r -i -d -k -n -z -Z -w"),
}
_RUNNERS = word_set(
    "uv poetry pdm hatch pipenv rye conda mamba pixi bundle pyenv rbenv asdf mise opam stack cabal rustup nvm"
)
"""`NAME run COMMAND`, `NAME exec COMMAND`."""


@dataclass(slots=True)
class _Reading:
    """Reads the options of a wrapper."""

    rest: Argv
    known: _Options
    at: int = 0
    unclear: str | None = None
    replaced: list[str] = field(default_factory=list[str])
    """Values of `-I`."""

    def read(self) -> None:
        while self.at < len(self.rest) and self.unclear is None:
            word = self.rest[self.at]
            if word == "--":
                self.at += 1
                break
            if self.known.assigns and (assigned := _ASSIGNMENT.match(word)):
                self.unclear = (
                    f"it sets {assigned[1]}" if steers(assigned[1], word[assigned.end() :]) else None
                )
                self.at += 1
            elif HOLE in word and word.startswith((HOLE, "-")):
                self.unclear = "an option is not written out"
            elif not word.startswith("-"):
                break
            else:
                self._option(word)

    def _option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if word in self.known.values:
            self._value(word, self.rest[self.at + 1] if self.at + 1 < len(self.rest) else "")
            self.at += 2
        elif word in self.known.flags or (equals and name.startswith("--") and self._knows(name)):
            self._value(name, value)
            self.at += 1
        elif word.startswith("--") or len(word) < 2:
            self.unclear = f"the option {word[:40]} is not known"
        else:
            self._letters(word)

    def _knows(self, name: str) -> bool:
        return name in self.known.values or name in self.known.flags

    def _letters(self, word: str) -> None:
        """Several short options in one word, the last possibly with its value."""
        for number, letter in enumerate(word[1:], start=1):
            option = f"-{letter}"
            if option in self.known.values:
                attached = word[number + 1 :]
                following = self.rest[self.at + 1] if self.at + 1 < len(self.rest) else ""
                self._value(option, attached or following)
                self.at += 1 if attached else 2
                return
            if option not in self.known.flags:
                self.unclear = f"the option {option} is not known"
                return
        self.at += 1

    def _value(self, name: str, value: str) -> None:
        if name in ("-I", "--replace"):
            self.replaced.append(value or "{}")
        if value.startswith(("|", "!")) or len(self.replaced) > 1:
            self.unclear = f"the value of {name} is not understood"


def wrapped(program: str, rest: Argv) -> Wrapped | None:
    """The commands that `program` starts; None if it is not a wrapper."""
    match program:
        case "env":
            return _after(rest, _ENV)
        case "xargs":
            return _xargs(rest)
        case "find":
            return _find(rest)
        case "command" if rest[:1] in (("-v",), ("-V",)):
            return (), None
        case _ if program in _WRAPPERS:
            return _after(rest, _WRAPPERS[program])
        case "cmake" if "-E" in rest:
            return _cmake(rest[rest.index("-E") + 1 :])
        case _ if program in _RUNNERS and not {"run", "exec", "x"}.isdisjoint(rest):
            known = _options(operands=1 if program == "rustup" else 0)
            return _after(rest[1:], known) if rest[0] in ("run", "exec") else ((), "an option is not known")
        case _:
            return None


def _after(rest: Argv, known: _Options) -> Wrapped:
    reading = _Reading(rest, known)
    reading.read()
    if reading.unclear is not None:
        return (), reading.unclear
    inner = rest[reading.at + known.operands :]
    return ((inner,) if inner else ()), None


def _cmake(rest: Argv) -> Wrapped | None:
    """`cmake -E`: tools, some of which start a command."""
    match rest[:1]:
        case ("env",):
            return _after(rest[1:], _options("--unset --modify", assigns=True))
        case ("time" | "chdir",):
            inner = rest[1 + (rest[0] == "chdir") :]
            return ((inner,) if inner else ()), None
        case (name,) if name.startswith("__") or HOLE in name:
            return (), "cmake may run a command"
        case _:
            return None


def _xargs(rest: Argv) -> Wrapped:
    reading = _Reading(rest, _XARGS)
    reading.read()
    inner = rest[reading.at :]
    if reading.unclear is not None or not inner:
        return (), reading.unclear
    for mark in reading.replaced:
        inner = tuple(word.replace(mark, HOLE) for word in inner)
    return ((*inner, HOLE),), None


def _find(rest: Argv) -> Wrapped | None:
    if any(HOLE in word and word.startswith((HOLE, "-")) for word in rest):
        return (), "an expression of find is not written out"
    commands: list[Argv] = []
    at = 0
    while at < len(rest):
        if rest[at] in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((n for n in range(at + 1, len(rest)) if rest[n] in (";", "+")), len(rest))
            inner = tuple(word.replace("{}", HOLE) for word in rest[at + 1 : end])
            if inner:
                commands.append(inner)
            at = end
        at += 1
    return (tuple(commands), None) if commands else None


_SHELLS = word_set("sh bash dash ash zsh ksh mksh fish rbash")
_LATE = word_set("eval source . alias unalias trap enable bind complete compgen compopt fc hash shopt")
"""Builtins that run shell text or change the meaning of names."""
_SETTERS = word_set("export declare typeset local readonly read printf mapfile readarray getopts")
"""Builtins that set variables."""
_OPAQUE = word_set(
    "parallel watch script su runuser at batch crontab expect tclsh gdb lldb ltrace unshare nsenter chroot setpriv capsh "
    "start-stop-daemon ssh mosh socat ncat nc ed ex vi vim nvim view rview rvim vimdiff emacs joe screen tmux "
    "dtach zellij dbus-launch dbus-run-session pkexec gosu su-exec run0 tini dumb-init bwrap proot fakeroot fakechroot firejail "
    "xvfb-run docker podman nerdctl lxc apptainer flatpak entr npx bunx pipx uvx setarch linux32 linux64 i386 x86_64 "
    "prlimit numactl perf valgrind run-parts unbuffer sg newgrp rlwrap direnv sem hyperfine multitime chronic ifne zrun "
    "faketime torify torsocks proxychains proxychains4 tsocks daemonize setlock softlimit chpst envdir setuidgid runcon "
    "aa-exec cpulimit cgexec schroot logsave msgexec msgfilter dc m4 csh tcsh elvish xonsh nu pwsh rc yash posh sash swipl "
    "gnuplot exiftool latexmk ftp lftp telnet ncftp smbclient mail mailx mutt websocketd openvpn xdotool ansible "
    "cross-env dotenv concurrently nodemon foreman honcho nix nix-shell guix busctl bpftrace pexec openvt"
)
"""Programs that run commands in ways that are not followed here."""
_LOADER = re.compile(r"ld-linux.*|ld-musl.*|ld(?:64)?\.so.*|systemd-.*")
_NAME = re.compile(r"[\w./+@:,~%-]+|\[\[?")
_SHELL_WORDS = frozenset({"noprofile", "norc", "posix", "restricted", "verbose", "login", "noediting"})
"""Long options of shells that are irrelevant here. One dash is also accepted."""
_SHELL_LETTERS = re.compile(r"-[abefhilmnprstuvxBCEHPT]*c[abefhilmnprstuvxBCEHPT]*")
_SHELL_FLAGS = re.compile(r"[-+][abefhilmnprtuvxBCEHPT]+")
_SHELL_FILES = frozenset({"rcfile", "init-file"})


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The commands and scripts inside one command."""

    spellings: tuple[str, ...]
    commands: tuple[Argv, ...] = ()
    scripts: tuple[str, ...] = ()
    """Shell text to parse."""
    unclear: str | None = None


def unwrap(argv: Argv) -> Unwrapped:
    """Unwrap one layer of `argv`."""
    name = argv[0]
    if HOLE in name or not _NAME.fullmatch(name) or name.startswith("-"):
        return Unwrapped((" ".join(argv),), unclear="the name of a command is not written out")
    program = posixpath.basename(name)
    spellings = _spellings(argv, program)
    rest = argv[1:]
    if program in _LATE:
        return Unwrapped(spellings, unclear=f"it uses {program}")
    if program in _OPAQUE or _LOADER.fullmatch(program):
        return Unwrapped(spellings, unclear=f"{program} runs other commands")
    if program in _SHELLS:
        return _shell(spellings, program, rest)
    if (found := wrapped(program, rest)) is not None:
        commands, why = found
        return Unwrapped(spellings, commands=commands, unclear=why)
    if program in _SETTERS and (why := _sets(program, rest)) is not None:
        return Unwrapped(spellings, unclear=why)
    if program.startswith("git-"):
        program, rest = "git", (program.removeprefix("git-"), *rest)
    return Unwrapped(spellings, unclear=runs_argument(program, rest))


def takes_options(argv: Argv) -> Argv | None:
    """The program, for git with its subcommand, if an unknown argument could be an option that runs a command."""
    program = posixpath.basename(argv[0])
    if not has_options_that_run(program) or not any(word.startswith(HOLE) for word in argv[1:]):
        return None
    return (program, *(git_bare(argv[1:]) or argv[1:])[:1]) if program == "git" else (program,)


def _sets(program: str, rest: Argv) -> str | None:
    """Why a variable that `program` sets matters; None if none does."""
    before = ""
    for word in rest:
        name, _, value = word.partition("=")
        if word.startswith("-"):
            if program in ("declare", "typeset", "local") and "n" in word:
                return "it gives a variable another name"
            name = word.lstrip("-abcdefghijklmnopqrstuvwxyz")
        elif program == "printf" and before != "-v":
            name = ""
        elif (
            word.startswith(HOLE)
            and before not in ("-p", "-d", "-n", "-t", "-u", "-i", "-rp")
            and program != "getopts"
        ):
            return "it sets a variable whose name is not written out"
        name = name.rstrip("+").partition("[")[0]
        if steers(name, value):
            return f"it sets {name}"
        before = word
    return None


def _spellings(argv: Argv, program: str) -> tuple[str, ...]:
    texts = {" ".join(argv): None, " ".join((program, *argv[1:])): None}
    if program == "git" and (bare := git_bare(argv[1:])) is not None:
        texts[" ".join(("git", *bare))] = None
    if program.startswith("git-"):
        texts[" ".join(("git", program.removeprefix("git-"), *argv[1:]))] = None
    return tuple(texts)


def _shell(spellings: tuple[str, ...], program: str, rest: Argv) -> Unwrapped:
    """A shell: the text after `-c`, or a script that is not visible."""
    for at, word in enumerate(rest):
        bare = word.lstrip("-")
        if word == "--version":
            return Unwrapped(spellings)
        if word.startswith("-") and bare in _SHELL_WORDS:
            continue
        if bare in _SHELL_FILES:
            break
        if _SHELL_LETTERS.fullmatch(word):
            text = rest[at + 1] if at + 1 < len(rest) else HOLE
            if HOLE in text or text.startswith(("-", "+")):
                break
            return Unwrapped(spellings, scripts=(text,))
        if not _SHELL_FLAGS.fullmatch(word):
            break
    return Unwrapped(spellings, unclear=f"{program} runs text that is not in the command")
