"""Programs that do not look like it and run what an argument says. Pure."""

import re

from cloister.agent.shell.walk import Argv
from cloister.policy.api import HOLE

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
"""Arguments that make a program run something that they name."""
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
    """Why `program` with these arguments may run what a rule cannot see; None when it does not."""
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
    """The arguments of git from its command on; None when there is nothing before it."""
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        at += 2 if rest[at] in _GIT_VALUE else 1
    return rest[at:] if at else None


def _git(rest: Argv) -> str | None:
    bare = git_bare(rest)
    before = rest[: len(rest) - len(bare)] if bare is not None else ()
    if any(word.startswith(("-c", "--config-env", "--exec-path=", "-p", "--paginate")) for word in before):
        return "git is given settings that may run commands"
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
    """Whether a script of sed has its command or flag `e`, or cannot be seen."""
    scripts = [
        rest[at + 1] for at, word in enumerate(rest[:-1]) if re.fullmatch(r"-[nErszu]*e|--expression", word)
    ]
    scripts += [word.partition("=")[2] for word in rest if word.startswith("--expression=")]
    if not scripts:
        scripts = [word for word in rest if not word.startswith("-")][:1]
    hidden = any(re.match(r"-[A-Za-z]*f|-[A-Za-z]*e.|--fi", word) for word in rest)
    return hidden or any(HOLE in script or _SED_RUNS.search(script) for script in scripts)


def _takes_code(rest: Argv) -> bool:
    """Whether an interpreter is given its program in the line or on its input, not in a file."""
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
