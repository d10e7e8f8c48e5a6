"""Addresses in one spelling: host names, repositories, and URLs without credentials. Pure."""

import ipaddress
import posixpath
import re
from fnmatch import fnmatchcase
from urllib.parse import unquote

# Host names: lower case and ASCII. Addresses: canonical form.

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAME_CHARS = 253


def normal_host(text: str) -> str:
    """Return the normal spelling of a host. Raises `ValueError` with the reason.

    Addresses must be written as `ipaddress` writes them. `127.1`, `0x7f.1` and `2130706433`, which resolvers
    accept as addresses, are rejected. IPv6 may be in brackets.
    """
    if address := _address(text):
        return address
    try:
        name = text if text.isascii() else text.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("it is not a valid internationalised name") from None
    name = name.lower().removesuffix(".")
    if not name or len(name) > _NAME_CHARS:
        raise ValueError(f"a host name has 1 to {_NAME_CHARS} characters")
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("it is not a DNS name")
    if _NUMERIC.fullmatch(labels[-1]):
        raise ValueError("it is a number that resolvers would read as an address")
    return name


def is_address(host: str) -> bool:
    """True if a host in normal spelling is an IP address."""
    return _address(host) is not None


def _address(text: str) -> str | None:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in bare or not bare.isascii():
        return None
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    if address.version == 4 and bare != text:
        return None
    return str(address)


# Repositories.

_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_SCP = re.compile(r"(?:([^/]*)@)?(\[[^\]/@]*\]|[^:/@\[\]]+):(?!:)(.*)", re.DOTALL)
"""`user@host:path`, which git reads as ssh."""
_AUTHORITY = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?")
_DEFAULT_PORTS = {"https": "443", "http": "80", "ssh": "22", "git": "9418"}
_USERINFO = re.compile(r"(://)[^\s/?#]*@")
_NO_CREDENTIALS = (
    "The address of a repository is stored, so it cannot hold a password or token: leave it out and let git's "
    "credential helper, or a [[credential]] of the settings, supply it."
)


def without_userinfo(text: str) -> str:
    """`text` without the user names and passwords in its URLs, each up to the last `@` before the path."""
    return _USERINFO.sub(r"\1", text)


def check_address(repo: str) -> str | None:
    """Why the address of a repository cannot be stored, in one sentence that does not repeat it; None if it can.

    Only an address of ssh may have a user name, without a password. Paths of this machine are never refused.
    """
    url = _URL.fullmatch(repo)
    if url is None:
        return _NO_CREDENTIALS if _short_with_password(repo) else None
    scheme, authority, path, rest = url.groups()
    if scheme.lower() == "file":
        return None
    user, _, host = authority.rpartition("@")
    named = bool(user) and (scheme.lower() != "ssh" or ":" in unquote(user))
    # A password with a slash in it ends the host early.
    if named or not _AUTHORITY.fullmatch(host) or (":" in host and "@" in path):
        return _NO_CREDENTIALS
    return "The address of a repository has no ? and no #, which could hold a token." if rest else None


def _short_with_password(repo: str) -> bool:
    """True for `user:password@host:path` and the like. Git does not read them so, but a person may mean it."""
    short = None if _is_path(repo) else _SCP.fullmatch(repo)
    if short is None:
        return False
    user, _, path = short.groups()
    return ":" in user if user is not None else "@" in path.partition("/")[0]


def _is_path(text: str) -> bool:
    return text.startswith(("/", ".", "~"))


def canonical_repository(repo: str) -> str:
    """One spelling for all addresses of a repository: `host/path`, with a port only if it is not the scheme's own.

    Scheme, user, case, percent-encoding, empty segments, a dot after the host and `.git` make no difference. The path
    of a directory stays as it is.
    """
    url = _URL.fullmatch(repo)
    if url is not None:
        usual, authority, path = _DEFAULT_PORTS.get(url[1].lower(), ""), url[2], url[3]
        if url[1].lower() == "file":
            return path
    else:
        short = None if _is_path(repo) else _SCP.fullmatch(repo)
        if short is None:
            return repo
        usual, authority, path = "22", short[2], short[3]
        if authority.count(":") == 1:  # [host:port]:path
            authority = authority.strip("[]")
    host, port = _host_and_port(authority.rpartition("@")[2])
    where = host if port in ("", usual) else f"{host}:{port}"
    normal = posixpath.normpath(f"/{unquote(path)}").lstrip("/")
    return f"{where}/{normal}".casefold().removesuffix(".git").rstrip("/")


def repository_names(repo: str) -> tuple[str, ...]:
    """The names that a rule about repositories is matched with: the canonical one, and that without its port."""
    name = canonical_repository(repo)
    host, slash, path = name.partition("/")
    bare = _host_and_port(host)[0]
    return (name,) if _is_path(name) or bare == host else (name, f"{bare}{slash}{path}")


def canonical_glob(glob: str) -> str:
    """A glob over addresses or paths in the spelling of `canonical_repository`: `github.com/acme/*`, `/home/me/*`."""
    plain = _is_path(glob) or "://" in glob or _SCP.fullmatch(glob)
    return canonical_repository(glob if plain else f"ssh://{glob}")


def repository_matches(match: str, repo: str) -> bool:
    """True if the shell pattern `match` fits some spelling of the address, or the path, `repo`."""
    names = (repo.rstrip("/"), *repository_names(repo))
    patterns = (match, canonical_glob(match))
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _host_and_port(text: str) -> tuple[str, str]:
    end = text.find("]") + 1 if text.startswith("[") else text.find(":")
    host, port = (text, "") if end < 0 else (text[:end], text[end:].lstrip(":0"))
    host = unquote(host)
    try:
        normal = normal_host(host)
    except ValueError:
        normal = _number(host.rstrip(".")) or host.casefold().rstrip(".")
    return (f"[{normal}]" if ":" in normal and not normal.startswith("[") else normal), port


def _number(text: str) -> str | None:
    """The IPv4 address that resolvers read in `127.1`, `0x7f000001` or `0177.0.0.1`; None in any other text."""
    parts = text.casefold().split(".")
    if len(parts) > 4 or not all(re.fullmatch(r"0x[0-9a-f]{1,8}|[0-9]{1,11}", part) for part in parts):
        return None
    try:
        *first, last = (
            int(part, 0 if part.startswith("0x") else 8 if part[0] == "0" else 10) for part in parts
        )
    except ValueError:
        return None
    room = 8 * (4 - len(first))
    if last >> room or any(value > 255 for value in first):
        return None
    return str(ipaddress.IPv4Address(last + sum(value << 8 * (3 - at) for at, value in enumerate(first))))
