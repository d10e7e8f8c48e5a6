"""The steps of a template of e2b as one script for bash, which root runs in the sandbox of the build. Pure."""

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from cloister.core.errors import UserError
from cloister.core.text import one_line
from cloister.server.compat.e2b import HOME

ARCHIVES = "/tmp/archives"  # noqa: S108  (the sandbox's own /tmp)
"""Where the files of COPY wait, each as a tar file named by its hash."""
PROFILE = "/etc/profile.d/template.sh"
"""Sets the variables of ENV in the login shells that clients of e2b start."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEGIN = """set -e
exec 2>&1
copy() {
  rm -rf /tmp/copied && mkdir /tmp/copied && tar -xf "$5" -C /tmp/copied --no-same-owner
  chown -R "$3" /tmp/copied
  [ -z "$4" ] || find /tmp/copied -type f -exec chmod "$4" {} +
  local IFS= each
  cd /tmp/copied
  for each in $1; do
    if [ -d "$each" ]; then
      mkdir -p "$2"
      find "$each" -mindepth 1 -maxdepth 1 -exec cp -a -t "$2" {} +
    elif [ -d "$2" ] || [ "$2" != "${2%/}" ]; then
      mkdir -p "$2" && cp -a -t "$2" "$each"
    else
      mkdir -p "$(dirname "$2")" && cp -a -T "$each" "$2"
    fi
  done
  cd / && rm -rf /tmp/copied
}
"""


class Step(msgspec.Struct, frozen=True, rename="camel"):
    """One instruction, as its client writes it."""

    type: str
    args: list[str] = []
    files_hash: str = ""


@dataclass
class _Place:
    """What the steps before have set."""

    user: str = "agent"
    directory: str = HOME
    lines: list[str] = field(default_factory=list[str])


def script(steps: Sequence[Step]) -> str:
    """Raises `UserError` (`bad_request`) for a step that is not known."""
    place = _Place()
    for number, step in enumerate(steps, 1):
        title = f"[{number}/{len(steps)}] {step.type} {one_line(' '.join(step.args), 200)}"
        place.lines.append(f"echo {shlex.quote(title)}")
        _take(place, step, number)
    return "\n".join((_BEGIN, *place.lines, f"rm -rf {ARCHIVES}", ""))


def _take(place: _Place, step: Step, number: int) -> None:
    match step.type, step.args:
        case "RUN", [line]:
            place.lines.append(_run(place, line, place.user))
        case "RUN", [line, user]:
            place.lines.append(_run(place, line, _account(user) if user else place.user))
        case "WORKDIR", [path]:
            place.directory = posixpath.join(place.directory, path)
            place.lines.append(f"mkdir -p {shlex.quote(place.directory)}")
            place.lines.append(f"chown {shlex.quote(place.user)} {shlex.quote(place.directory)} || true")
        case "USER", [user]:
            place.user = _account(user)
        case "ENV", [*pairs] if len(pairs) % 2 == 0:
            for name, value in zip(pairs[::2], pairs[1::2], strict=True):
                place.lines += _set(name, value)
        case "COPY", [source, target, *more] if step.files_hash.isalnum():
            owner, mode = (*more, "", "")[:2]
            into = posixpath.join(place.directory, target)
            words = (
                source.removeprefix("./"),
                into,
                _account(owner) if owner else place.user,
                mode,
                f"{ARCHIVES}/{step.files_hash}",
            )
            place.lines.append(shlex.join(("copy", *words)))
        case _:
            raise UserError("bad_request", f"Step {number} of the template is not known here: {step.type}.")


def _account(user: str) -> str:
    """The account for a user of e2b, or for an owner with a group."""
    return "agent" if user in ("user", "user:user") else user


def _run(place: _Place, line: str, user: str) -> str:
    inner = f"cd {shlex.quote(place.directory)}\n{line}"
    home = {"root": "/root", "agent": HOME}.get(user, "/")
    words = ["env", f"HOME={home}", "/bin/bash", "-ec", inner]
    return shlex.join(words if user == "root" else ["runuser", "-u", user, "--", *words])


def _set(name: str, value: str) -> tuple[str, str]:
    """An export now, and one for the shells of the finished template; `$NAME` in the value is expanded."""
    if not _NAME.fullmatch(name):
        raise UserError("bad_request", f"{name[:60]!r} is not the name of a variable.")
    # Only $NAME and ${NAME} are left to the shell.
    kept = re.sub(r'[\\"`]', lambda found: "\\" + found[0], value).replace("$(", "\\$(")
    line = f'export {name}="{kept}"'
    return line, f"printf '%s\\n' {shlex.quote(line)} >> {PROFILE}"
