"""A plan in words, and as a settings file."""

from collections.abc import Iterable, Iterator

import msgspec

from cloister.core.text import one_line
from cloister.environment.api import Plan, Service, Source, Step

_FROM: dict[Source, str] = {
    "debian": "from Debian",
    "pypi": "from the Python registry",
    "npm": "from npm",
    "repository": "from the repository",
    "none": "cannot be had",
}


def explain(plan: Plan) -> Iterator[str]:
    """The lines of `cloister env show`."""
    yield from _part(
        "Toolchains", (_tool(one.name, one.version, one.source, one.why) for one in plan.toolchains)
    )
    yield from _part(
        "Package managers", (_tool(one.name, one.version, one.source, one.why) for one in plan.managers)
    )
    yield from _part(
        "Debian packages",
        (
            f"{one.name} because {one.why}" + ("; skipped if missing" if one.optional else "")
            for one in plan.apt
        ),
    )
    yield from _part("Open during set-up only", (f"{one.set} because {one.why}" for one in plan.registries))
    own = [f"{line(one)}   # {one.why}" for one in plan.steps if one.stage == "dependencies"]
    tools = len(plan.steps) - len(own)
    first = [f"{tools} steps install the tools above (--json lists them)"] if tools else []
    yield from _part("Set-up", (*first, *own))
    yield from _part(
        "Services", (f"{one.name} {one.version}".strip() + f" because {one.why}" for one in plan.services)
    )
    yield from _part("Checks", (f"{one.command}   # {one.why}" for one in plan.checks))
    yield from _part("Variables", (f"{one.name}={one.value}   # {one.why}" for one in plan.env))
    if plan.template is not None:
        yield from _part("Template", (plan.template,))
    yield from _part("Made from", plan.files[:20])
    yield from _part("Notes", plan.notes)


def _tool(name: str, version: str, source: Source, why: str) -> str:
    return f"{name} {version}".strip() + f", {_FROM[source]}, because {why}"


def _part(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = [f"  {one_line(text, 300)}" for text in lines]
    if found:
        yield f"{title}:"
        yield from found


def line(step: Step) -> str:
    """The command of a step, with its directory."""
    return f"cd {step.cwd} && {step.command}" if step.cwd else step.command


def settings_text(plan: Plan) -> str:
    """The plan as `.cloister/config.toml`. Toolchains stay detected: they follow the manifests."""
    own = [step for step in plan.steps if step.stage == "dependencies"]
    parts = [
        "# Written by `cloister init` from what was detected. A key that is removed is detected again.",
        "# `cloister env show` explains each line.",
        _list("setup", [(_quoted(line(step)), step.why) for step in own]),
        _list("checks", [(_quoted(check.command), check.why) for check in plan.checks]),
        _list("packages", [(_quoted(one.name), one.why) for one in plan.apt if not one.optional]),
        _list("services", [(_service(one), one.why) for one in plan.services]),
    ]
    if plan.template is not None:
        parts.append(f"template = {_quoted(plan.template)}\n")
    return "\n".join(part for part in parts if part)


def _service(service: Service) -> str:
    env = ", ".join(f"{_quoted(name)} = {_quoted(value)}" for name, value in service.env.items())
    more = f", version = {_quoted(service.version)}" if service.version else ""
    more += f", port = {service.port}" if service.port else ""
    more += f", command = {_quoted(service.command)}" if service.command else ""
    return f"{{ name = {_quoted(service.name)}{more}{f', env = {{ {env} }}' if env else ''} }}"


def _list(key: str, entries: list[tuple[str, str]]) -> str:
    if not entries:
        return ""
    lines = [f"  {value},  # {one_line(why, 100)}" for value, why in entries]
    return "\n".join((f"{key} = [", *lines, "]\n"))


def _quoted(text: str) -> str:
    """A TOML string: JSON escapes the same characters, except DEL."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
