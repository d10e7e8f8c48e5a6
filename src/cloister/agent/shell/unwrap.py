"""Unwrap one command: its name, the commands it starts, or why they cannot be known. Pure."""

import posixpath
import re
from dataclasses import dataclass, field

from cloister.agent.shell.syntax import Argv, steers, word_set
from cloister.policy.api import HOLE

# Programs that run a command named in an argument.

_INTERPRETERS = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|R|Rscript|guile|racket|sbcl|ghc|osascript)[0-9.]*"
)
_CODE_OPTIONS = re.compile(r"-[A-Za-z]*[ceErRp].*|--(?:eval|print|run|execute|init-file).*|eval", re.DOTALL)
_CODE_MODULES = frozenset({"timeit", "code", "pdb", "IPython", "runpy", "trace", "doctest", "bdb"})
_AWK = re.compile(r"(?:g|m|n)?awk")
_AWK_RUNS = re.compile(r"system|\||getline|@|\0|(?:^| )-[flEi]|--(?:file|load|exec|include)")
_SED_RUNS = re.compile(
    r"(?:^|[;{}\n!,/0-9$~+\s])e(?:\s|;|\}|$)"
    r"|(?:^|[;{}\n!,/0-9$~+])\s*s([^\\\n]).*?\1.*?\1[gpiImMw0-9]*e",
    re.DOTALL,
)
_HANDS = {
    "tar": re.compile(
        r"--(?:to-command|checkpoint-action|use-compress-program|info-script|rsh-command|new-volume-script)\b.*"
        r"|-?[A-Za-z]*[IF].*"
    ),
    "rg": re.compile(r"--(?:pre|hostname-bin)\b.*"),
    "sort": re.compile(r"--compress-prog.*"),
    "rsync": re.compile(r"-[A-Za-z]*e.*|--(?:rsh|rsync-path)\b.*"),
    "zip": re.compile(r"-TT.*|--unzip-command\b.*"),
    "man": re.compile(r"-[A-Za-z]*[PH].*|--(?:pager|html)\b.*"),
    "make": re.compile(r"[A-Z_]+=.*|--eval\b.*|-[A-Za-z]*[fE].*|--(?:make)?file\b.*"),
    "less": re.compile(r"\+.*"),
    "split": re.compile(r"--filter\b.*"),
    "pip": re.compile(r"--python\b.*"),
    "npm": re.compile(r"exec|x|--script-shell\b.*|--node-options\b.*"),
}
"""Arguments that make a program run the command they name."""
_GIT_VALUE = frozenset(
    {"-C", "-c", "--config-env", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source"}
)
_GIT_HANDS = re.compile(
    r"--exec.*|--upload-pack.*|--receive-pack.*|--open-files-in-pager.*|--extcmd.*|--ext-diff|--textconv"
    r"|--(?:tree|index|msg|env|commit|parent|tag-name)-filter|ext::.*|--config.*|--template.*|--run.*"
    r"|--gpg-sign.*|--editor.*|--sequence-editor.*|--smtp-server.*|--sendmail-cmd.*|--to-cmd.*|--cc-cmd.*"
)
_GIT_SHORT_HANDS = {
    "rebase": "-x",
    "difftool": "-x",
    "grep": "-O",
    "clone": "-c",
    "fetch": "-u",
    "ls-remote": "-u",
}
_GIT_RUNS = frozenset({("bisect", "run"), ("submodule", "foreach")})


def hands(program: str, rest: Argv) -> str | None:
    """Why `program` may run a command that a rule cannot see; None if it does not."""
    if program == "git":
        return _git(rest)
    if program in ("mapfile", "readarray") and any(word.startswith("-") and "C" in word for word in rest):
        return f"{program} calls back"
    if _AWK.fullmatch(program):
        return f"{program} may run commands" if _AWK_RUNS.search(" ".join(rest)) else None
    if program == "sed":
        return "sed may run commands" if _sed_runs(rest) else None
    if _INTERPRETERS.fullmatch(program):
        return f"{program} runs code of another language" if _takes_code(rest) else None
    found = _HANDS.get(program)
    if found and any(found.fullmatch(word) for word in rest):
        return f"an argument of {program} names a command"
    return None


def git_bare(rest: Argv) -> Argv | None:
    """The arguments of git from its subcommand on; None without global options."""
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        at += 2 if rest[at] in _GIT_VALUE else 1
    return rest[at:] if at else None


def _git(rest: Argv) -> str | None:
    bare = git_bare(rest)
    before = rest[: len(rest) - len(bare)] if bare is not None else ()
    if any(word.startswith(("-c", "--config-env", "--exec-path=", "-p", "--paginate")) for word in before):
        return "git gets settings that may run commands"
    words = bare if bare is not None else rest
    if not words:
        return None
    if words[0] == "config" or words[:2] in _GIT_RUNS or words[0].startswith("filter-"):
        return f"git {words[0]} may run commands"
    short = _GIT_SHORT_HANDS.get(words[0])
    if any(_GIT_HANDS.fullmatch(word) or (short and word.startswith(short)) for word in words):
        return "an argument of git names a command"
    return None


def _sed_runs(rest: Argv) -> bool:
    """True if a script of sed uses the command or flag `e`, or is not visible."""
    scripts = [
        rest[at + 1] for at, word in enumerate(rest[:-1]) if re.fullmatch(r"-[nErszu]*e|--expression", word)
    ]
    scripts += [word.partition("=")[2] for word in rest if word.startswith("--expression=")]
    if not scripts:
        scripts = [word for word in rest if not word.startswith("-")][:1]
    hidden = any(re.match(r"-[A-Za-z]*f|-[A-Za-z]*e.|--fi", word) for word in rest)
    return hidden or any(HOLE in script or _SED_RUNS.search(script) for script in scripts)


def _takes_code(rest: Argv) -> bool:
    """True if an interpreter gets its program in the line or on standard input, not from a file."""
    at = 0
    told = False
    while at < len(rest):
        word = rest[at]
        if word in ("-m", "--module"):
            return rest[at + 1 : at + 2] == () or HOLE in rest[at + 1] or rest[at + 1] in _CODE_MODULES
        told = told or word in ("-V", "--version", "-v", "-h", "--help")
        if word == "-" or HOLE in word or _CODE_OPTIONS.fullmatch(word):
            return True
        if not word.startswith("-"):
            return False
        at += 2 if word in ("-W", "-X", "-I") else 1
    return not told


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
    "stdbuf": _options("-i -o -e --input --output --error"),
    "strace": _options("-e -o -s -a -O -S -P -I -b", "-f -c -C -q -t -T -v -x -y -r -i -d -k -n -z -Z -w"),
}
_RUNNERS = frozenset({"uv", "poetry", "pdm", "hatch", "pipenv", "rye", "conda", "mamba", "pixi"})
"""`NAME run COMMAND`."""


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
                self.unclear = f"it sets {assigned[1]}" if steers(assigned[1]) else None
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
        case _ if program in _RUNNERS and "run" in rest:
            return _after(rest[1:], _options()) if rest[0] == "run" else ((), "an option is not known")
        case _:
            return None


