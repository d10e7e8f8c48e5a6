"""Reads the host's own apt configuration: which package sources serve its release. Pure."""

import re
from collections.abc import Iterable, Mapping

import msgspec

_OPTIONS = re.compile(r"^(deb)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)$")
_FIELDS = {"signed-by": "signed-by", "architectures": "arch", "trusted": "trusted"}
_KEPT_OPTIONS = frozenset(_FIELDS.values())
_USERINFO = re.compile(r"(://)[^/@\s]*@")


class Source(msgspec.Struct, frozen=True):
    """One package source of one suite."""

    uri: str
    suite: str
    components: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def line(self) -> str:
        """The source in apt's one-line style."""
        options = f"[{' '.join(f'{k}={v}' for k, v in self.options)}] " if self.options else ""
        return " ".join(["deb", f"{options}{self.uri}", self.suite, *self.components])

    def public_line(self) -> str:
        """As `line`, without a user and password in the address and without paths of this host."""
        return msgspec.structs.replace(self, uri=_USERINFO.sub(r"\1", self.uri), options=()).line()


def codename(os_release: str) -> str | None:
    """`VERSION_CODENAME` in the text of `/etc/os-release`."""
    for line in os_release.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "VERSION_CODENAME":
            return value.strip().strip("\"'") or None
    return None


def parse_sources(files: Mapping[str, str], release: str) -> tuple[Source, ...]:
    """The binary package sources of `release` and its pockets, without repetition.

    `files` maps names to texts: `*.sources` are in the deb822 style, everything else in the one-line style.
    """
    found: dict[Source, None] = {}
    for name, text in sorted(files.items()):
        parse = _deb822 if name.endswith(".sources") else _one_line
        for source in parse(text):
            if source.suite == release or source.suite.startswith(f"{release}-"):
                found[source] = None
    return tuple(found)


def _one_line(text: str) -> Iterable[Source]:
    for raw in text.splitlines():
        match = _OPTIONS.match(raw.partition("#")[0].strip())
        if match is None or match[3].startswith("cdrom:"):
            continue
        pairs = (option.partition("=") for option in (match[2] or "").split())
        kept = tuple((key, value) for key, _, value in pairs if key in _KEPT_OPTIONS)
        yield Source(match[3], match[4], tuple(match[5].split()), kept)


def _deb822(text: str) -> Iterable[Source]:
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields = _stanza(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in (
            "no",
            "false",
        ):
            continue
        if "-----BEGIN" in fields.get("signed-by", ""):
            continue  # An inline key has no one-line form, and without its key the source proves nothing.
        options = tuple((to, ",".join(fields[of].split())) for of, to in _FIELDS.items() if fields.get(of))
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri, suite, tuple(fields.get("components", "").split()), options)


def _stanza(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line[:1] in (" ", "\t"):
            if last:
                fields[last] += "\n" + line.strip()
            continue
        key, colon, value = line.partition(":")
        if colon:
            last = key.strip().lower()
            fields[last] = value.strip()
    return fields
