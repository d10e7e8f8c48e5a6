"""Commands that run other commands: what is inside of them, or that it cannot be known. Pure."""

import posixpath
import re
from dataclasses import dataclass

from cloister.agent.shell.walk import Argv, steers
from cloister.policy.api import HOLE

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "rbash"})
_LATE = frozenset(
    {"eval", "source", ".", "alias", "trap", "enable", "bind", "complete", "compgen", "fc", "hash"}
)
"""Builtins that take shell text or change what names mean."""
_WRAPPERS: dict[str, tuple[tuple[str, ...], int]] = {
    "nohup": ((), 0),
    "setsid": ((), 0),
    "command": ((), 0),
    "builtin": ((), 0),
    "exec": (("-a",), 0),
    "doas": (("-u", "-C"), 0),
    "time": (("-f", "-o"), 0),
    "busybox": ((), 0),
    "toybox": ((), 0),
    "sudo": (("-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T", "-U", "-r", "-t"), 0),
    "timeout": (("-s", "-k", "--signal", "--kill-after"), 1),
    "nice": (("-n", "--adjustment"), 0),
    "ionice": (("-c", "-n", "-p"), 0),
    "chrt": ((), 1),
    "taskset": ((), 1),
    "flock": (("-w", "-E", "--timeout"), 1),
    "stdbuf": (("-i", "-o", "-e"), 0),
    "strace": (("-e", "-o", "-p", "-s", "-u", "-E", "-a", "-O", "-S", "-P", "-I"), 0),
    "ltrace": (("-e", "-o", "-p", "-s", "-u", "-a", "-S"), 0),
}
"""Programs that start the command after their options: which options take a value, and how many words follow."""
_OPAQUE = frozenset(
    {
        *("parallel", "watch", "script", "su", "runuser", "at", "batch", "crontab", "expect", "tclsh", "gdb"),
        *("unshare", "nsenter", "chroot", "setpriv", "capsh", "systemd-run", "start-stop-daemon", "ld.so"),
        *(
            "ssh",
            "socat",
            "ncat",
            "nc",
            "ed",
            "ex",
            "vi",
            "vim",
            "nvim",
            "emacs",
            "screen",
            "tmux",
            "dbus-launch",
        ),
    }
)
"""Programs that run commands in ways we do not follow."""
_INTERPRETERS = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|tclsh|R|Rscript|awk|gawk|mawk|nawk)[0-9.]*"
)
_AWK = re.compile(r"(?:g|m|n)?awk")
_CODE_OPTIONS = re.compile(r"-[A-Za-z]*[ceErRp]|--(?:eval|print|run|execute)(?:=.*)?|eval", re.DOTALL)
_HANDS = {
    "tar": re.compile(
        r"--(?:to-command|checkpoint-action|use-compress-program|info-script|rsh-command)\b.*|-[A-Za-z]*[IF].*"
    ),
    "rg": re.compile(r"--(?:pre|hostname-bin)\b.*"),
    "sort": re.compile(r"--compress-program\b.*"),
    "rsync": re.compile(r"-[A-Za-z]*e.*|--(?:rsh|rsync-path)\b.*"),
    "zip": re.compile(r"-TT.*|--unzip-command\b.*"),
    "man": re.compile(r"-[A-Za-z]*[PH].*|--(?:pager|html)\b.*"),
    "make": re.compile(r"SHELL=.*|--eval\b.*|-f.*|--file\b.*"),
    "less": re.compile(r"\+.*"),
    "pip": re.compile(r"--python\b.*"),
}
"""Arguments that make a program run something that they name."""
_SED_RUNS = re.compile(
    r"(?:^|[;{}\n])\s*(?:[0-9$,+~]+|/[^/]*/,?)*\s*!?\s*e(?:\s|;|$)"
    r"|s([^\w\s\\]).*?(?<!\\)\1.*?(?<!\\)\1[gpiImM0-9]*e",
    re.DOTALL,
)
_GIT_VALUE = frozenset({"-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source"})
_GIT_HANDS = re.compile(
    r"--exec.*|--upload-pack.*|--receive-pack.*|--open-files-in-pager.*|--extcmd.*|--ext-diff|--textconv"
    r"|--(?:tree|index|msg|env|commit|parent|tag-name)-filter|ext::.*|--config.*|--template.*|--run.*"
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
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=", re.DOTALL)
_NAME = re.compile(r"[\w./+@:,~%-]+|\[\[?")


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
    if program in _OPAQUE:
        return Inside(spellings, unclear=f"{program} runs other commands")
    if program in SHELLS:
        return _shell(spellings, program, rest)
    if found := _wrapped(program, rest):
        commands, why = found
        return Inside(spellings, commands=commands, unclear=why)
    return Inside(spellings, unclear=_hands(program, rest))


def _spellings(argv: Argv, program: str) -> tuple[str, ...]:
    texts = {" ".join(argv): None, " ".join((program, *argv[1:])): None}
    if program == "git" and (bare := _git_bare(argv[1:])) is not None:
        texts[" ".join(("git", *bare))] = None
    return tuple(texts)


def _git_bare(rest: Argv) -> Argv | None:
    """The arguments of git from its command on."""
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        at += 2 if rest[at] in _GIT_VALUE or rest[at] in ("-c", "--config-env") else 1
    return rest[at:] if at else None


def _shell(spellings: tuple[str, ...], program: str, rest: Argv) -> Inside:
    """A shell: the text after `-c`, or something that cannot be seen."""
    for at, word in enumerate(rest):
        if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", word):
            # The text is the first word after it that is no option.
            text = next((later for later in rest[at + 1 :] if not later.startswith(("-", "+"))), HOLE)
            if HOLE in text:
                break
            return Inside(spellings, scripts=(text,))
        if word == "--version":
            return Inside(spellings)
        if not word.startswith(("-", "+")):
            break
    return Inside(spellings, unclear=f"{program} runs text that is not in the command")


def _wrapped(program: str, rest: Argv) -> tuple[tuple[Argv, ...], str | None] | None:
    """The commands that a wrapper starts, and why they are not known; None when it is no wrapper."""
    match program:
        case "env":
            return _env(rest)
        case "xargs":
            return _xargs(rest)
        case "find":
            return _find(rest)
        case "sudo" if any(word in ("-i", "-s", "-e", "--login", "--shell", "--edit") for word in rest):
            return (), "sudo starts a shell or an editor"
        case _ if program in _WRAPPERS:
            with_value, operands = _WRAPPERS[program]
            return _after_options(rest, with_value, operands)
        case _:
            return None


def _after_options(
    rest: Argv, with_value: tuple[str, ...], operands: int = 0
) -> tuple[tuple[Argv, ...], str | None]:
    at = 0
    while at < len(rest):
        word = rest[at]
        if word == "--":
            at += 1
            break
        if assigned := _ASSIGNMENT.match(word):
            if steers(assigned[1]):
                return (), f"it sets {assigned[1]}"
        elif HOLE in word and (word.startswith(HOLE) or word.startswith("-")):
            return (), "an option is not written out"
        elif not word.startswith("-"):
            break
        at += 2 if word in with_value else 1
    inner = rest[at + operands :]
    return ((inner,) if inner else ()), None


def _env(rest: Argv) -> tuple[tuple[Argv, ...], str | None]:
    if any(word.startswith(("-S", "--split-string")) or re.match(r"-[a-zA-Z]*S", word) for word in rest):
        return (), "env takes a command apart itself"
    return _after_options(rest, ("-u", "--unset", "-C", "--chdir", "-a", "--argv0"))


def _xargs(rest: Argv) -> tuple[tuple[Argv, ...], str | None]:
    valued = ("-I", "-i", "-n", "-P", "-L", "-d", "-E", "-s", "-a", "--max-args", "--max-procs", "--replace")
    replaced = next((rest[at + 1] for at, w in enumerate(rest[:-1]) if w in ("-I", "--replace")), None)
    joined = next((w[2:] for w in rest if re.match(r"-I.", w)), None)
    commands, why = _after_options(rest, valued)
    if not commands:
        return (), why
    mark = replaced or joined
    inner = commands[0]
    if mark:
        inner = tuple(word.replace(mark, HOLE) for word in inner)
    return ((*inner, HOLE),), why


def _find(rest: Argv) -> tuple[tuple[Argv, ...], str | None] | None:
    commands: list[Argv] = []
    at = 0
    if any(HOLE in word and (word.startswith((HOLE, "-"))) for word in rest):
        return (), "an expression of find is not written out"
    while at < len(rest):
        if rest[at] in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((n for n in range(at + 1, len(rest)) if rest[n] in (";", "+")), len(rest))
            inner = tuple(word.replace("{}", HOLE) for word in rest[at + 1 : end])
            if inner:
                commands.append(inner)
            at = end
        at += 1
    return (tuple(commands), None) if commands else None


def _hands(program: str, rest: Argv) -> str | None:
    """Why `program` with these arguments may run what a rule cannot see."""
    if program == "git":
        return _git_hands(rest)
    if program in ("mapfile", "readarray") and any(word.startswith("-C") for word in rest):
        return f"{program} calls back"
    if _AWK.fullmatch(program):
        code = " ".join(rest)
        return f"{program} may run commands" if re.search(r"system|\||getline|@|-f|--file|\0", code) else None
    if _INTERPRETERS.fullmatch(program):
        options = _leading(rest)
        told = any(word in ("-V", "--version", "-v", "-h", "--help") for word in options)
        if (options == rest and not told) or any(_CODE_OPTIONS.fullmatch(word) for word in options):
            return f"{program} runs code of another language"
        return None
    if program == "sed":
        return "sed may run commands" if _sed_runs(rest) else None
    hands = _HANDS.get(program)
    if hands and any(hands.fullmatch(word) for word in rest):
        return f"an argument of {program} names a command"
    return None


def _sed_runs(rest: Argv) -> bool:
    """Whether a script of sed has its command or flag `e`, or cannot be seen."""
    scripts = [rest[at + 1] for at, word in enumerate(rest[:-1]) if word in ("-e", "--expression")]
    scripts += [word.partition("=")[2] for word in rest if word.startswith("--expression=")]
    if not scripts:
        scripts = [word for word in rest if not word.startswith("-")][:1]
    hidden = any(re.match(r"-[A-Za-z]*[ef].|-[A-Za-z]*f|--file", word) for word in rest)
    return hidden or any(HOLE in script or _SED_RUNS.search(script) for script in scripts)


def _leading(rest: Argv) -> Argv:
    """The words before the program's own operand; one that is not written out may be any option."""
    at = 0
    while at < len(rest):
        word = rest[at]
        if word == "-m":
            return rest[:at]
        if word == "-" or (not word.startswith(("-", HOLE)) and word != "eval"):
            return rest if word == "-" else rest[:at]
        at += 2 if word in ("-W", "-X", "-I") else 1
    return rest


def _git_hands(rest: Argv) -> str | None:
    bare = _git_bare(rest)
    before = rest[: len(rest) - len(bare)] if bare is not None else ()
    if any(word.startswith(("-c", "--config-env", "--exec-path=", "-p", "--paginate")) for word in before):
        return "git is given settings that may run commands"
    words = bare if bare is not None else rest
    if words[:1] == ("config",) or words[:2] in _GIT_RUNS or (words and words[0].startswith("filter-")):
        return f"git {words[0]} may run commands"
    short = _GIT_SHORT_HANDS.get(words[0]) if words else None
    if any(_GIT_HANDS.fullmatch(word) or (short and word.startswith(short)) for word in words):
        return "an argument of git names a command"
    return None
