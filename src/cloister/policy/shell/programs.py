"""Programs that run what an argument names: a table of their options, and the ways of git, sed and interpreters. Pure.

Each check takes time linear in the arguments. In doubt an argument counts as one that runs something.
"""

import posixpath
import re
from dataclasses import dataclass, field

from cloister.policy.api import HOLE

Argv = tuple[str, ...]


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Variables.

_STEERING = re.compile(
    r"BASH_.*|ENV|PATH|IFS|PROMPT_COMMAND|PS[0-4]|SHELLOPTS|BASHOPTS|ZDOTDIR|EDITOR|VISUAL|FCEDIT|PAGER|MANPAGER|MANOPT"
    r"|BROWSER|LESS|LESSOPEN|LESSCLOSE|SHELL|MAKE|MAKEFLAGS|GNUMAKEFLAGS|MFLAGS|MAKEFILES|TAR_OPTIONS|TAPE|RSH|ZIPOPT|ZIP"
    r"|NODE_OPTIONS|PERL5.*|RUBYOPT|PHPRC|PHP_INI_SCAN_DIR|LUA_INIT.*|R_PROFILE.*|PYTHON(?:STARTUP|HOME|EXECUTABLE)"
    r"|RUSTC|RUSTDOC|VIMINIT|EXINIT|GCC_EXEC_PREFIX|COMPILER_PATH|CCACHE_PREFIX.*|DOTNET_STARTUP_HOOKS|(?:LD|GIT|DYLD)_.*"
    r"|(?i:NPM_CONFIG_(?:SCRIPT_SHELL|NODE_OPTIONS|SHELL|EDITOR|GIT|VIEWER|BROWSER|USERCONFIG|GLOBALCONFIG))"
    r"|.*_(?:WRAPPER|LAUNCHER|PAGER|EDITOR|ASKPASS|RSH|SSH|SHELL|RUNNER|LINKER|PASSCOMMAND|PASSWORD_COMMAND)"
)
"""Variables that can make other programs run."""
_OPTIONS_IN = re.compile(r"GOFLAGS|RUSTFLAGS|.*JAVA_(?:TOOL_)?OPTIONS|(?:MAVEN|GRADLE|ANT|SBT|JAVA)_OPTS")
_OPTION_RUNS = re.compile(r"exec|linker|agent|vettool|-XX:On|@|\x00")
"""Options in such a variable that run something."""
_COMPILERS = frozenset({"CC", "CXX", "CPP", "LD", "AR", "AS", "FC", "RM", "HOSTCC", "CC_FOR_BUILD"})
_COMPILER = re.compile(
    r"(?:[\w.+]{1,20}-){0,4}(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cpp|ld|lld|ar|as|gfortran)(?:-[\d.]+)?"
)
"""Programs that such a variable may name."""


def steers(name: str, value: str = "") -> bool:
    """True if the variable `name`, set to `value`, can change which programs run."""
    if name in _COMPILERS:
        return not _COMPILER.fullmatch(posixpath.basename(value))
    if _OPTIONS_IN.fullmatch(name):
        return _OPTION_RUNS.search(value) is not None
    return _STEERING.fullmatch(name) is not None


# The table. A line has the names of programs, then:
#   -xy      letters of options that run something, alone or in a bundle
#   --long   options that run something, also abbreviated
#   !--long  an option of that exact name is harmless
#   =xy      letters of options that take the rest of a bundle as their value
#   ?word    a subcommand that runs something, also abbreviated
#   /regex/  arguments in which the pattern is found

