"""Package clients in command lines: what they install, which registries they need, and why one was not reached. Pure."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from cloister.core.events import ConnectionDecided, SandboxOpened
from cloister.core.ids import SandboxId
from cloister.core.text import one_line
from cloister.environment.listing import wanted

SETS = {
    **dict.fromkeys(("pip", "pip3", "uv", "pipx", "poetry", "pdm", "pipenv", "hatch", "tox", "nox"), "pypi"),
    **dict.fromkeys(("npm", "npx", "pnpm", "yarn", "bun", "corepack"), "npm"),
    **dict.fromkeys(("apt", "apt-get"), "debian"),
    **dict.fromkeys(("mvn", "mvnw", "gradle", "gradlew"), "maven"),
    **dict.fromkeys(("bundle", "gem"), "gems"),
    "cargo": "crates",
    "go": "go",
    "composer": "composer",
    "mix": "hex",
}
"""Package client → the named set of the policy that holds its registry."""

_CRATE = '[package]\\nname = "trial"\\nversion = "0.0.0"\\n[dependencies]\\ncfg-if = "1"\\n'
TRIALS: dict[str, tuple[str, str]] = {
    "go": ("go", "go mod init trial && go mod download rsc.io/quote@v1.5.2"),
    "crates": (
        "cargo",
        (
            f"mkdir src && touch src/lib.rs && printf '{_CRATE}' > Cargo.toml && "
            "CARGO_HOME=$PWD/home CARGO_NET_RETRY=0 cargo fetch"
        ),
    ),
    "maven": ("mvn", "mvn -B -q -Dmaven.repo.local=$PWD/m2 dependency:get -Dartifact=junit:junit:4.13.2"),
    "gems": ("gem", "gem fetch rake"),
    "composer": (
        "composer",
        (
            'echo \'{"require": {"psr/log": "*"}}\' > composer.json && '
            "COMPOSER_ALLOW_SUPERUSER=1 COMPOSER_CACHE_DIR=$PWD/cache composer update -n -q"
        ),
    ),
    "hex": (
        "mix",
        "export MIX_HOME=$PWD HEX_HOME=$PWD; mix local.hex --force && mix hex.package fetch jason 1.4.0",
    ),
}
"""Named set → its client, and a script that gets a package with the client's own settings: the hosts that it asks for
are the registry. It runs in an empty directory."""

_ADDS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("pip", "pip3", "pipx", "pipenv", "apt", "apt-get", "gem"), frozenset({"install"})),
    **dict.fromkeys(("npm", "pnpm", "bun", "yarn"), frozenset({"install", "i", "add"})),
    **dict.fromkeys(("poetry", "pdm", "uv"), frozenset({"add"})),
    "go": frozenset({"get", "install"}),
    "cargo": frozenset({"add", "install"}),
    "composer": frozenset({"require"}),
}
_LINE_CHARS = 4_000
_PACKAGES = 8
_SEPARATOR = re.compile(r"&&|\|\||[;|\n&]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"python[\d.]*")
_BEFORE = frozenset({"sudo", "exec", "command", "time", "nice", "env"})
_NAMED = re.compile(r"@?[A-Za-z0-9][\w.@/+\[\],~^:<>=!-]*")


class Install(NamedTuple):
    """One command that installs named packages."""

    client: str
    packages: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.client}: {', '.join(self.packages)}"


class Refusal(NamedTuple):
    """A connection that the proxy denied."""

    host: str
    port: int
    rule: str


class Refused(NamedTuple):
    """A denied connection, its sandbox, and the time on the monotonic clock."""

    at: float
    sandbox: SandboxId
    what: Refusal


def installs(line: str) -> tuple[Install, ...]:
    """The packages that a command line installs by name; an installation from a manifest is not listed."""
    found: list[Install] = []
    for words in _commands(line):
        client, rest = words[0], words[1:]
        if client == "uv" and rest[:1] == ["pip"]:
            client, rest = "pip", rest[1:]
        verb = next((word for word in rest if not word.startswith("-")), "")
        if verb not in _ADDS.get(client, ()):
            continue
        named = rest[rest.index(verb) + 1 :]
        packages = tuple(word for word in _operands(named) if _NAMED.fullmatch(word))[:_PACKAGES]
        if packages:
            found.append(Install(client, packages))
    return tuple(found)


def _operands(words: Sequence[str]) -> Iterator[str]:
    takes = False
    for word in words:
        if not takes and not word.startswith("-"):
            yield word
        takes = word in ("-r", "-c", "-e", "-t", "--target", "--index-url", "-i", "--prefix", "-C")


def clients(line: str) -> tuple[str, ...]:
    """The package clients that a command line starts."""
    return tuple(dict.fromkeys(words[0] for words in _commands(line) if words[0] in SETS))


def _commands(line: str) -> Iterator[list[str]]:
    for part in _SEPARATOR.split(line[:_LINE_CHARS]):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            words = part.split()
        while words and (words[0] in _BEFORE or _ASSIGNMENT.match(words[0])):
            words = words[1:]
        if len(words) > 2 and _PYTHON.fullmatch(words[0].rpartition("/")[2]) and words[1] == "-m":
            words = words[2:]
        if words:
            yield [words[0].rpartition("/")[2], *words[1:]]


def refusals(since: Iterable[object], opened: Iterable[SandboxOpened], attempt: int) -> list[Refusal]:
    """The connections that were denied in these events, without those in sandboxes of other attempts."""
    denied = [body for body in since if isinstance(body, ConnectionDecided) and body.effect == "deny"]
    others = {one.sandbox for one in opened if one.attempt not in (None, attempt)} if denied else set[str]()
    return [Refusal(one.host, one.port, one.rule) for one in denied if one.sandbox not in others]


def explain(
    line: str, refused: Iterable[Refusal], opened: Collection[str] = (), place: str = "with --rule"
) -> str:
    """Which connections the proxy denied while `line` ran, and the rule that would allow them; empty if none.

    `opened` are the sets that were allowed: another one does not help there. `place` is where the rule belongs.
    """
    hosts = list(dict.fromkeys(refused))
    if not hosts:
        return ""
    who = clients(line)
    first = hosts[0]
    where = f"{one_line(first.host, 100)}:{first.port}"
    more = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
    name = who[0] if who else "a program"
    what = f"@{SETS[who[0]]}" if who and SETS[who[0]] not in opened else where
    return (
        f"{name} could not reach {where}{more}: the proxy denies it ({one_line(first.rule, 160)}). "
        f"Allow it {place} 'allow connect:{what}'."
    )


def explain_to_model(line: str, refused: Iterable[Refusal]) -> str:
    """Like `explain`, and for a package client what the model itself can do."""
    told = explain(line, refused)
    if not told or not clients(line):
        return told
    return (
        f"{told} Only a person can do that. Unless set-up is off, the proof has what the manifest or the lock file names: "
        "add the package there and call finish; red checks here do not refuse such a change."
    )


def changed_set_up(files: Iterable[str]) -> str:
    """What a change of files that set-up reads means for the checks of the attempt; empty if there is none."""
    names = wanted(files)
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    shown = one_line(", ".join(names[:3]), 200)
    return (
        f"The change touches {shown}{more}, which set-up reads. This sandbox still has the packages of the base. "
        "Unless set-up is off, `finish` proves the change in an environment that is made from it, so checks that are red here "
        "for a missing package do not refuse it."
    )


def only_here(lines: Iterable[str]) -> str:
    """What commands of the agent installed, as a sentence about a proof that lacks it; empty if nothing."""
    made = dict.fromkeys(str(one) for line in lines for one in installs(line))
    if not made:
        return ""
    named = "; ".join(list(made)[:_PACKAGES])
    return (
        f"You installed {one_line(named, 300)}. That is not part of the change: add what is needed to the manifest or the "
        "lock file of the repository, and the proof installs it."
    )