def _after(rest: Argv, known: _Options) -> Wrapped:
    reading = _Reading(rest, known)
    reading.read()
    if reading.unclear is not None:
        return (), reading.unclear
    inner = rest[reading.at + known.operands :]
    return ((inner,) if inner else ()), None


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


_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "rbash"})
_LATE = word_set("eval source . alias unalias trap enable bind complete compgen fc hash shopt")
"""Builtins that run shell text or change the meaning of names."""
_OPAQUE = word_set(
    "parallel watch script su runuser at batch crontab expect tclsh gdb ltrace unshare nsenter chroot setpriv capsh "
    "systemd-run start-stop-daemon ssh socat ncat nc ed ex vi vim nvim emacs screen tmux dbus-launch pkexec gosu "
    "tini dumb-init bwrap proot fakeroot firejail xvfb-run docker podman entr npx bunx pipx setarch linux32 linux64 "
    "i386 x86_64 prlimit numactl perf valgrind run-parts unbuffer sg newgrp rlwrap direnv sem"
)
"""Programs that run commands in ways that are not followed here."""
_LOADER = re.compile(r"ld-linux.*|ld-musl.*|ld(?:64)?\.so.*")
_NAME = re.compile(r"[\w./+@:,~%-]+|\[\[?")
_SHELL_WORDS = frozenset({"noprofile", "norc", "posix", "restricted", "verbose", "login", "noediting"})
"""Long options of shells that are irrelevant here. One dash is also accepted."""
_SHELL_LETTERS = re.compile(r"-[abefhiklmnprstuvxBCEHPT]*c[abefhiklmnprstuvxBCEHPT]*")
_SHELL_FLAGS = re.compile(r"[-+][abefhiklmnprtuvxBCEHPT]+")
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
    if program.startswith("git-"):
        program, rest = "git", (program.removeprefix("git-"), *rest)
    return Unwrapped(spellings, unclear=hands(program, rest))


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
