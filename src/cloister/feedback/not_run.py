"""Tells a check that failed from a check that could not run, and says what would help."""

import re
from collections.abc import Sequence

from cloister.core.diagnosis import Diagnostic, TestResult
from cloister.core.text import decode, harmless, one_line
from cloister.feedback.api import CheckOutput
from cloister.feedback.check_commands import kind_of

_BYTES = 262_144
_NOT_FOUND = re.compile(r"(?:^|: )([\w./@+-]{1,100}): (?:command )?not found", re.MULTILINE)
_NO_TOOL = re.compile(r"^\S*python[\d.]*: No module named '?([\w.]{1,100})", re.MULTILINE)
_MISSING = re.compile(
    r"No module named ['\"]?(?P<python>[\w.]{1,100})|Cannot find (?:module|package) ['\"](?P<script>[^'\"\n]{1,200})['\"]|"
    r"no required module provides package (?P<go>[^\s;]{1,200})|can't find crate for `(?P<rust>\w{1,100})`|"
    r"no matching package named `(?P<cargo>[\w-]{1,100})`|fatal error: (?P<c>[^\s:]{1,200}): No such file|"
    r"package (?P<java>[\w.]{1,200}) does not exist"
)
_PLACE = re.compile(r"^\s{0,20}([\w./-]{1,200}:\d{1,9}(?::\d{1,9})?: \S.{0,300})$", re.MULTILINE)
_COMPILER = re.compile(
    r":\d{1,9}: (?:fatal )?error\b|\berror\[E\d{4}\]|\berror TS\d{1,6}\b|\[ERROR\] COMPILATION"
)
_RUNNERS = re.compile(
    r"\b(?:py\.?test|unittest|jest|vitest|mocha|ava|node --test|go test|cargo (?:test|nextest)|ctest|mvnw?|gradlew?)\b"
)
_STOPPED = {
    "time": "raise its `timeout` in `.cloister/config.toml`, or name a quicker check with --check",
    "memory": "give the sandbox more memory",
    "output": "make it print less",
}


def why_not_run(
    output: CheckOutput, tests: Sequence[TestResult], unlisted: int, diagnostics: Sequence[Diagnostic]
) -> str:
    """Why the check says nothing about the code, in words; empty if it ran."""
    if output.killed is not None:
        helps = _STOPPED.get(output.killed, "")
        return f"it was stopped ({output.killed}) after {output.seconds:.0f} s{'; ' + helps if helps else ''}"
    text = harmless(decode(output.err[-_BYTES:] + b"\n" + output.out[-_BYTES:]))
    if output.exit_code in (126, 127):
        found = _NOT_FOUND.search(text)
        return _lacking(found[1].rpartition("/")[2] if found else "a program that it starts")
    if output.exit_code and (found := _NO_TOOL.search(text)):
        return _lacking(found[1])
    if unlisted or any(test.status in ("passed", "failed") for test in tests):
        return ""
    if kind_of(output.command) != "test":
        return ""
    return _no_test(output, tests, diagnostics, text)


def _no_test(
    output: CheckOutput, tests: Sequence[TestResult], diagnostics: Sequence[Diagnostic], text: str
) -> str:
    """Why a command that runs tests has no result of any."""
    told = "\n".join([*(test.message or "" for test in tests), *(one.message for one in diagnostics), text])
    if output.exit_code and (found := _MISSING.search(told)):
        return _lacking(next(filter(None, found.groups())))
    if output.exit_code == 0 or (output.exit_code == 5 and "pytest" in text + output.command):
        # Of an unknown program nothing but the exit status can be expected.
        known = tests or _RUNNERS.search(output.command)
        return "no test ran; name the checks with --check" if known else ""
    if not tests and not _RUNNERS.search(output.command) and not _COMPILER.search(text):
        return ""  # an unknown program failed, and no compiler says why
    first = next((one for one in diagnostics if one.severity == "error"), None)
    if first is not None and first.file:
        return f"it does not build: {one_line(f'{first.file}:{first.line}: {first.message}', 240)}"
    if place := _PLACE.search(text):
        return f"it does not build: {one_line(place[1], 240)}"
    if tests:
        broken = next((test for test in tests if test.status == "error"), tests[0])
        return f"no test could be loaded: {one_line(broken.name, 120)}: {_last_line(broken.message or '')}"
    return f"it does not build: {one_line(first.message, 240)}" if first is not None else ""


_PACKAGES = {
    **{
        "node": "nodejs",
        "go": "golang-go",
        "mvn": "maven",
        "javac": "default-jdk-headless",
        "java": "default-jre-headless",
    },
    **{
        "bundle": "ruby-bundler",
        "rspec": "ruby-rspec",
        "rake": "rake",
        "composer": "composer",
        "phpunit": "phpunit",
    },
    **{"php": "php-cli", "mix": "elixir", "ctest": "cmake", "ninja": "ninja-build", "autoreconf": "autoconf"},
    **dict.fromkeys(
        ("npm", "cargo", "rustc", "cmake", "meson", "make", "gradle", "tox", "ruby", "automake"), ""
    ),
    **dict.fromkeys(
        ("jq", "shellcheck", "sqlite3", "redis-server", "pkg-config", "swig", "bison", "flex"), ""
    ),
}
"""Program → its Debian package, if that has another name."""


def _lacking(name: str) -> str:
    shown = one_line(name, 100)
    if name in _PACKAGES:
        adds = f'add `packages = ["{_PACKAGES[name] or name}"]` to .cloister/config.toml'
    else:
        adds = "add it to the manifest, to `setup` or `packages` in .cloister/config.toml, or to the template"
    return f"{shown} is not installed; {adds}, or name other checks with --check"


def _last_line(message: str) -> str:
    lines = [line.strip() for line in message.split("\n") if line.strip()]
    return one_line(lines[-1].removeprefix("E").strip(), 200) if lines else "it failed"