_TABLE = r"""
tar,gtar,bsdtar -IF =fbCTXgHKLNV --to-command --checkpoint-action --use-compress-program --info-script !--checkpoint
tar,gtar,bsdtar --new-volume-script --rsh-command --rmt-command
cpio --rsh-command --rmt-command
rg --pre --hostname-bin
ag,ack --pager
fd,fdfind -xX =dEteSojc --exec --exec-batch
sort --compress-program
split --filter
install --strip-program
rsync -e --rsh --rsync-path
scp,sftp -SDF /(?i)command|module|provider/
wget --use-askpass /askpass/
tcpdump -z --postrotate-command
zip --unzip-command /^-[A-Za-z]*TT/
man -PHC --pager --html --config-file
make,gmake -fE --eval --file --makefile /^[A-Za-z_.][\w.-]*\s*[:+?!]*=/
less,more /^\+/
nano,pico -s --speller
pip,pip3 --python
npm,pnpm,yarn ?exec ?x ?explore ?dlx ?create --script-shell --node-options --call
cargo --config
go /^--?(exec|toolexec|vettool)/
bazel,bazelisk --run_under --workspace_status_command
gcc,g++,cc,c++,cpp,c89,c99,gfortran,clang,clang++ /^(-wrapper|-B|--?specs|-fplugin|-load|@)/
ld,ld.bfd,ld.gold,ld.lld /^(--?plugin|@)/
cmake --debugger /^-D\w{0,60}(LAUNCHER|COMPILER|PROGRAM|COMMAND)[\w:]{0,40}=[^\s;]*[\s;]/
apt,apt-get,apt-cache,aptitude /(?i)invoke|auto-?detect|dir::|dpkg::tools|::(pager|editor|hook|solver|planner|methods)/
dpkg --pre-invoke --post-invoke --status-logger
rpm,dnf,yum,zypper -ED --eval --define --pipe
groff,troff,nroff,pic,eqn -U --unsafe
tex,latex,pdftex,pdflatex,xetex,xelatex,luatex,lualatex /write18|shell-esc|\\/
convert,magick,identify,mogrify,montage,composite,display /\|/
gs /%pipe%|^-c/
sqlite3,duckdb /(^|\n)\s{0,9}\.(?!/|tables$|schema\b|dump\b|headers\b|mode\b|indexes\b|databases$|quit$)|(?i:\bedit\b|load_ext)|^--?(cmd|init)/
psql,mysql,mariadb /(?i)\\|program|system/
gpg,gpg2 --photo-viewer --agent-program --dirmngr-program --exec-path
rclone,restic,borg --password-command --rsh /(?i)program|command/
hg --config
svn --config-option --editor-cmd --diff-cmd --diff3-cmd
patch -e --ed
ip ?exec
jobs -x
set -k /keyword/
awk,gawk,mawk,nawk,original-awk -flEiDW =Fv --file --load --exec --include --debug /system|\||getline|@|\x00/
mapfile,readarray -C
"""


@dataclass(slots=True)
class _Runs:
    """The arguments of one program that run something."""

    letters: str = ""
    values: str = ""
    long: set[str] = field(default_factory=set[str])
    harmless: list[str] = field(default_factory=list[str])
    words: list[str] = field(default_factory=list[str])
    pattern: str = ""
    """Compiled when it is first needed: all of them would take a quick command 10 ms."""

    def add(self, token: str) -> None:
        match token[0]:
            case "/":
                self.pattern = token[1:-1]
            case "!":
                self.harmless.append(token[1:])
            case "?":
                self.words.append(token[1:])
            case "=":
                self.values = token[1:]
            case _ if token.startswith("--"):
                self.long.add(token)
            case _:
                self.letters = token[1:]

    def finds(self, word: str) -> bool:
        """True if the argument `word` may run something."""
        pattern = self.pattern
        if pattern and re.search(pattern, word):
            return True
        if word.startswith("--"):
            return self._long(word)
        if word.startswith("-"):
            return self._bundle(word[1:])
        return bool(word) and any(one.startswith(word) for one in self.words)

    def _long(self, word: str) -> bool:
        # Programs accept every prefix that is unambiguous; which ones are is not known here.
        name, hole, _ = word.partition("=")[0].partition(HOLE)
        if len(name) < 3 and not hole:
            return False
        exact = not hole and name in self.harmless
        return not exact and any(one.startswith(name) for one in self.long)

    def _bundle(self, letters: str) -> bool:
        for letter in letters:
            if letter in self.letters or letter == HOLE:
                return bool(self.letters)
            if letter in self.values:
                return False
        return False


def _read_table() -> dict[str, _Runs]:
    table: dict[str, _Runs] = {}
    for line in _TABLE.strip().splitlines():
        # A pattern is the only token with a slash in front, and has no spaces.
        names, *tokens = line.split()
        runs = table.setdefault(names.partition(",")[0], _Runs())
        for token in tokens:
            runs.add(token)
        table.update(dict.fromkeys(names.split(","), runs))
    return table


_RUNS = _read_table()

# git.

_GIT_VALUE = frozenset(
    {"-C", "-c", "--config-env", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source"}
)
_GIT_LONG = word_set(
    "--exec --upload-pack --receive-pack --open-files-in-pager --extcmd --ext-diff --textconv --config --template "
    "--gpg-sign"
)
_GIT_LETTERS = {"rebase": ("x", ""), "difftool": ("x", ""), "grep": ("O", "ABCefm"), "clone": ("cu", "boj")}
"""Letters of options that run something, and of options with a value."""
_GIT_RUNS = re.compile(
    r"config|filter-.*|for-each-repo|merge-index|hook|shell|remote-.*|daemon|instaweb|send-pack|http-push|subtree|svn"
    r"|p4|cvs.*|credential.*|mergetool|gui|citool|send-email|web--browse"
)
"""Subcommands that run other programs, or push."""
_GIT_RUNS_IN = {"bisect": "run", "submodule": "foreach"}
_GIT_FAR = frozenset(
    {"clone", "fetch", "pull", "push", "ls-remote", "remote", "archive", "submodule", "fetch-pack"}
)
_GIT_HELPER = re.compile(r"[A-Za-z0-9+-]+::")
"""`ext::…` and the like: an address that names a program."""


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
    verb, args = words[0], words[1:]
    second = next((word for word in args if not word.startswith("-")), "")
    runs_in = _GIT_RUNS_IN.get(verb)
    if _GIT_RUNS.fullmatch(verb) or (runs_in is not None and (second == runs_in or HOLE in second)):
        return f"git {verb} may run commands"
    runs = _Runs(*_GIT_LETTERS.get(verb, ("", "")), set(_GIT_LONG), ["--text"])
    named = verb in _GIT_FAR and any(map(_GIT_HELPER.match, args))
    return "an argument of git names a command" if named or any(map(runs.finds, args)) else None


# sed.

_SED_LONG = word_set(
    "--quiet --silent --debug --posix --regexp-extended --in-place --line-length --null-data --zero-terminated "
    "--separate --unbuffered --sandbox --follow-symlinks --binary --help --version --expression --file"
)
_SED_TEXT = re.compile(r"(?:[^\\\n]|\\.|\\$)*", re.DOTALL)
"""Text of `a`, `i`, `c`: up to a newline that no backslash escapes."""
_SED_LINE = re.compile(r"[^\n]*")
_SED_LABEL = re.compile(r"[^\n;}]*")
_SED_SPACE = re.compile(r"[\s;]*")
_SED_NUMBER = re.compile(r"[0-9]+(?:~[0-9]+)?|[+~][0-9]+|\$")
_SED_BRACKET = re.compile(r"\^?\]?(?:\[(?:\.[^\n.]*\.|:[^\n:]*:|=[^\n=]*=)\]|[^\]\n])*+\]")
_SED_FLAGS = re.compile(r"[gpiImM0-9]*")
_SED_BLANK = re.compile(r"[ \t]*")


def _sed_runs(rest: Argv) -> bool:
    """True if a script of sed uses the command or flag `e`, or is not visible."""
    scripts: list[str] = []
    operands: list[str] = []
    at = 0
    while at < len(rest):
        word = rest[at]
        at += 1
        if word == "--":
            operands.extend(rest[at:])
            break
        if not word.startswith("-") or word == "-":
            operands.append(word)
            continue
        option, value = _sed_option(word)
        if option in "fx":
            return True
        if option in "el" and value is None:
            value = rest[at] if at < len(rest) else HOLE
            at += 1
        if option == "e":
            scripts.append(value or "")
    script = "\n".join(scripts or operands[:1])
    return HOLE in script or not _SedScript(script).harmless()


def _sed_option(word: str) -> tuple[str, str | None]:
    """The letter and value of the option with a value in `word`; `n` for none of these, `x` for an unknown one."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        meant = {one for one in _SED_LONG if one.startswith(name)}
        meant = {name} if name in meant else meant
        if len(meant) != 1:
            return "x", None
        letter = {"--expression": "e", "--file": "f", "--line-length": "l"}.get(meant.pop(), "n")
        return letter, value if equals else None
    for at, letter in enumerate(word[1:], start=2):
        if letter in "efl":
            return letter, word[at:] or None
        if letter == "i":
            return "n", None
        if letter not in "nErszub":
            return "x", None
    return "n", None


@dataclass(slots=True)
class _SedScript:
    """Reads a script of sed once, from left to right."""

    text: str
    at: int = 0

    def harmless(self) -> bool:
        """True if the script is understood and no command or flag in it runs a program."""
        while True:
            self._skip(_SED_SPACE)
            if self.at >= len(self.text):
                return True
            if not (self._addresses() and self._command()):
                return False

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        taken = found[0] if found else ""
        self.at += len(taken)
        return taken

    def _take(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        return char

    def _addresses(self) -> bool:
        for _ in range(2):
            if not self._address():
                return False
            self._skip(_SED_BLANK)
            if self.text[self.at : self.at + 1] != ",":
                break
            self.at += 1
            self._skip(_SED_BLANK)
        while self.text[self.at : self.at + 1] in ("!", " ", "\t"):
            self.at += 1
        return True

    def _address(self) -> bool:
        char = self.text[self.at : self.at + 1]
        if char in ("/", "\\"):
            self.at += 1
            delimiter = char if char == "/" else self._take()
            if not self._until(delimiter):
                return False
            while self.text[self.at : self.at + 1] in ("I", "M"):
                self.at += 1
        else:
            self._skip(_SED_NUMBER)
        return True

    def _until(self, delimiter: str, *, regex: bool = True) -> bool:
        """Pass text up to the next `delimiter` that no backslash escapes, nor a bracket in a regular expression."""
        if delimiter in ("", "\n", "\\"):
            return False
        while self.at < len(self.text):
            char = self._take()
            if char == delimiter:
                return True
            if char == "\n" or (char == "[" and regex and not self._skip(_SED_BRACKET)):
                return False
            if char == "\\":
                self.at += 1
        return False

    def _command(self) -> bool:
        char = self._take()
        if char in "{}=dDgGhHnNpPxzF":
            return True
        if char in "aic":
            self._skip(_SED_TEXT)
            return True
        if char in "#rRwW":
            self._skip(_SED_LINE)
            return True
        if char in ":btTqQlLv":
            self._skip(_SED_LABEL)
            return True
        if char not in ("s", "y"):
            return False
        delimiter = self._take()
        if not (self._until(delimiter, regex=char == "s") and self._until(delimiter, regex=False)):
            return False
        if char == "s":
            self._skip(_SED_FLAGS)
            if self.text[self.at : self.at + 1] == "w":
                self._skip(_SED_LINE)
        return self.text[self.at : self.at + 1] in ("", ";", "\n", "}", " ", "\t", "#")


# Interpreters.

_INTERPRETERS = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|R|Rscript|guile|racket|sbcl|ghc|osascript|julia|octave"
    r"|elixir|erl|irb|groovy|jshell|scala|kotlin|clojure|raku)[0-9.]*"
)
_CODE_OPTIONS = re.compile(
    r"-[A-Za-z0-9]*[ceErRp].*|--(?:eval|print|run|execute|init-file).*|-[mM].*[^\w=.,:/+-].*|eval|-d:.*",
    re.DOTALL,
)
_CODE_MODULES = frozenset(
    {"timeit", "code", "pdb", "IPython", "runpy", "trace", "doctest", "bdb", "asyncio", "ptpython"}
)
_CODE_WORD = re.compile(r"(?i)\bdata:|\bphp:|\bauto_(?:pre|ap)pend|\x00")
_STREAM = re.compile(r"(?:.*/)?(?:stdin|fd/[0-9]+)", re.DOTALL)
"""`/dev/stdin`, `/dev/fd/3`, `/proc/self/fd/0`."""


_MODULE_OPTION = re.compile(r"-[bBdhiIOPqsSuvVx]*m([\w.]*)|--module")
"""`python -m NAME`, also in a bundle."""
_VALUED = {
    "python": word_set("-W -X"),
    "pypy": word_set("-W -X"),
    "perl": word_set("-I"),
    "ruby": word_set("-I"),
    "node": word_set("--import --require --loader --experimental-loader --conditions --env-file"),
}
"""Options that take the next word as their value, so that a later word is the script."""


def _takes_code(program: str, rest: Argv) -> bool:
    """True if an interpreter gets its program in the line or on a stream, not from a file."""
    if program in ("deno", "bun"):
        return not rest or any(
            word in ("-", "eval", "repl", "x", "exec") or word.startswith("http") or _is_code(word)
            for word in rest
        )
    told = False
    valued = _VALUED.get(program.rstrip("0123456789."), frozenset[str]())
    for at, word in enumerate(rest):
        if program.startswith("py") and (module_option := _MODULE_OPTION.fullmatch(word)):
            module = module_option[1] or (rest[at + 1] if at + 1 < len(rest) else HOLE)
            return HOLE in module or module in _CODE_MODULES or any(map(_is_stream, rest[at + 1 :]))
        told = told or word in ("-V", "--version", "-v", "-h", "--help", "--test")
        if word == "-" or _is_code(word) or (program.startswith("php") and word.startswith("-B")):
            return True
        if not word.startswith("-") and (at == 0 or rest[at - 1] not in valued):
            return False
    return not told


def _is_code(word: str) -> bool:
    return _is_stream(word) or bool(_CODE_WORD.search(word) or _CODE_OPTIONS.fullmatch(word))


def _is_stream(word: str) -> bool:
    _, equals, value = word.partition("=")
    return any(_STREAM.fullmatch(posixpath.normpath(text)) for text in ((word, value) if equals else (word,)))


def runs_argument(program: str, rest: Argv) -> str | None:
    """Why `program` may run a command that a rule cannot see; None if it does not."""
    if program == "git":
        return _git(rest)
    if program == "sed":
        return "sed may run commands" if _sed_runs(rest) else None
    if _INTERPRETERS.fullmatch(program):
        return f"{program} runs code of another language" if _takes_code(program, rest) else None
    if program in ("sqlite3", "duckdb") and sum(not word.startswith("-") for word in rest) < 2:
        return None if rest in (("--version",), ("-version",)) else f"{program} reads its input"
    runs = _RUNS.get(_plain_name(program))
    if runs is None:
        return None
    # The oldest style of tar: letters without a dash, their values in the words that follow.
    old = program in ("tar", "gtar", "bsdtar") and bool(rest) and not set(runs.letters).isdisjoint(rest[0])
    found = (old and not rest[0].startswith("-")) or any(map(runs.finds, rest))
    return f"an argument of {program} names a command" if found else None


def has_options_that_run(program: str) -> bool:
    """True if options of `program` can run commands."""
    return program in ("git", "sed") or _plain_name(program) in _RUNS


def _plain_name(program: str) -> str:
    """The program's name without its version and target: `x86_64-linux-gnu-gcc-12` is `gcc`."""
    if program in _RUNS:
        return program
    stem = program.rstrip("0123456789.").rstrip("-")
    return stem if stem in _RUNS else stem.rpartition("-")[2]
